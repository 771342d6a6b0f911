"""Java push consumers whose name server address is the broker's port read on seconds after kill -9 of the leader, and
not at their next route poll (docs/adr/0055-early-routes.md).

RAFTMQ_COMPAT_KILLS=10 has as many leaders killed, one after the other.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.compat.background_sends import sending
from tests.compat.kills import killed

KILLS = int(os.environ.get("RAFTMQ_COMPAT_KILLS", "1"))

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120 + 120 * KILLS)]

QUEUES = 4
POLL_S = 30.0
GAP_MAX_S = 12.0
"""Seconds without a message: a failover, a call and a retry take 5 s; the limit is far below the route poll."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own, with early routes."""
    made = LocalCluster(tmp_path_factory.mktemp("early") / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_CLUSTER__EARLY_ROUTES", "true")
        made.up(3, free_base_port(12))
    yield made
    made.down()


@pytest.fixture(scope="module")
def mq(live: LocalCluster) -> Iterator[raftmq.Client]:
    """Our own client."""
    with raftmq.connect(live.servers) as client:
        yield client


def wait_past(client: Any, moment: float) -> None:
    """Waits until a message came after this time."""
    client.wait("message", 1, 2 * POLL_S, lambda line: line["at"] > moment)


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_a_consumer_asks_for_its_routes_when_the_leader_is_dead(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    tell: Callable[[str], None],
    chance: random.Random,
    kind: str,
) -> None:
    topic = f"{kind}-early"
    mq.admin.create_topic(topic, QUEUES)
    servers = ";".join(f"127.0.0.1:{node.broker_port}" for node in live.nodes)
    client = start(kind, "consume", topic, "--group", f"{topic}-readers", servers=servers)
    client.wait("ready")
    gaps = []
    with sending(mq, topic, every_s=0.02):
        client.wait("message", 100)
        for _ in range(KILLS):
            time.sleep(POLL_S + 5 + chance.uniform(0, POLL_S))  # its route of the retry topic is one without brokers
            leader = live.wait_leader()
            with killed(live, leader) as moment:
                wait_past(client, moment + GAP_MAX_S)
            times = [line["at"] for line in client.lines("message") if line["at"] > moment - 5]
            gaps.append(max(later - earlier for earlier, later in pairwise(times)))
            tell(f"{kind}: {gaps[-1]:.2f} s without a message after kill -9 of node {leader}")
    client.finish()
    assert max(gaps) < GAP_MAX_S, "it waited for its route poll"


def test_what_fails_comes_again_to_a_consumer_that_has_not_got_the_retry_queue(
    live: LocalCluster, mq: raftmq.Client, start: Callable[..., Any], tell: Callable[[str], None]
) -> None:
    """Its first route of the retry topic, after its first heartbeat, is one without brokers. (Java 5.5 has none at all
    before its first poll.)"""
    topic = "java-again"
    mq.admin.create_topic(topic, QUEUES)
    servers = ";".join(f"127.0.0.1:{node.broker_port}" for node in live.nodes)
    client = start("java", "consume", topic, "--group", f"{topic}-readers", "--fail", "1", servers=servers)
    client.wait("ready")
    time.sleep(5)
    mq.send(topic, b"m", key="k")
    first, second = client.wait("message", 2, 2 * POLL_S)
    assert (first["tried"], second["tried"]) == (0, 1)
    tell(f"again after {second['at'] - first['at']:.2f} s (level 3 is 10 s)")
    client.finish()
