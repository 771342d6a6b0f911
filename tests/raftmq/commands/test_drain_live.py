"""A group of brokers is drained while a producer and a consumer are at work: two groups of one node each."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq import cli
from raftmq.client import Client, RaftMQError, connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from raftmq_wire.queue_numbers import group_of
from tests.support.wait_until import LONG_S, wait

pytestmark = [pytest.mark.live, pytest.mark.ci]

TOPIC, GROUP = "orders", "billing"
ELSEWHERE_ALONE = 20
"""Sends in a row that no group but the first stored."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("drain") / "data")
    made.up(1, free_base_port(8), groups=2)
    yield made
    made.down()


@pytest.fixture
def mq(cluster: LocalCluster) -> Iterator[Client]:
    with connect(cluster.servers) as made:
        yield made


class Writer:
    """A producer that sends numbers, one after the other, until it is stopped."""

    def __init__(self, mq: Client) -> None:
        self.sent: list[tuple[int, int]] = []
        """(queue, number) of each stored message."""
        self.errors: list[RaftMQError] = []
        self._ends = threading.Event()
        self._mq = mq
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._mq.producer() as producer:
                while not self._ends.wait(0.02):
                    number = len(self.sent)
                    self.sent.append((producer.send(TOPIC, b"%d" % number).queue_id, number))
        except RaftMQError as error:
            self.errors.append(error)

    def groups_of_last(self) -> set[int]:
        """The groups of brokers that stored the last messages."""
        return {group_of(queue) for queue, _ in self.sent[-ELSEWHERE_ALONE:]}

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster; its exit code and, with --json, its object."""

    def ran(*words: str, as_json: bool = True) -> tuple[int, Any]:
        code = cli.run([*words, "--data", str(cluster.data), *(["--json"] if as_json else [])])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if as_json and told.out.strip() else (code, told.out + told.err)

    return ran


def test_a_group_drains_under_work(cluster: LocalCluster, mq: Client, run: Run) -> None:
    first = AdminApi(addresses_of(cluster.of_group(1)))
    for name, groups in {TOPIC: [1, 2], "there": [2]}.items():
        first.post("/v1/topics", {"name": name, "queues": 2, "groups": groups})
    wait(lambda: run("broker-group", "drain", "2", "--plan")[1]["topics_shared"] == 1, "group 2 knows the topics")
    read: dict[int, list[int]] = defaultdict(list)

    def reads(consumer: Any) -> None:
        for message in consumer:
            read[message.queue_id].append(int(message.body))

    with mq.consumer(GROUP, TOPIC) as consumer:
        reader = threading.Thread(target=reads, args=(consumer,), daemon=True)
        reader.start()
        with Writer(mq) as writer:
            wait(lambda: writer.groups_of_last() == {1, 2}, "both groups store messages")
            code, refused = run("broker-group", "drain", "2", "--yes")
            assert (code, "topic there has queues in no other group" in str(refused)) == (ExitCode.REFUSED, True)
            code, begun = run("broker-group", "drain", "2", "--yes", "--spread")
            assert (code, begun["state"], begun["topics_alone"]) == (0, "draining", [])
            wait(
                lambda: writer.errors or (len(writer.sent) > ELSEWHERE_ALONE and writer.groups_of_last() == {1}),
                "the producer sends to the first group alone",
                patience_s=2 * LONG_S,
            )
        assert not writer.errors, "nothing is refused of who asks for routes"
        wait(lambda: sum(map(len, read.values())) >= len(writer.sent), "all is read", progress=lambda: len(read))
    by_queue: dict[int, list[int]] = defaultdict(list)
    for queue, number in writer.sent:
        by_queue[queue].append(number)
    assert dict(read) == dict(by_queue), "each message once, in the order of its queue"
    assert {group_of(queue) for queue in by_queue} == {1, 2}

    def left() -> dict[str, Any]:
        found: dict[str, Any] = run("broker-group", "drain", "2", "--plan")[1]
        return found

    wait(lambda: left()["done"], "what was read is committed")
    assert (left()["state"], left()["unread"]) == ("draining", [])
    with mq.producer() as producer:
        assert {group_of(producer.send(TOPIC, b"x").queue_id) for _ in range(8)} == {1}
    code, cancelled = run("broker-group", "drain", "2", "--cancel")
    assert (code, cancelled["state"], cancelled["since_ms"]) == (0, "active", None)


def test_a_group_that_is_done_retires(cluster: LocalCluster, mq: Client, run: Run) -> None:
    """After the test above: what is left in group 2 is read, and nothing reads the other topics."""
    assert run("broker-group", "drain", "2", "--yes", "--spread")[0] == 0
    code, refused = run("broker-group", "retire", "2", "--yes")
    assert (code, "may send to group 2 for" in str(refused)) == (ExitCode.REFUSED, True), "for 70 s"
    configs = [str(node.config_path) for node in cluster.of_group(2)]
    code, retired = run("broker-group", "retire", "2", "--yes", "--wait", "150")
    assert (code, retired["state"]) == (0, "retired")
    assert cluster.of_group(2) == [], "its nodes are stopped and set aside"
    code, listed = run("broker-group", "list")
    assert [(row["group"], row["state"]) for row in listed["groups"]] == [(1, "active"), (2, "retired")]
    with mq.producer() as producer:
        assert {group_of(producer.send(TOPIC, b"x").queue_id) for _ in range(8)} == {1}
    assert run("backup", "create", "--to", str(cluster.data / "backups"), as_json=False)[0] == 0
    assert run("topic", "list")[0] == 0
    for _ in range(2):
        code, refused = run("up", "--groups", "2", "--detach")
        assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "group 2 has retired")
        cluster.down()
    cluster.up()
    assert cluster.of_group(2) == [], "a start makes no other group of that number"
    assert "group 2 has retired" in run("status", as_json=False)[1]
    code, said = run("topic", "create", "late", "--in-group", "2", as_json=False)
    assert (code != 0, "group 2 has retired, and takes no topic" in said) == (True, True)
    aside = [Path(retired["set_aside"]) / Path(config).parent.name for config in configs]
    for home in aside:  # a node that somebody starts all the same says why it ends
        home.rename(home.parent.parent / home.name)
    ended = subprocess.run(
        [sys.executable, "-m", "cluster.node", "--config", configs[0]], capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.REFUSED
    assert "group 2 of brokers (raftmq-g02) has retired, and its nodes run no more." in ended.stderr
    code, again = run("broker-group", "retire", "2", "--yes")
    assert (code, again["state"]) == (0, "retired")


def test_the_first_group_is_not_drained(run: Run) -> None:
    code, refused = run("broker-group", "drain", "1", "--yes")
    assert (code, "It cannot be drained" in str(refused)) == (ExitCode.REFUSED, True)
