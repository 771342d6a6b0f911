"""A backup of a live cluster under load becomes a new cluster, and that one a single survivor: the whole way round."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.backup.manifest import LOG, Manifest
from cluster.backup.restore import restore
from cluster.backup.unsafe_recovery import recover
from cluster.backup.verify import verify
from cluster.config.config import dump
from cluster.config.loading import load
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import decode_entries
from raftlog.storage.files.layout import segment_name
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.local.status import GroupStatus
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

TOPIC, GROUP = "load", "readers"
PATIENCE_S = at_most(60)


class Load:
    """One producer that never stops, and what it was told."""

    def __init__(self, servers: str) -> None:
        self.acked: set[bytes] = set()
        self._stopping = threading.Event()
        self._mq = connect(servers)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._mq.producer(timeout_s=PATIENCE_S) as producer:
            at = 0
            while not self._stopping.is_set():
                bodies = [f"message {at + i}".encode() for i in range(20)]
                for future, body in [(producer.send_soon(TOPIC, body, queue_id=at % 4), body) for body in bodies]:
                    future.result(PATIENCE_S)
                    self.acked.add(body)
                at += len(bodies)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self._mq.close()


def back_up(live: Any, node_id: int, to: Path) -> Path:
    """Asks a node, waits until it is done."""
    view = live.ask(node_id, "/v1/backup", "POST", {"to": str(to)})

    def ended() -> bool:
        nonlocal view
        view = live.ask(node_id, "/v1/backup")
        return bool(view["attempt"]["state"] != "running")

    wait(ended, lambda: view, progress=lambda: view)
    assert (view["attempt"]["state"], view["attempt"]["confirmed"]) == ("done", True), view
    return Path(view["attempt"]["path"])


def replayed(backup: Path, told: Manifest) -> dict[str, str]:
    """The digest at the cut, made out of the log alone."""
    kv = MemoryKV()
    state = BrokerState(kv)
    for record in told.segments:
        data = (backup / LOG / segment_name(record.base_position)).read_bytes()
        size = record.end_position - record.base_position
        state.apply(list(decode_entries(data[LOCAL_HEADER_SIZE : LOCAL_HEADER_SIZE + size], told.group_id)))
    assert state.applied_mark[:3] == (told.term, told.index, told.position)
    return {family: f"{total:016x}" for family, total in digest(kv).items()}


def bodies(cluster: LocalCluster) -> list[bytes]:
    """Every message, queue by queue."""
    found: list[bytes] = []
    with connect(cluster.servers) as mq:
        for queue in range(4):
            at, end = 0, mq.admin.max_offset(TOPIC, queue)
            while at < end:
                pulled = mq.pull(TOPIC, queue, at)
                found += [message.body for message in pulled.messages]
                at = pulled.next_offset
    return found


@contextmanager
def running(cluster: LocalCluster) -> Iterator[GroupStatus]:
    try:
        yield cluster.up(timeout_s=PATIENCE_S)
    finally:
        cluster.down()


def alarms_of(cluster: LocalCluster) -> list[Any]:
    """Returns the first node's alarms, once there are some: alarms are looked at on a timer."""

    def alarms() -> list[Any]:
        status = cluster.view().nodes[0].status
        return [] if status is None else list(status["alarms"])

    return wait(alarms, "no alarm", every_s=0.02)


@pytest.mark.ci
def test_a_backup_under_load_becomes_a_cluster_and_that_a_survivor(live_cluster: Any, tmp_path: Path) -> None:
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(TOPIC, 4)
        mq.admin.create_group(GROUP)
        load_ = Load(live_cluster.servers)
        try:
            while len(load_.acked) < 400:
                time.sleep(0.01)
            for queue in range(4):
                mq.admin.commit(GROUP, TOPIC, queue, 5 + queue)
            before = set(load_.acked)
            follower = next(node.id for node in live_cluster.nodes if node.id != live_cluster.leader())
            backup = back_up(live_cluster, follower, tmp_path / "to")
        finally:
            load_.stop()
    found = verify(backup)
    assert found.problems == []
    assert found.manifest.digest == replayed(backup, found.manifest)

    restored = restore(backup, tmp_path / "new", base_port=free_base_port(12), now_ms=time.time_ns() // 1_000_000)
    cluster = LocalCluster(tmp_path / "new")
    with running(cluster) as view:
        assert {node.status["cluster_id"] for node in view.nodes if node.status} == {str(restored.cluster_uuid)}
        kept = bodies(cluster)
        assert len(kept) == len(set(kept))
        assert before <= set(kept) <= load_.acked | set(kept)
        with connect(cluster.servers) as mq:
            assert [mq.admin.committed(GROUP, TOPIC, queue) for queue in range(4)] == [5, 6, 7, 8]
            mq.send(TOPIC, b"after", queue_id=0)

    survivor = tmp_path / "new" / "n2"
    old = str(restored.cluster_uuid)
    made = recover(survivor / "data", old, time.time_ns() // 1_000_000)
    for lost in ("n1", "n3"):
        shutil.move(tmp_path / "new" / lost, tmp_path / f"{lost}.lost")
    (tmp_path / "new" / "cluster.json").unlink()
    config = load(survivor / "raftmq.toml")
    alone = replace(config, peers=(config.peer_of(2),), node=replace(config.node, data_dir="data"))
    (survivor / "raftmq.toml").write_text(dump(alone))
    with running(cluster) as view:
        (node,) = view.nodes
        assert node.status is not None
        assert node.status["cluster_id"] == str(made.cluster_uuid) != old
        assert sorted(bodies(cluster)) == sorted([*kept, b"after"])
        with connect(cluster.servers) as mq:
            mq.send(TOPIC, b"alone", queue_id=0)
        (alarm,) = alarms_of(cluster)
        assert (alarm["key"], alarm["text"][:24]) == ("unsafe_recovered", "node 2 went on alone fro")
