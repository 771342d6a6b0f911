"""Faults that are made for real on three live nodes, each with the findings that it has to cause.

`FAULTS` holds those that a cluster of `faulty_cluster` can have; what a disk of its own is needed for is in
tests/support/small_disk_nodes.py. The table of all is in docs/internals/planted-faults.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pytest

from jepsen_like.live.harm.power import NodeDisk, build_shim
from raftmq.client import connect
from raftmq.local.process import stop_nodes
from tests.support.faulty_cluster import NOT_TO_BE_WRITTEN, FaultyCluster, Key, calm
from tests.support.spoiled_rows import spoil_sums

NAMED_S = 15.0
BIG, BIG_COUNT = 500_000, 28
"""Two messages of this size fill a segment."""
CLOCK_OFF_MS = 5_000


class Planted(NamedTuple):
    """The findings that have to be found."""

    causes: tuple[Key, ...]
    """The planted causes; nothing explains these."""
    follows: tuple[Key, ...] = ()
    """Consequences that are named as well."""
    away: int = 0
    """A node that cannot be asked."""
    alerts: frozenset[str] = frozenset()
    """Rules that must fire besides those that show each finding."""


Plant = Callable[[FaultyCluster], AbstractContextManager[Planted]]
FAULTS: dict[str, Plant] = {}


def fault(plant: Callable[[FaultyCluster], Iterator[Planted]]) -> Plant:
    """Enter: it is planted; leave: it is repaired, whatever happened meanwhile."""
    FAULTS[plant.__name__] = made = contextmanager(plant)
    return made


@contextmanager
def _cut(cluster: FaultyCluster, node: int, *others: int) -> Iterator[tuple[Key, ...]]:
    """The links between a node and others, both ways; the findings about them."""
    pairs = cluster.fabric.between([node], others)
    cluster.fabric.cut(pairs)
    try:
        yield tuple(("link_suspect", f"link {min(node, other)}-{max(node, other)}") for other in others)
    finally:
        cluster.fabric.heal(pairs)


@contextmanager
def _isolated(cluster: FaultyCluster, node: int) -> Iterator[Planted]:
    """Both links of a node are cut."""
    others = [each.id for each in cluster.nodes if each.id != node]
    with _cut(cluster, node, *others) as links:
        yield Planted(links, (("no_leader", f"node {node}"),))


@contextmanager
def _hanging(cluster: FaultyCluster, node: int) -> Iterator[Planted]:
    """SIGSTOP."""
    os.kill(cluster.pid(node), signal.SIGSTOP)
    try:
        yield _down(node)
    finally:
        os.kill(cluster.pid(node), signal.SIGCONT)


@contextmanager
def _killed(cluster: FaultyCluster, node: int) -> Iterator[Planted]:
    """kill -9."""
    cluster.kill(node)
    try:
        yield _down(node)
    finally:
        cluster.heal()


def _down(node: int) -> Planted:
    """The node cannot be asked, and no quorum margin is left."""
    follows = (("no_quorum_margin", "cluster"),)
    return Planted((("node_down", f"node {node}"),), follows, node, frozenset({"RaftMQNodeDown"}))


# --- faults ----------------------------------------------------------------------------------------------------------


@fault
def cut_link(cluster: FaultyCluster) -> Iterator[Planted]:
    """Between the leader and a follower, both ways; the third node reaches both."""
    node = cluster.follower()
    with _cut(cluster, node, cluster.leader()) as links:
        yield Planted(links, (("no_leader", f"node {node}"), ("no_quorum_margin", "cluster")))


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
    library = build_shim(cluster.shim)
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
    """SIGSTOP: its connections stay open until ha.housekeeping_interval_ms is over; it is named before that, and so is
    the margin that is gone."""
    with _hanging(cluster, cluster.follower()) as planted:
        yield planted


@fault
def killed_node(cluster: FaultyCluster) -> Iterator[Planted]:
    """kill -9: no quorum margin is left."""
    with _killed(cluster, cluster.follower()) as planted:
        yield planted


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


# --- variants of these, and one more ---------------------------------------------------------------------------------


@fault
def cut_link_of_followers(cluster: FaultyCluster) -> Iterator[Planted]:
    """The leader reaches both, so nothing but the link is wrong."""
    leader = cluster.leader()
    one, other = [node.id for node in cluster.nodes if node.id != leader]
    with _cut(cluster, one, other) as links:
        yield Planted(links)


@fault
def isolated_node(cluster: FaultyCluster) -> Iterator[Planted]:
    """Both links of a follower are cut. It answers over HTTP, so it is not down: it is cut off."""
    with _isolated(cluster, cluster.follower()) as planted:
        yield planted


@fault
def isolated_leader(cluster: FaultyCluster) -> Iterator[Planted]:
    """The same for the leader: the other two elect one of them."""
    with _isolated(cluster, cluster.leader()) as planted:
        yield planted


@fault
def hanging_leader(cluster: FaultyCluster) -> Iterator[Planted]:
    """SIGSTOP; the other two elect one of them."""
    with _hanging(cluster, cluster.leader()) as planted:
        yield planted


@fault
def killed_leader(cluster: FaultyCluster) -> Iterator[Planted]:
    """kill -9."""
    with _killed(cluster, cluster.leader()) as planted:
        yield planted


@fault
def wrong_rows(cluster: FaultyCluster) -> Iterator[Planted]:
    """A follower's rows differ from the others': the next digest shows it. A restart fetches the rows from a peer and
    says so until the next one."""
    node = cluster.follower()
    with connect(cluster.servers) as mq:
        mq.send("compared", b"before")
    cluster.wait_equal()
    stop_nodes([cluster.node(node)])
    spoil_sums(cluster.node(node).home / "data")
    cluster.restart(node)
    with connect(cluster.servers) as mq:
        mq.send("compared", b"after")
    try:
        yield Planted((("fenced", f"node {node}"),))
    finally:
        cluster.restart(node)
        cluster.restart(node)
