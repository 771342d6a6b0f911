"""Faults made for real on three nodes: each is named within 15 s by every node that answers, nothing else is but its
consequences, the metrics agree, and it clears after the repair.

Thresholds that are lowered for it: see LOWERED. A clock that is off, damage, backups and a full disk are planted in
tests of their own: they need another clock, a changed file, a full directory, a small file system
(tests/cluster/retention/test_full_disk_live.py).
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.live_nodes import LiveCluster

pytestmark = [pytest.mark.live, pytest.mark.slow]
NAMED_S, CLEARED_S = 15.0, 90.0
LOWERED = {
    "RAFTMQ_HEALTH__GROUP_IDLE_MS": "1000",
    "RAFTMQ_HEALTH__QUEUE_STUCK_MS": "4000",
    "RAFTMQ_HEALTH__CONNECTIONS_PERCENT": "50",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_ENTRIES": "20",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_MS": "1000",
    "RAFTMQ_HEALTH__CRASH_LOOP_MS": "30000",
    "RAFTMQ_LIMITS__CONNECTIONS_MAX": "120",
    "RAFTMQ_HA__SEND_HEARTBEAT_INTERVAL_MS": "500",
    "RAFTMQ_LOG__SLOW_APPEND_MS": "400",
}
Key = tuple[str, str]
Said = dict[Key, Any]
NOT_TO_BE_WRITTEN = "/proc"
"""Not even by root."""


def backups_of(local: LocalCluster) -> Path:
    """Where the nodes may put backups."""
    return local.data.with_name("backups")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster with LOWERED thresholds and failpoints."""
    local = LocalCluster(tmp_path_factory.mktemp("faults"))
    roots = f"{NOT_TO_BE_WRITTEN};{backups_of(local)}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (LOWERED | {"RAFTMQ_BACKUP__ROOTS": roots}).items():
            patch.setenv(name, value)
        try:
            local.up(3, free_base_port(12), failpoints=True)
            yield LiveCluster(local)
        finally:
            with contextlib.suppress(Exception):
                local.down()


def findings(cluster: LiveCluster, node: int) -> Said:
    """At warning or above."""
    try:
        body = cluster.ask(node, "/v1/health")
    except urllib.error.HTTPError as error:
        body = json.load(error)
    return {(each["code"], each["object"]): each for each in body["findings"] if each["severity"] != "info"}


def wait_for(cluster: LiveCluster, node: int, holds: Callable[[Said], bool], patience_s: float) -> Said:
    deadline = time.monotonic() + patience_s
    while not holds(said := findings(cluster, node)):
        assert time.monotonic() < deadline, said
        time.sleep(0.3)
    return said


def alive(cluster: LiveCluster, away: int = 0) -> list[int]:
    return [node.id for node in cluster.nodes if node.id != away]


def follower(cluster: LiveCluster) -> int:
    leader = cluster.leader()
    return next(node.id for node in cluster.nodes if node.id != leader)


@contextlib.contextmanager
def planted(cluster: LiveCluster, *causes: Key, away: int = 0, faults: int = 1) -> Iterator[None]:
    """Enter with all well; plant the fault before; on the way out it is repaired, and everything clears. The last
    `faults` of the causes are what was planted, the others follow from them."""
    for node in alive(cluster, away):
        said = wait_for(cluster, node, lambda said: set(causes) <= set(said), NAMED_S)
        explained = {key for key, each in said.items() if each["because_of"] is not None}
        assert set(said) - explained == set(causes[-faults:]), "nothing but the fault and its consequences"
        with urllib.request.urlopen(f"{cluster.admin(node)}/metrics", timeout=10) as reply:
            counted = set(re.findall(r'raftmq_findings\{code="(\w+)"', reply.read().decode()))
        assert {code for code, _ in causes} <= counted
    yield
    for node in alive(cluster):
        wait_for(cluster, node, lambda said: not said, CLEARED_S)


def calm(cluster: LiveCluster) -> None:
    for node in alive(cluster):
        wait_for(cluster, node, lambda said: not said, CLEARED_S)


def pid_of(cluster: LiveCluster, node: int) -> int:
    pid = next(each.pid for each in cluster.nodes if each.id == node)
    assert pid is not None
    return pid


def test_a_node_that_hangs(cluster: LiveCluster) -> None:
    """Its connections stay open until ha.housekeeping_interval_ms is over; it is named before that."""
    calm(cluster)
    node = follower(cluster)
    os.kill(pid_of(cluster, node), signal.SIGSTOP)
    try:
        with planted(cluster, ("node_down", f"node {node}"), away=node):
            os.kill(pid_of(cluster, node), signal.SIGCONT)
    finally:
        os.kill(pid_of(cluster, node), signal.SIGCONT)


