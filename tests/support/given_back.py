"""Every test with live nodes ends with no bytes in flight: a figure that stays would refuse sends one day."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.config.local_layout import NodeName
from jepsen_like.live.probes.bytes_in_flight import wait_given_back
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import is_running


def left_behind(cluster: LocalCluster) -> list[str]:
    """Returns a line for each node that counts bytes in flight; nothing if a node does not run, for then nobody may
    lead, and what is proposed stays undecided."""
    nodes = cluster.nodes
    if not nodes or not all(is_running(node) for node in nodes):
        return []
    with ThreadPoolExecutor(1) as thread:  # the test may be in an event loop
        return thread.submit(asyncio.run, wait_given_back(nodes)).result()


@pytest.fixture(scope="session", autouse=True)
def nothing_in_flight_at_the_end() -> Iterator[None]:
    """Looks at the nodes before they are ended."""
    down = LocalCluster.down

    def looked_at(cluster: LocalCluster) -> list[NodeName]:
        left = left_behind(cluster) if (cluster.data / "cluster.json").exists() else []
        ended = down(cluster)
        assert left == []
        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "down", looked_at)
        yield
