"""Transactions of our client over three real nodes: programs and leaders die, and each message counts as decided."""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from raftmq.cli import cli
from raftmq.client import Message, Resolution, connect
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

PATIENCE_S = at_most(90)
"""The cluster asks about a message again after 30 s."""

PROGRAM = """
import sys, time, raftmq
servers, topic, group, count = sys.argv[1:]

def check(message):
    return raftmq.Resolution.UNDECIDED

with raftmq.connect(servers) as mq, mq.transaction_producer(group, check=check) as producer:
    begun = [producer.transaction(topic, b"%d" % n, key=str(n), check_after_s=1).begin() for n in range(int(count))]
    print(*(one.message_id for one in begun), flush=True)
    time.sleep(600)
"""
"""Begins transactions and ends none of them."""


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


def read_all(mq: Any, topic: str) -> list[Message]:
    with mq.consumer(fresh("readers"), topic, follow=False) as consumer:
        return list(consumer)


class Asked(list[str]):
    """A check of a program whose blocks decide. It should stay empty: a check that raises is only logged."""

    def check(self, message: Message) -> Resolution:
        """Notes who it is asked about."""
        self.append(message.message_id)
        return Resolution.UNDECIDED


def test_j3_what_commits_is_read_once_and_what_raises_never(live_cluster: Any) -> None:
    topic, group, asked = fresh("orders"), fresh("shops"), Asked()
    with connect(live_cluster.servers) as mq, mq.transaction_producer(group, check=asked.check) as producer:
        mq.admin.create_topic(topic, queues=2)
        with producer.transaction(topic, b"two teas", key="42", tag="new", properties={"n": "1"}) as one:
            assert read_all(mq, topic) == [], "open: nobody sees it"
            words = ["transactions", "list", "--data", str(live_cluster.data)]
            shown = CliRunner().invoke(cli, words, standalone_mode=False).output
            assert shown.splitlines()[-1] == "1 open transactions"
            (row,) = json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)["transactions"]
            assert (row["topic"], row["group"], row["message_id"]) == (topic, group, one.message_id)
        with pytest.raises(LookupError), producer.transaction(topic, b"no tea"):
            raise LookupError("sold out")
        (found,) = read_all(mq, topic)
        assert (found.body, found.key, found.tag, found.properties["n"]) == (b"two teas", "42", "new", "1")
        assert found.message_id == one.message_id
        one.commit()  # again: it has ended, and was committed
        assert len(read_all(mq, topic)) == 1
    assert asked == []


def test_j3_another_program_of_the_group_answers_for_one_that_was_killed(live_cluster: Any) -> None:
    topic, group, count = fresh("orders"), fresh("shops"), 6
    checked: queue.Queue[str] = queue.Queue()

    def check(message: Message) -> Resolution:
        checked.put(message.message_id)
        return Resolution.COMMIT if int(message.key or "") % 2 else Resolution.ROLLBACK

    with connect(live_cluster.servers) as mq, mq.transaction_producer(group, check=check):
        mq.admin.create_topic(topic, queues=2)
        command = [sys.executable, "-c", PROGRAM, live_cluster.servers, topic, group, str(count)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as program:
            assert program.stdout is not None
            begun = program.stdout.readline().split()
            program.kill()
        assert len(begun) == count
        assert {checked.get(timeout=PATIENCE_S) for _ in range(count)} == set(begun)
        wait(lambda: len(read_all(mq, topic)) >= count // 2, progress=lambda: len(read_all(mq, topic)))
        found = read_all(mq, topic)
        assert {m.message_id for m in found} == {begun[n] for n in range(1, count, 2)}


def test_j3_each_ends_as_decided_although_the_leader_is_killed(live_cluster: Any) -> None:
    kill_the_leader_amid_transactions(live_cluster)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_j3_each_ends_as_decided_however_often_leaders_are_killed(live_cluster: Any) -> None:
    for _ in range(12):
        kill_the_leader_amid_transactions(live_cluster)


def kill_the_leader_amid_transactions(live_cluster: Any) -> None:
    """It dies somewhere between the first half messages and the last commits of several threads."""
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    rng = random.Random(seed)
    topic, workers, each = fresh("orders"), 4, 30
    kill_at = rng.randrange(workers * each // 4, workers * each // 2)
    begun, killing = Counter[str](), threading.Event()
    unsettled: list[str] = []

    def work(producer: Any, name: str) -> None:
        for n in range(each):
            try:
                with producer.transaction(topic, f"{name}-{n}".encode(), check_after_s=120):
                    begun[name] += 1
                    if begun.total() >= kill_at:
                        killing.set()
                    if n % 3 == 0:
                        raise LookupError("sold out")
            except LookupError as error:
                unsettled.extend(getattr(error, "__notes__", ()))

    asked = Asked()
    with connect(live_cluster.servers) as mq, mq.transaction_producer(fresh("shops"), check=asked.check) as producer:
        mq.admin.create_topic(topic, queues=3)
        leader = live_cluster.leader()
        with ThreadPoolExecutor(workers) as threads:
            working = [threads.submit(work, producer, str(name)) for name in range(workers)]
            assert killing.wait(PATIENCE_S)
            time.sleep(rng.uniform(0, 0.02))
            live_cluster.kill(leader)
            for one in working:
                one.result()
        found = Counter(m.body.decode() for m in read_all(mq, topic))
        live_cluster.restart(leader)
        live_cluster.heal()
    assert (unsettled, asked) == ([], [])
    assert found == {f"{name}-{n}": 1 for name in range(workers) for n in range(each) if n % 3}
