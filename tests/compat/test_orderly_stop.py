"""A leader that is drained for a while before it stops: consumers move at their route poll, and none waits.

Without that time a consumer stands still until its next route poll, as after a kill, up to 30 s later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import drain_node
from raftmq.local.process import stop_nodes
from tests.compat.background_sends import sending

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

QUEUES = 4
GRACE_S = 35.0
DOWN_S = 12.0
"""Seconds that the node stays down: a client that waits for it would show."""
GAP_MAX_S = 8.0
"""Seconds without a message: far above what a failover or a retry takes (3 s), far below the route poll."""


def stop_leader(live: LocalCluster, grace_s: float) -> tuple[int, float]:
    """(node, when it was stopped); it is back at the end."""
    leader = live.wait_leader()
    if grace_s:
        drain_node(leader, [f"127.0.0.1:{node.admin_port}" for node in live.nodes])
        time.sleep(grace_s)
    stopped = time.time()
    stop_nodes([node for node in live.nodes if node.id == leader])
    time.sleep(DOWN_S)
    live.restart(leader)
    live.wait_ready()
    return leader, stopped


@pytest.mark.parametrize("grace_s", [GRACE_S, 0.0], ids=["grace", "at-once"])
@pytest.mark.parametrize("kind", ["cpp", "js", "java", "java-newest"])
def test_a_consumer_reads_on_while_the_leader_stops(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    tell: Callable[[str], None],
    chance: random.Random,
    kind: str,
    grace_s: float,
) -> None:
    topic, group = f"{kind}-stop-{grace_s:.0f}", f"{kind}-stop-{grace_s:.0f}-readers"
    mq.admin.create_topic(topic, QUEUES)
    client = start(kind, "consume", topic, "--group", group)
    client.wait("ready")
    with sending(mq, topic, every_s=0.02):
        client.wait("message", 100)
        time.sleep(chance.uniform(10.0, 40.0) if not grace_s else 10.0)
        leader, stopped = stop_leader(live, grace_s)
        client.wait("message", 1, 60.0, lambda line: line["at"] > stopped + DOWN_S)
    times = [line["at"] for line in client.lines("message")]
    gap = max(later - earlier for earlier, later in pairwise(times))
    tell(f"{kind}: {gap:.2f} s without a message when leader {leader} stopped after {grace_s:.0f} s of grace")
    client.finish()
    assert not grace_s or gap < GAP_MAX_S, "it waited for its route poll"
