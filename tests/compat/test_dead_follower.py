"""A Java producer that chooses queues itself goes on while a follower is dead: its name leads to a living node.

Such a send is not repeated by the client, so what goes to the dead node's name fails until the client's next route poll
(30 s). From then on none does, and each message is in the queue that it would have been in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.kills import killed

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

QUEUES = 4
POLL_S = 31.0
"""A client's route poll is 30 s away at most."""
AFTER_S = 15.0


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_chosen_queues_are_reached_while_a_follower_is_dead(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    tell: Callable[[str], None],
    chance: random.Random,
    kind: str,
) -> None:
    topic = f"{kind}-chosen"
    mq.admin.create_topic(topic, QUEUES)
    client = start(kind, "produce", topic, "--group", topic, "--pace-ms", "5", "--prefix", kind, "--select")
    client.wait("send", 100)
    time.sleep(chance.uniform(0, POLL_S))
    leader = live.wait_leader()
    dead = chance.choice([node.id for node in live.nodes if node.id != leader])
    with killed(live, dead) as moment:
        time.sleep(POLL_S + AFTER_S)
        client.finish()

    sends = client.lines("send")
    failed = [line for line in sends if "error" in line]
    early = [line for line in failed if line["started"] <= moment + POLL_S]
    late = [line for line in sends if line["started"] > moment + POLL_S]
    slowest = max((line["ended"] - line["started"] for line in early), default=0.0)
    last = max((line["started"] - moment for line in failed), default=0.0)
    tell(
        f"{kind}: node {dead} killed; {len(early)} of {len(sends) - len(late)} sends failed until 31 s after, the last "
        f"after {last:.1f} s, the slowest in {slowest:.2f} s; from then on {len(failed) - len(early)} of {len(late)}"
    )
    assert late
    assert len(failed) == len(early), "failed after the client's route poll"
    assert {line["broker"].rpartition("-")[2] for line in failed} <= {str(dead)}
    assert [line for line in failed if line["ended"] - line["started"] >= 1.0] == []
    stored = [(int(line["key"].rpartition("-")[2]), line["queue_id"]) for line in sends if "error" not in line]
    assert [row for row in stored if row[0] % QUEUES != row[1]] == [], "a queue depends on where its name leads"
