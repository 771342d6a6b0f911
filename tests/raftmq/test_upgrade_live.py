"""From the build that docs/levels.toml names to this tree, back, and forward again, under load, with nodes that die.

No send may end in an error. Nothing acknowledged may be lost, and nothing may be there twice: messages, timers,
transactions, offsets, tier. After `finalize`, the older build refuses directory, backup and tier.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import Client, RaftMQError, Resolution, SendResult, connect
from raftmq.local.process import free_base_port
from tests.support.distributions import environment, plain_wheels, run
from tests.support.older_build import older_command

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(900)]

PATIENCE_S = 120.0
PLAIN, TIMED, BOTH = "plain", "timed", "both"
QUEUES = 4
REFUSES = "a newer RaftMQ was finalized there"


class Cluster:
    """Three nodes, and the two commands that may start them."""

    def __init__(self, folder: Path, older: Path, newer: Path) -> None:
        self.folder, self.older, self.newer = folder, older, newer
        self.data = folder / "data"
        self.tier = f"file://{folder / 'tier'}"
        up = ["up", "--detach", "--base-port", str(free_base_port(12)), "--tier", self.tier, "--json"]
        self.servers: str = self.json(older, *up)["servers"]

    def do(self, command: Path, *arguments: str, fails: bool = False) -> str:
        """Returns the output of a command that works (or `fails`, then stderr) on this cluster."""
        done = run(command, *arguments, "--data", str(self.data), cwd=self.folder, timeout_s=600)
        assert (done.returncode != 0) == fails, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stderr + done.stdout if fails else done.stdout

    def json(self, command: Path, *arguments: str) -> Any:
        """Returns what it prints, decoded."""
        return json.loads(self.do(command, *arguments))

    def leader(self) -> int:
        """Waits for a leader."""
        while True:
            found = self.json(self.newer, "node", "list", "--json")["leader"]
            if found is not None:
                return int(found)
            time.sleep(0.2)

    def change(self, node: int, command: Path) -> None:
        """Kills the node with kill -9, and starts it with that version."""
        self.do(command, "kill", str(node))
        self.do(command, "restart", str(node))


class Load:
    """Clients that never stop, and the answers that they got."""

    def __init__(self, servers: str) -> None:
        self.acked: dict[str, set[bytes]] = {PLAIN: set(), TIMED: set(), BOTH: set()}
        self.rolled_back: set[bytes] = set()
        self.errors: list[str] = []
        self.consumed: set[bytes] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._consumes = threading.Event()
        self._mq = connect(servers, timeout_s=PATIENCE_S)
        for topic in self.acked:
            self._mq.admin.create_topic(topic, queues=QUEUES)
        works = [self._send, self._time, self._decide]
        self._senders = [threading.Thread(target=self._run, args=(work,)) for work in works]
        self._consumer = threading.Thread(target=self._run, args=(self._consume,))
        for thread in (*self._senders, self._consumer):
            thread.start()

    def stop(self) -> None:
        """Sends no more, and waits for every answer and every message."""
        self._stopping.set()
        for thread in self._senders:
            thread.join()
        self._consumes.set()
        self._consumer.join()
        self._mq.close()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.errors.append(f"{work.__name__}: {error!r}")

    def _answered(self, topic: str, body: bytes, future: Future[SendResult]) -> None:
        error = future.exception()
        with self._lock:
            if error is None:
                self.acked[topic].add(body)
            else:
                self.errors.append(f"{body!r}: {error!r}")

    def _send(self) -> None:
        """A thousand messages a second."""
        with self._mq.producer(timeout_s=PATIENCE_S) as producer:
            began_s = time.monotonic()
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                body = b"plain %d" % number
                producer.send_soon(PLAIN, body).add_done_callback(partial(self._answered, PLAIN, body))
                time.sleep(max(0.0, began_s + number / 1000 - time.monotonic()))

    def _time(self) -> None:
        """Messages that are due a few seconds later."""
        with self._mq.producer(timeout_s=PATIENCE_S) as producer:
            for number in itertools.count():
                if self._stopping.wait(0.05):
                    break
                body = b"timed %d" % number
                future = producer.send_soon(TIMED, body, delay=1 + number % 7)
                future.add_done_callback(partial(self._answered, TIMED, body))

    def _decide(self) -> None:
        """Transactions, of which every third is rolled back."""
        with self._mq.transaction_producer(
            "deciders", check=lambda _: Resolution.UNDECIDED, timeout_s=PATIENCE_S
        ) as own:
            for number in itertools.count():
                if self._stopping.wait(0.1):
                    break
                body = b"both %d" % number
                transaction = own.transaction(BOTH, body).begin()
                if number % 3 == 2:
                    transaction.rollback()
                    self.rolled_back.add(body)
                else:
                    transaction.commit()
                    self.acked[BOTH].add(body)

    def _consume(self) -> None:
        """A group that commits its offsets as it goes, member after member."""
        while not self._consumes.is_set():
            with self._mq.consumer("readers", PLAIN) as consumer:
                until_s = time.monotonic() + 5
                while time.monotonic() < until_s:
                    message = consumer.poll(0.5)
                    if message is not None:
                        self.consumed.add(message.body)


def stored(mq: Client, topic: str) -> Iterator[bytes]:
    """Every message of a topic, from every queue."""
    for queue in range(QUEUES):
        offset = 0
        while True:
            found = mq.pull(topic, queue, offset)
            yield from (message.body for message in found.messages)
            if found.next_offset <= offset:
                break
            offset = found.next_offset


def judge(servers: str, load: Load) -> None:
    """Each acknowledged message is there once; nothing that was rolled back is."""
    assert load.errors == []
    with connect(servers) as mq:
        deadline = time.monotonic() + 60
        for topic, acked in load.acked.items():
            while True:
                there = Counter(stored(mq, topic))
                if not acked - there.keys() or time.monotonic() > deadline:
                    break
                time.sleep(1)  # timers that are not due yet
            assert acked, topic
            assert acked - there.keys() == set(), f"{topic}: lost"
            assert [body for body, times in there.items() if times > 1] == [], f"{topic}: twice"
            assert load.rolled_back & there.keys() == set()
        with mq.consumer("readers", PLAIN, follow=False) as consumer:
            load.consumed |= {message.body for message in consumer}
        assert load.acked[PLAIN] - load.consumed == set(), "the group's offsets passed over these"


def test_forward_back_and_forward_under_load(tmp_path: Path) -> None:
    older = older_command(tmp_path / "older")
    newer = environment(tmp_path / "newer", *plain_wheels(tmp_path / "wheels")).with_name("raftmq")
    cluster = Cluster(tmp_path, older, newer)
    load = Load(cluster.servers)
    before = json.loads(cluster.do(newer, "upgrade", "plan", "--json"))
    assert before["known"] == before["level"] + 1
    try:
        for node in (1, 2, 3):
            cluster.change(node, newer)
            leader = cluster.leader()
            if node == 2:  # half way: the leader dies too, whichever version it runs
                cluster.change(leader, newer if leader <= node else older)
        cluster.do(newer, "topic", "create", "mixed")
        cluster.do(older, "upgrade", "run")
        cluster.do(newer, "upgrade", "run")
        cluster.do(newer, "kill", "3")
        named = cluster.do(newer, "upgrade", "finalize", "--yes", fails=True)
        assert "node 3 (voter) is down" in named
        cluster.do(newer, "restart", "3")
        raised = json.loads(cluster.do(newer, "upgrade", "finalize", "--yes", "--json"))
        assert (raised["before"], raised["level"]) == (before["level"], before["known"])
        cluster.do(newer, "topic", "create", "after")
        time.sleep(5)
    finally:
        load.stop()
    try:
        judge(cluster.servers, load)
        assert cluster.json(newer, "topic", "describe", "after", "--json")["topic"]["changed_by"]
        cluster.do(newer, "backup", "create", "--to", str(tmp_path / "backups"))
        cluster.do(newer, "kill", "1")
        cluster.do(older, "restart", "1", fails=True)
        assert REFUSES in cluster.do(newer, "logs", "1")
        cluster.do(newer, "restart", "1")
    finally:
        cluster.do(newer, "down")
    (backup,) = (tmp_path / "backups").iterdir()
    refused_backup = run(older, "backup", "verify", str(backup), cwd=tmp_path)
    assert REFUSES in refused_backup.stderr
    assert run(newer, "backup", "verify", str(backup), cwd=tmp_path).returncode == 0
    refused_tier = run(older, "restore", "--from-tier", cluster.tier, "--into", str(tmp_path / "r"), cwd=tmp_path)
    assert REFUSES in refused_tier.stderr
    with pytest.raises(RaftMQError):
        connect(cluster.servers, timeout_s=1).send(PLAIN, b"nobody is there")
