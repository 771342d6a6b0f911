"""kill -9 of all three nodes under load, again and again on the same directories: what was acknowledged is there.

Messages, topics, groups and offsets change all the time. Every acknowledgement is written down when it arrives; at the
end each node must hold all of it, each message once, and nothing that was acknowledged as deleted.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from raftmq.client import Client, RaftMQError, SendResult, Unknown, connect
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

TOPIC = "load"
QUEUES = 3
SEED = int(os.environ.get("KILL_SEED", "20"))


class Ledger:
    """The answers that clients got."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acked: dict[bytes, SendResult] = {}
        self.sent = 0
        self.failures: Counter[str] = Counter()
        self.topics: dict[str, bool] = {}
        """name -> whether it must be there; a name whose last change is undecided is not listed."""
        self.groups: dict[str, bool] = {}
        self.offsets: dict[tuple[str, int], set[int]] = {}
        """(group, queue) -> the values it may have: the last acknowledged, and later ones without an answer."""

    def on_sent(self, body: bytes, future: Future[SendResult]) -> None:
        error = future.exception()
        with self.lock:
            if error is None:
                self.acked[body] = future.result()
            else:
                self.failures[type(error).__name__] += 1


class Load:
    """Clients that never stop: two producers, and one who changes topics, groups and offsets."""

    def __init__(self, servers: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self._mq = connect(servers)
        works = [lambda: self._produce("a"), lambda: self._produce("b"), self._change]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(at_most(60))
        self._mq.close()
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.errors, self.errors

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            self.errors.append(error)

    def _produce(self, name: str) -> None:
        with self._mq.producer(timeout_s=at_most(40), max_messages=64) as producer:
            at = 0
            while not self.stopping.is_set():
                body = f"{name}-{at}".encode()
                at += 1
                future = producer.send_soon(TOPIC, body, queue_id=at % QUEUES)
                future.add_done_callback(lambda done, body=body: self.ledger.on_sent(body, done))  # type: ignore[misc]
                time.sleep(0.001)
        self.ledger.sent += at

    def _change(self) -> None:
        mq, ledger = self._mq, self.ledger
        at = 0
        while not self.stopping.is_set():
            at += 1
            _noted(ledger.topics, f"topic-{at}", True, lambda: mq.admin.create_topic(f"topic-{at}", queues=1))  # noqa: B023
            _noted(ledger.groups, f"group-{at}", True, lambda: mq.admin.create_group(f"group-{at}"))  # noqa: B023
            if at % 3 == 0:
                _noted(ledger.topics, f"topic-{at - 2}", False, lambda: mq.admin.delete_topic(f"topic-{at - 2}"))  # noqa: B023
                _noted(ledger.groups, f"group-{at - 2}", False, lambda: mq.admin.delete_group(f"group-{at - 2}"))  # noqa: B023
            self._commit(mq, "reader", at % QUEUES, at)

    def _commit(self, mq: Client, group: str, queue_id: int, offset: int) -> None:
        possible = self.ledger.offsets.setdefault((group, queue_id), set())
        possible.add(offset)
        try:
            mq.admin.commit(group, TOPIC, queue_id, offset)
        except RaftMQError:
            return
        possible.intersection_update({offset})


def _noted(names: dict[str, bool], name: str, present: bool, change: Callable[[], None]) -> None:
    """Makes a change and writes down what is known afterwards."""
    before = names.pop(name, None)
    try:
        change()
    except Unknown:
        return
    except RaftMQError:
        if before is not None:
            names[name] = before
        return
    names[name] = present


def kill_all(live_cluster: Any, rounds: int) -> None:
    print(f"KILL_SEED={SEED}")  # noqa: T201 - replays the times of the kills
    rng = random.Random(SEED)
    live_cluster.heal()
    ledger = Ledger()
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(TOPIC, queues=QUEUES)
        mq.admin.create_group("reader")
    load = Load(live_cluster.servers, ledger)
    try:
        for _ in range(rounds):
            known = len(ledger.acked)
            time.sleep(rng.uniform(0.2, 1.0))
            wait(lambda known=known: len(ledger.acked) > known or load.errors, "something is acknowledged")  # type: ignore[misc]
            strikes = [live_cluster.local.aim(node.id) for node in live_cluster.nodes]
            rng.shuffle(strikes)
            for strike in strikes:
                strike()
            wait(lambda: not any(view.running for view in live_cluster.local.view().nodes), "all are dead")
            live_cluster.heal()
    finally:
        load.stop()
    live_cluster.wait_equal()
    check(live_cluster, ledger)


def check(live_cluster: Any, ledger: Ledger) -> None:
    assert len(ledger.acked) > 100, ledger.failures
    for node_id, messages in live_cluster.stored(TOPIC).items():
        counts = Counter(message.body for message in messages)
        where = {message.body: (message.queue_id, message.queue_offset) for message in messages}
        assert not ledger.acked.keys() - counts.keys(), f"node {node_id} lost acknowledged messages"
        assert not [body for body, count in counts.items() if count > 1], f"node {node_id} has messages twice"
        for body, result in ledger.acked.items():
            assert where[body] == (result.queue_id, result.queue_offset), f"node {node_id}, {body!r}"
        topics = {topic["name"] for topic in live_cluster.ask(node_id, "/v1/topics")["topics"]}
        groups = {group["name"] for group in live_cluster.ask(node_id, "/v1/groups")["groups"]}
        assert {name: name in topics for name in ledger.topics} == ledger.topics, f"topics of node {node_id}"
        assert {name: name in groups for name in ledger.groups} == ledger.groups, f"groups of node {node_id}"
        reader = live_cluster.ask(node_id, "/v1/groups/reader")["offsets"]
        committed = {(row["topic"], row["queue_id"]): row["committed_offset"] for row in reader}
        for (_, queue_id), possible in ledger.offsets.items():
            assert committed.get((TOPIC, queue_id)) in possible, f"node {node_id}, queue {queue_id}"


@pytest.mark.ci
def test_everything_acknowledged_survives_two_kills_of_all(live_cluster: Any) -> None:
    kill_all(live_cluster, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_acknowledged_survives_twenty_kills_of_all(live_cluster: Any) -> None:
    kill_all(live_cluster, 20)
