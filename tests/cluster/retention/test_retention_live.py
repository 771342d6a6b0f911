"""Three real nodes whose messages live for six seconds, under load, one of them killed meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.cli import run as raftmq
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.slow]

SHORT = """
[log]
segment_size_bytes = 1048576

[limits]
message_bytes_max = 262144
batch_bytes_max = 262144

[retention]
ms = 6000
every_ms = 500
delete_when = ""
"""
TOPIC = "short-lived"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster with small segments: the size counts only when the directories are made."""
    made = LocalCluster(tmp_path / "c")
    made.up(3, free_base_port(12))
    made.down()
    for node in made.nodes:
        shutil.rmtree(node.config_path.parent / "data")
        with node.config_path.open("a") as config:
            config.write(SHORT)
    create_data_dirs([node.config_path for node in made.nodes])
    made.up()
    try:
        yield made
    finally:
        with contextlib.suppress(LocalError):
            made.down()


def views(cluster: LocalCluster, path: str) -> dict[int, dict[str, Any]]:
    return {node.id: AdminApi([f"127.0.0.1:{node.admin_port}"]).local(path) for node in cluster.nodes}


class Load:
    """Sends a kilobyte at a time, and reads along as a group."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._stop, self._all_sent = threading.Event(), threading.Event()
        self.sent = 0
        self.read: list[int] = []
        self.trimmed = -1
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._read)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with connect(self._servers) as mq, mq.producer() as producer:
            while not self._stop.is_set():
                batch = [b"%012d" % n + bytes(1000) for n in range(self.sent, self.sent + 50)]
                producer.send_batch(TOPIC, batch, queue_id=0)
                self.sent += len(batch)
                self._stop.wait(0.02)
        self._all_sent.set()

    def _read(self) -> None:
        with connect(self._servers) as mq, mq.consumer("along", TOPIC) as consumer:
            while not self._all_sent.is_set() or len(self.read) < self.sent:
                message = consumer.poll(timeout_s=0.5)
                if message is not None:
                    self.read.append(int(message.body[:12]))
            self.trimmed = consumer.trimmed


def firsts(cluster: LocalCluster) -> list[int]:
    """Where each node's log begins."""
    return [view["first_position"] for view in views(cluster, "/v1/retention").values()]


def test_disks_stay_small_and_nobody_loses_what_is_young(cluster: LocalCluster) -> None:
    assert raftmq(["topic", "create", TOPIC, "--queues", "1", "--data", str(cluster.data)]) == 0
    with Load(cluster.servers) as load:
        time.sleep(6)
        follower = next(node.id for node in cluster.nodes if node.id != cluster.wait_leader())
        cluster.kill(follower)
        time.sleep(2)
        cluster.restart(follower)
        wait(
            lambda: min(firsts(cluster)) > 12 << 20,
            lambda: views(cluster, "/v1/retention"),
            progress=lambda: firsts(cluster),
            every_s=0.5,
        )
    assert load.trimmed == 0
    assert sorted(set(load.read)) == list(range(load.sent)), "everything sent was read in time"
    written = load.sent * 1100
    for _ in range(600):
        status = views(cluster, "/v1/status").values()
        if len({view["applied_index"] for view in status} | {view["last_index"] for view in status}) == 1:
            break
        time.sleep(0.05)
    first = {node: view["queues"][0]["min_offset"] for node, view in views(cluster, f"/v1/topics/{TOPIC}").items()}
    assert len(set(first.values())) == 1, first
    assert min(first.values()) > 1000
    for node in cluster.nodes:
        files = (node.config_path.parent / "data" / "log").glob("*.seg")
        assert sum(file.stat().st_size for file in files) < written * 0.8
    assert raftmq(["inspect-consistency", "--data", str(cluster.data)]) == 0
    assert raftmq(["retention", "--data", str(cluster.data)]) == 0
    cluster.down()
    for node in cluster.nodes:
        assert raftmq(["fsck", str(node.config_path.parent)]) == 0


def test_a_message_that_waits_does_not_keep_the_log(cluster: LocalCluster) -> None:
    """It waits for longer than messages live, across a change of leader, and comes once."""
    for topic in (TOPIC, "later"):
        assert raftmq(["topic", "create", topic, "--queues", "1", "--data", str(cluster.data)]) == 0
    with connect(cluster.servers) as mq, mq.producer() as producer:
        producer.send("later", b"waited", delay=45)
        held = []
        with Load(cluster.servers):
            first = killed = 0
            deadline = time.monotonic() + at_most(40)
            while first < 6 << 20:
                assert time.monotonic() < deadline, views(cluster, "/v1/retention")
                time.sleep(0.5)
                found = views(cluster, "/v1/retention").values()
                first = min(view["trim_position"] for view in found)
                held.append(max(view["pinned_log_bytes"] for view in found))
                if first > 2 << 20 and not killed:
                    killed = cluster.wait_leader()
                    cluster.kill(killed)
                    cluster.restart(killed)
            assert {view["pinned_timers"] for view in found} == {1}, "it still waits"
        assert max(held) <= 2 << 20
        with mq.consumer("late", "later") as consumer:
            bodies: list[bytes] = []
            deadline = time.monotonic() + at_most(90)
            while not bodies and time.monotonic() < deadline:
                message = consumer.poll(timeout_s=1)
                bodies += [] if message is None else [message.body]
            for _ in range(5):
                message = consumer.poll(timeout_s=1)
                bodies += [] if message is None else [message.body]
    assert bodies == [b"waited"]
    assert raftmq(["inspect-consistency", "--data", str(cluster.data)]) == 0
    cluster.down()
    for node in cluster.nodes:
        assert raftmq(["fsck", str(node.config_path.parent)]) == 0
