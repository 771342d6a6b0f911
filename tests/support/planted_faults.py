"""Faults that are made for real on three live nodes, each with the findings that it has to cause.

`FAULTS` holds those that a cluster of `faulty_cluster` can have; what a disk of its own is needed for is in
tests/support/small_disk_nodes.py. The table of all is in docs/internals/planted-faults.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import plan_nodes, set_tier, write_configs
from jepsen_like.live.power import NodeDisk, ShimError, build_shim
from jepsen_like.live.proxy import Fabric
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.live_nodes import LiveCluster

NAMED_S, CLEARED_S = 15.0, 90.0
LOWERED = {
    "RAFTMQ_HEALTH__GROUP_IDLE_MS": "1000",
    "RAFTMQ_HEALTH__QUEUE_STUCK_MS": "4000",
    "RAFTMQ_HEALTH__CONNECTIONS_PERCENT": "50",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_ENTRIES": "20",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_MS": "1000",
    "RAFTMQ_HEALTH__CRASH_LOOP_MS": "30000",
    "RAFTMQ_HEALTH__TIER_STUCK_MS": "3000",
    "RAFTMQ_LIMITS__CONNECTIONS_MAX": "120",
    "RAFTMQ_HA__SEND_HEARTBEAT_INTERVAL_MS": "500",
    "RAFTMQ_LOG__SLOW_APPEND_MS": "400",
    "RAFTMQ_LOG__SEGMENT_SIZE_BYTES": str(1 << 20),
    "RAFTMQ_LIMITS__MESSAGE_BYTES_MAX": "600000",
    "RAFTMQ_LIMITS__BATCH_BYTES_MAX": "131072",
    "RAFTMQ_REPAIR__BYTES_PER_SECOND": str(1 << 20),
}
"""Thresholds, the size of segments, and the pace at which peers give what another one lost: what is mended within a
second needs no name."""
BIG, BIG_COUNT = 500_000, 28
"""Two messages of this size fill a segment."""
NOT_TO_BE_WRITTEN = "/proc"
"""Not even by root."""
CLOCK_OFF_MS = 5_000

Key = tuple[str, str]
"""Code and object of a finding."""
Said = dict[Key, Any]


class Planted(NamedTuple):
    """What has to be found."""

    causes: tuple[Key, ...]
    """What was planted; nothing explains these."""
    follows: tuple[Key, ...] = ()
    """Consequences that are named as well."""
    away: int = 0
    """A node that cannot be asked."""
    alerts: frozenset[str] = frozenset()
    """Rules that must fire besides those that show each finding."""


class FaultyCluster(LiveCluster):
    """Three nodes that reach each other through proxies, with a tier in a directory and a place for backups."""

    def __init__(self, local: LocalCluster, fabric: Fabric, store: Path, backups: Path, shim: Path) -> None:
        super().__init__(local)
        self.fabric = fabric
        self.store = store
        self.backups = backups
        self.shim = shim

    def node(self, node_id: int) -> NodeRecord:
        return next(node for node in self.nodes if node.id == node_id)

    def follower(self) -> int:
        leader = self.leader()
        return next(node.id for node in self.nodes if node.id != leader)

    def pid(self, node_id: int) -> int:
        pid = self.node(node_id).pid
        assert pid is not None
        return pid


Plant = Callable[[FaultyCluster], AbstractContextManager[Planted]]
FAULTS: dict[str, Plant] = {}


def fault(plant: Callable[[FaultyCluster], Iterator[Planted]]) -> Plant:
    """Enter: it is planted; leave: it is repaired, whatever happened meanwhile."""
    FAULTS[plant.__name__] = made = contextmanager(plant)
    return made


@contextmanager
def faulty_cluster(folder: Path, more: Mapping[str, str] = LOWERED) -> Iterator[FaultyCluster]:
    """The cluster, with `more` in the environment of its nodes."""
    data, store, backups = folder / "data", folder / "store", folder / "backups"
    store.mkdir()
    data.mkdir()
    nodes = plan_nodes(data, 3, free_base_port(12))
    fabric = Fabric({node.id: node.peer_port for node in nodes})
    local = LocalCluster(data)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ({"RAFTMQ_BACKUP__ROOTS": f"{NOT_TO_BE_WRITTEN};{backups}"} | dict(more)).items():
            patch.setenv(name, value)
        try:
            write_configs(nodes, failpoints=True)
            set_tier(nodes, store.as_uri())
            for node in nodes:
                _dial_proxies(node, nodes, fabric)
            create_data_dirs([node.config_path for node in nodes], os.environ)
            local.up(timeout_s=60.0)
            yield FaultyCluster(local, fabric, store, backups, folder / "shim")
        finally:
            with contextlib.suppress(Exception):
                local.down()
            fabric.close()


def _dial_proxies(node: NodeRecord, nodes: list[NodeRecord], fabric: Fabric) -> None:
    """The other nodes' addresses become those of the proxies on the edges to them."""
    text = node.config_path.read_text(encoding="utf-8")
    for other in nodes:
        if other.id != node.id:
            direct = f"id = {other.id}\nport = {other.peer_port}\n"
            assert direct in text
            text = text.replace(direct, f"id = {other.id}\nport = {fabric.ports[node.id, other.id]}\n")
    node.config_path.write_text(text, encoding="utf-8")


