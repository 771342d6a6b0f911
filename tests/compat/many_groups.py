"""Clusters of several groups of brokers as foreign clients see them."""

from __future__ import annotations

import pytest

from cluster.config.local_layout import groups_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import number_of
from tests.support.pace import at_most

QUEUES = 3
"""Queues of a topic in each group."""


SIZES = {"2x1": (2, 1), "2x3": (2, 3), "4x1": (4, 1)}
"""Groups, and nodes in each."""


def make_cluster(factory: pytest.TempPathFactory, groups: int, nodes: int) -> LocalCluster:
    """Starts a cluster, and waits longer than an operator would: many processes start at once."""
    made = LocalCluster(factory.mktemp("groups") / "data")
    made.up(nodes, free_base_port(4 * groups * nodes), groups=groups, timeout_s=at_most(60))
    return made


def patient(kind: str) -> tuple[str, ...]:
    """Returns the arguments with which a client waits long enough for its first answers on a busy machine."""
    return ("--timeout-ms", str(int(at_most(3) * 1000))) if kind.startswith("java") else ()


def queues_of(live: LocalCluster) -> list[int]:
    """Returns the numbers of all queues of a topic."""
    return [number_of(group, queue) for group in groups_of(live.nodes) for queue in range(QUEUES)]


def slots_of(live: LocalCluster) -> int:
    """Returns the number of aliases of each group."""
    return len(live.first_nodes)
