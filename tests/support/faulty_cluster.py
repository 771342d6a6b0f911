"""Three live nodes with lowered thresholds that faults are planted in, and what they say is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import plan_nodes, set_tier, write_configs
from jepsen_like.live.subjects.proxy import Fabric
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most

CLEARED_S = at_most(90)
LOWERED = {
    "RAFTMQ_HEALTH__GROUP_IDLE_MS": "1000",
    "RAFTMQ_HEALTH__QUEUE_STUCK_MS": "4000",
    "RAFTMQ_HEALTH__CONNECTIONS_PERCENT": "50",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_ENTRIES": "20",
    "RAFTMQ_HEALTH__FOLLOWER_BEHIND_MS": "1000",
    "RAFTMQ_HEALTH__CRASH_LOOP_MS": "30000",
    "RAFTMQ_HEALTH__TIER_STUCK_MS": "3000",
    "RAFTMQ_CONSISTENCY__DIGEST_EVERY_MS": "2000",
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
NOT_TO_BE_WRITTEN = "/proc"
"""Not even by root."""

Key = tuple[str, str]
"""Code and object of a finding."""
Said = dict[Key, Any]


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
            local.up(timeout_s=at_most(60))
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
    """Returns the node's findings at warning or above."""
    found = health(cluster, node)["findings"]
    return {(each["code"], each["object"]): each for each in found if each["severity"] != "info"}


def counted(cluster: LiveCluster, node: int) -> set[tuple[str, str]]:
    """Code and severity of what raftmq_findings counts, without info."""
    with urllib.request.urlopen(f"{cluster.admin(node)}/metrics", timeout=at_most(10)) as reply:
        text = reply.read().decode()
    pairs = re.findall(r'^raftmq_findings\{code="(\w+)",severity="(\w+)"\} [1-9]', text, re.MULTILINE)
    return {(code, severity) for code, severity in pairs if severity != "info"}


def roots(said: Said) -> set[Key]:
    """Returns the findings that nothing explains. Every chain of causes has to end at one of them."""
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