# --- what is said ----------------------------------------------------------------------------------------------------


def health(cluster: LiveCluster, node: int) -> Any:
    """/v1/health, healthy or not."""
    try:
        return cluster.ask(node, "/v1/health")
    except urllib.error.HTTPError as error:
        return json.load(error)


def findings(cluster: LiveCluster, node: int) -> Said:
    """At warning or above."""
    found = health(cluster, node)["findings"]
    return {(each["code"], each["object"]): each for each in found if each["severity"] != "info"}


def counted(cluster: LiveCluster, node: int) -> set[tuple[str, str]]:
    """Code and severity of what raftmq_findings counts, without info."""
    with urllib.request.urlopen(f"{cluster.admin(node)}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    pairs = re.findall(r'^raftmq_findings\{code="(\w+)",severity="(\w+)"\} [1-9]', text, re.MULTILINE)
    return {(code, severity) for code, severity in pairs if severity != "info"}


def roots(said: Said) -> set[Key]:
    """What nothing explains. Every chain of causes has to end at one of them."""
    found = {key for key, each in said.items() if each["because_of"] is None}
    for key, each in said.items():
        at = each
        for _ in said:
            if at["because_of"] is None:
                break
            cause = at["because_of"]["code"], at["because_of"]["object"]
            if cause not in said:  # a cause that is only info
                found.add(key)
                break
            at = said[cause]
    return found


def wait_for(cluster: LiveCluster, node: int, holds: Callable[[Said], bool], deadline: float) -> Said:
    """The node's findings as soon as that holds of them."""
    while not holds(said := findings(cluster, node)):
        assert time.monotonic() < deadline, f"node {node} says {list(said.values())}"
        time.sleep(0.3)
    return said


def calm(cluster: LiveCluster) -> None:
    """Waits until no node finds anything."""
    deadline = time.monotonic() + CLEARED_S
    for node in cluster.nodes:
        wait_for(cluster, node.id, lambda said: not said, deadline)


# --- faults ----------------------------------------------------------------------------------------------------------


@fault
def cut_link(cluster: FaultyCluster) -> Iterator[Planted]:
    """Between the leader and a follower, both ways; the third node reaches both."""
    leader, node = cluster.leader(), cluster.follower()
    pairs = cluster.fabric.between([leader], [node])
    cluster.fabric.cut(pairs)
    link = f"link {min(leader, node)}-{max(leader, node)}"
    try:
        yield Planted((("link_suspect", link),))
    finally:
        cluster.fabric.heal(pairs)


@fault
def damage(cluster: FaultyCluster) -> Iterator[Planted]:
    """A byte in each of a dozen closed segments of one node's log is another one. The scrub finds them; they are
    fetched from the other nodes without further ado."""
    node = cluster.follower()
    with connect(cluster.servers) as mq:
        for number in range(BIG_COUNT):
            mq.send("damaged", bytes([number]) * BIG, queue_id=0)
    cluster.wait_equal()
    folder = cluster.node(node).home / "data/log"
    for path in sorted(folder.glob("*.seg"), key=lambda path: int(path.stem))[-13:-1]:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 4)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    cluster.ask(node, "/v1/scrub", "POST")
    yield Planted((("log_damage", f"node {node}"),), alerts=frozenset({"RaftMQDamage"}))


@fault
def clock(cluster: FaultyCluster) -> Iterator[Planted]:
    """One node's wall clock is ahead. A preloaded library moves what the node's process reads."""
    node = cluster.follower()
    try:
        library = build_shim(cluster.shim)
    except ShimError as error:
        pytest.skip(str(error))
    disk = NodeDisk(cluster.node(node).home, cluster.shim / f"n{node}", library)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in disk.environment().items():
            patch.setenv(name, value)
        cluster.restart(node)
    calm(cluster)
    disk.set_clock(CLOCK_OFF_MS)
    try:
        yield Planted((("clock_off", f"node {node}"),))
        assert disk.skewed_readings > 0
    finally:
        disk.set_clock(0)


@fault
def tier_stuck(cluster: FaultyCluster) -> Iterator[Planted]:
    """The store refuses: where its directory was, there is a file."""
    leader, away = cluster.leader(), cluster.store.with_name("store-away")
    cluster.store.rename(away)
    cluster.store.write_text("not a directory")
    try:
        with connect(cluster.servers) as mq:
            mq.send("kept-in-the-tier", b"x")
        cluster.ask(leader, "/v1/tier/seal", "POST")
        yield Planted((("tier_stuck", f"node {leader}"),))
    finally:
        cluster.store.unlink()
        away.rename(cluster.store)


