"""Foreign clients go on through kill -9 of the leader: what a producer was told is stored is on every replica, and a
consumer gets everything.

Foreign clients learn the new leader's address only from their own route poll, every 30 s, C++ also 3 s after its start.
So a client is struck at a random moment of a whole period after its first 10 s: earlier, that poll would hide what a
kill does. A send that fails is counted, not repeated: the client's own retries are what is looked at. A duplicate is
allowed after a kill (docs/adr/0011-duplicate-sends.md), a loss never.

RAFTMQ_COMPAT_KILLS=10 has as many producers of each kind struck, one after the other.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import raftmq
from cluster.config.local_layout import NodeRecord
from raftmq.local.cluster import LocalCluster
from tests.compat.background_sends import sending
from tests.compat.kills import killed
from tests.support.pace import at_most

KILLS = int(os.environ.get("RAFTMQ_COMPAT_KILLS", "1"))

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300 * KILLS)]

FOREIGN = ["cpp", "js", "java"]
QUEUES = 4
BEFORE = 300
AFTER = 300
PATIENCE_S = at_most(90)
YOUNG_S, POLL_S = 10.0, 30.0
REPEATS = {"cpp", "java", "java-newest"}
"""The clients that repeat a failed send at the name of another node (docs/adr/0010-broker-names.md)."""
FAILED_MAX = 5
"""Sends of such a client that may fail: one that waits for its route poll fails hundreds a second."""


def acknowledged(line: dict[str, Any]) -> bool:
    return "error" not in line


class Strike(NamedTuple):
    """The experience of one producer when the leader was killed."""

    after_s: float
    """Age of the producer."""
    gap_s: float
    """Longest time without an acknowledged send."""
    failed: int
    lost: int
    extra: int
    """Stored twice."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_producer_outlives_the_leader(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    tell: Callable[[str], None],
    chance: random.Random,
    kind: str,
) -> None:
    strikes = []
    for number in range(KILLS):
        topic = f"{kind}-failover-{number}"
        mq.admin.create_topic(topic, QUEUES)
        arguments = ("--group", topic, "--pace-ms", "2", "--prefix", kind)
        strikes.append(strike_leader(live, mq, start(kind, "produce", topic, *arguments), topic, chance))
        tell(f"{kind}: {strikes[-1]}")
    gaps = sorted(strike.gap_s for strike in strikes)
    tell(
        f"{kind}: longest time without an acknowledged send in {KILLS} kills: {gaps[-1]:.2f} s (median "
        f"{gaps[KILLS // 2]:.2f} s); sends that failed: {[strike.failed for strike in strikes]}"
    )
    assert sum(strike.lost for strike in strikes) == 0, "acknowledged and lost"
    if kind in REPEATS:
        assert max(strike.failed for strike in strikes) <= FAILED_MAX, "it waited for its route poll"


def strike_leader(live: LocalCluster, mq: raftmq.Client, client: Any, topic: str, chance: random.Random) -> Strike:
    """kill -9 of the leader under a producer that is old enough; the node is back at the end."""
    client.wait("send", BEFORE)
    age_s = chance.uniform(YOUNG_S, YOUNG_S + POLL_S)
    time.sleep(max(0.0, client.lines("send")[0]["started"] + age_s - time.time()))
    leader = live.wait_leader()
    with killed(live, leader) as moment:
        client.wait("send", AFTER, PATIENCE_S, lambda line: acknowledged(line) and line["started"] > moment)
        client.finish()
    sends = client.lines("send")
    acks = [line for line in sends if acknowledged(line)]
    copies = {node.id: read_replica(mq, node, topic) for node in live.nodes}
    stored = copies[leader]
    assert all(copy == stored for copy in copies.values()), "replicas differ"
    return Strike(
        round(age_s, 1),
        round(longest_gap_s(acks), 2),
        len(sends) - len(acks),
        sum(line["key"] not in stored for line in acks),
        sum(count - 1 for count in stored.values()),
    )


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_consumer_outlives_the_leader(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    tell: Callable[[str], None],
    chance: random.Random,
    kind: str,
) -> None:
    """Our client sends on; a foreign consumer reads on, at the latest after its next route poll."""
    topic, group = f"{kind}-reads-on", f"{kind}-reads-on-readers"
    mq.admin.create_topic(topic, QUEUES)
    client = start(kind, "consume", topic, "--group", group)
    client.wait("ready")
    with sending(mq, topic) as sent:
        client.wait("message", BEFORE)
        time.sleep(chance.uniform(YOUNG_S, YOUNG_S + POLL_S))
        leader = live.wait_leader()
        with killed(live, leader):
            late = f"after-{kind}"
            mq.send(topic, b"late", key=late, tag="t", properties={"shade": "s"})
            client.wait("message", 1, PATIENCE_S, lambda line: line["key"] == late)
    for future in sent.values():
        future.result()
    keys = {*sent, late}
    got = wait_for_keys(client, keys)
    times = [line["at"] for line in client.lines("message")]
    gap = max(later - earlier for earlier, later in pairwise(times))
    tell(
        f"{kind}: {gap:.2f} s without a message after kill -9 of node {leader}; {len(keys)} sent, "
        f"{len(keys - got.keys())} missing, {sum(got.values()) - len(got)} delivered twice"
    )
    assert keys == got.keys()
    client.finish()


def wait_for_keys(client: Any, keys: set[str]) -> Counter[str]:
    """key -> how often it was delivered, once all are there or nothing came for long."""
    count = len(keys)
    while True:
        lines = client.wait("message", count, PATIENCE_S)
        got = Counter(line["key"] for line in lines)
        if keys <= got.keys():
            return got
        count = len(lines) + 1  # some of them came twice


def longest_gap_s(acks: list[dict[str, Any]]) -> float:
    """The longest time between two acknowledgements."""
    return max(float(later["ended"] - earlier["ended"]) for earlier, later in pairwise(acks))


def read_replica(mq: raftmq.Client, node: NodeRecord, topic: str) -> Counter[str]:
    """key -> how often one node has it, read up to the leader's end, without any dedup."""
    address = f"127.0.0.1:{node.broker_port}"
    keys: Counter[str] = Counter()
    for queue in range(QUEUES):
        offset, end = 0, mq.admin.max_offset(topic, queue)
        while offset < end:
            result = mq.pull(topic, queue, offset, node=address, wait_s=5)
            assert result.messages, f"node {node.id} has queue {queue} up to {offset}, the leader up to {end}"
            keys.update(str(message.key) for message in result.messages)
            offset = result.next_offset
    return keys