def test_a_disk_that_is_slow_on_purpose(cluster: LiveCluster) -> None:
    calm(cluster)
    node = follower(cluster)
    about = f"node {node}"
    cluster.failpoint(node, "append.fdatasync", "delay:600ms")
    with connect(cluster.servers) as mq:
        for number in range(200):
            mq.send("slow-disk", str(number).encode())
    try:
        with planted(cluster, ("disk_slow", about), ("failpoint_set", about)):
            cluster.failpoint(node, "append.fdatasync", "off")
    finally:
        cluster.failpoint(node, "append.fdatasync", "off")


def test_a_setting_that_differs(cluster: LiveCluster) -> None:
    calm(cluster)
    node = follower(cluster)
    path = next(each.config_path for each in cluster.nodes if each.id == node)
    before = path.read_text()
    path.write_text(before + "\n[retention]\nhours = 5\n" if "[retention]" not in before else before)
    try:
        cluster.ask(node, "/v1/config/reload", "POST")
        with planted(cluster, ("config_differs", "setting retention.hours")):
            path.write_text(before)
            cluster.ask(node, "/v1/config/reload", "POST")
    finally:
        path.write_text(before)


def test_a_group_that_nobody_consumes(cluster: LiveCluster) -> None:
    calm(cluster)
    with connect(cluster.servers) as mq:
        mq.send("unread", b"first")
        with mq.consumer("sleepers", "unread", max_wait_s=20, follow=False) as consumer:
            assert next(iter(consumer)).body == b"first"
        for number in range(5):
            mq.send("unread", str(number).encode())
        with (
            planted(cluster, ("group_without_consumers", "group sleepers")),
            mq.consumer("sleepers", "unread", max_wait_s=5, follow=False) as consumer,
        ):
            assert len(list(consumer)) >= 5


def test_a_flood_of_clients(cluster: LiveCluster) -> None:
    calm(cluster)
    node = next(each for each in cluster.nodes if each.id == follower(cluster))
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", node.broker_port), 5)))
        with planted(cluster, ("client_flood", f"node {node.id}")):
            stack.close()


def test_a_crash_loop(cluster: LiveCluster) -> None:
    calm(cluster)
    node = follower(cluster)
    for _ in range(3):
        cluster.kill(node)
        cluster.restart(node)
    with planted(cluster, ("crash_loop", f"node {node}")):
        pass


def test_a_node_that_is_killed_leaves_no_margin(cluster: LiveCluster) -> None:
    calm(cluster)
    node = follower(cluster)
    cluster.kill(node)
    try:
        with planted(cluster, ("no_quorum_margin", "cluster"), ("node_down", f"node {node}"), away=node):
            cluster.restart(node)
    finally:
        cluster.heal()


def test_all_disks_are_slow(cluster: LiveCluster) -> None:
    """It is no longer about a disk: what they share is slow."""
    calm(cluster)
    nodes = alive(cluster)
    try:
        for node in nodes:
            cluster.failpoint(node, "append.fdatasync", "delay:600ms")
        with connect(cluster.servers) as mq:
            for number in range(20):
                mq.send("slow-disks", str(number).encode())
        why = [("failpoint_set", f"node {node}") for node in nodes]
        with planted(cluster, ("disk_slow", "cluster"), *why, faults=1 + len(why)):
            for node in nodes:
                cluster.failpoint(node, "append.fdatasync", "off")
    finally:
        for node in nodes:
            cluster.failpoint(node, "append.fdatasync", "off")


def test_a_queue_that_is_stuck(cluster: LiveCluster) -> None:
    """Its consumer is connected, has one message in its hands and does not come back for the next."""
    calm(cluster)
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("stuck", 1)
        for number in range(5):
            mq.send("stuck", str(number).encode())
        with contextlib.ExitStack() as stack:
            messages = iter(stack.enter_context(mq.consumer("thinkers", "stuck", max_wait_s=5, follow=False)))
            assert next(messages).body == b"0"
            with planted(cluster, ("queue_stuck", "queue stuck/0 of thinkers")):
                assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]
                stack.close()


def test_a_backup_that_fails(cluster: LiveCluster) -> None:
    """Its directory cannot be made; the next one goes where it can."""
    calm(cluster)
    node = follower(cluster)
    cluster.ask(node, "/v1/backup", "POST", {"to": f"{NOT_TO_BE_WRITTEN}/backups"})
    with planted(cluster, ("backup_failed", f"node {node}")):
        cluster.ask(node, "/v1/backup", "POST", {"to": str(backups_of(cluster.local))})