@fault
def hanging_node(cluster: FaultyCluster) -> Iterator[Planted]:
    """Its connections stay open until ha.housekeeping_interval_ms is over; it is named before that."""
    node = cluster.follower()
    os.kill(cluster.pid(node), signal.SIGSTOP)
    try:
        yield Planted((("node_down", f"node {node}"),), away=node, alerts=frozenset({"RaftMQNodeDown"}))
    finally:
        os.kill(cluster.pid(node), signal.SIGCONT)


@fault
def killed_node(cluster: FaultyCluster) -> Iterator[Planted]:
    """kill -9: no quorum margin is left."""
    node = cluster.follower()
    cluster.kill(node)
    try:
        follows = (("no_quorum_margin", "cluster"),)
        yield Planted((("node_down", f"node {node}"),), follows, node, frozenset({"RaftMQNodeDown"}))
    finally:
        cluster.heal()


@fault
def crash_loop(cluster: FaultyCluster) -> Iterator[Planted]:
    """Three starts after a kill."""
    node = cluster.follower()
    for _ in range(3):
        cluster.kill(node)
        cluster.restart(node)
    yield Planted((("crash_loop", f"node {node}"),), alerts=frozenset({"RaftMQUncleanRestart"}))


@fault
def slow_disk(cluster: FaultyCluster) -> Iterator[Planted]:
    """Each fdatasync of one node takes 600 ms longer."""
    node = cluster.follower()
    cluster.failpoint(node, "append.fdatasync", "delay:600ms")
    try:
        with connect(cluster.servers) as mq:
            for number in range(200):
                mq.send("slow-disk", str(number).encode())
        yield Planted((("failpoint_set", f"node {node}"),), (("disk_slow", f"node {node}"),))
    finally:
        cluster.failpoint(node, "append.fdatasync", "off")


@fault
def slow_disks(cluster: FaultyCluster) -> Iterator[Planted]:
    """All of them: it is no longer about a disk, what they share is slow."""
    nodes = [node.id for node in cluster.nodes]
    try:
        for node in nodes:
            cluster.failpoint(node, "append.fdatasync", "delay:600ms")
        with connect(cluster.servers) as mq:
            for number in range(20):
                mq.send("slow-disks", str(number).encode())
        why = tuple(("failpoint_set", f"node {node}") for node in nodes)
        yield Planted((("disk_slow", "cluster"), *why))
    finally:
        for node in nodes:
            cluster.failpoint(node, "append.fdatasync", "off")


@fault
def differing_setting(cluster: FaultyCluster) -> Iterator[Planted]:
    """One node's raftmq.toml says something else than the cluster's configuration."""
    node = cluster.follower()
    path = cluster.node(node).config_path
    before = path.read_text()
    assert "[retention]" not in before
    path.write_text(before + "\n[retention]\nhours = 5\n")
    try:
        cluster.ask(node, "/v1/config/reload", "POST")
        yield Planted((("config_differs", "setting retention.hours"),))
    finally:
        path.write_text(before)
        cluster.ask(node, "/v1/config/reload", "POST")


@fault
def group_without_consumers(cluster: FaultyCluster) -> Iterator[Planted]:
    """A consumer goes, and messages come."""
    with connect(cluster.servers) as mq:
        mq.send("unread", b"first")
        with mq.consumer("sleepers", "unread", max_wait_s=20, follow=False) as consumer:
            assert next(iter(consumer)).body == b"first"
        for number in range(5):
            mq.send("unread", str(number).encode())
        yield Planted((("group_without_consumers", "group sleepers"),))
        with mq.consumer("sleepers", "unread", max_wait_s=5, follow=False) as consumer:
            assert len(list(consumer)) >= 5


@fault
def stuck_queue(cluster: FaultyCluster) -> Iterator[Planted]:
    """Its consumer is connected, has one message in its hands and does not come back for the next."""
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("stuck", 1)
        for number in range(5):
            mq.send("stuck", str(number).encode())
        with mq.consumer("thinkers", "stuck", max_wait_s=5, follow=False) as consumer:
            messages = iter(consumer)
            assert next(messages).body == b"0"
            yield Planted((("queue_stuck", "queue stuck/0 of thinkers"),))
            assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]


@fault
def client_flood(cluster: FaultyCluster) -> Iterator[Planted]:
    """More than half of limits.connections_max."""
    node = cluster.node(cluster.follower())
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", node.broker_port), 5)))
        yield Planted((("client_flood", f"node {node.id}"),))


@fault
def failing_backup(cluster: FaultyCluster) -> Iterator[Planted]:
    """Its directory cannot be made; the next one goes where it can."""
    node = cluster.follower()
    cluster.ask(node, "/v1/backup", "POST", {"to": f"{NOT_TO_BE_WRITTEN}/backups"})
    yield Planted((("backup_failed", f"node {node}"),))
    cluster.ask(node, "/v1/backup", "POST", {"to": str(cluster.backups)})
