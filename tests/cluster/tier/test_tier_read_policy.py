"""The source of messages that both this node and the tier have (`tier.read`): the same messages at every level."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace

from cluster.broker.reads.tier_read_policy import FORCE, LEVELS, NOT_IN_DISK, NOT_IN_MEM, PAUSE_MS
from jepsen_like.sim.machines.tier_store import AWAY, CALM
from tests.support.sim_cluster import SimNode
from tests.support.tier_pulls import FOUND, NOT_MATCHED, pull, queues
from tests.support.tiered_cluster import Tiered


@pytest.fixture
def made() -> Iterator[Tiered]:
    """Nodes that have every message, and the tier those of the closed segments."""
    with Tiered(2600000) as tiered:
        tiered.send(100)
        tiered.upload_all()
        tiered.sim.settle()
        yield tiered


def set_level(node: SimNode, level: str, hot_percent: int = 40) -> None:
    config = node.running.config
    tier = replace(config.tier, read=level)
    modes = replace(config.modes, access_message_in_memory_max_ratio=hot_percent)
    node.run(node.running.reloading.put_in_force, replace(config, tier=tier, modes=modes))


def set_topic_level(made: Tiered, level: str) -> None:
    made.sim.create_topic("t", attributes={"tier.read": level})


def from_tier(node: SimNode) -> int:
    """Bytes of messages that the node has read from the tier."""
    access = node.running.serving.tier_access
    assert access is not None
    return access.reading.log.counts.served_bytes


def read_all(made: Tiered, node: SimNode, **fields: object) -> dict[int, bytes]:
    """Queue -> its messages, as a consumer gets them that begins at 0."""
    found: dict[int, bytes] = {}
    for _, queue_id in queues(made):
        at, got = 0, [b""]
        while True:
            answer = pull(made, node, queue_id, at, **fields)
            assert answer.code in (FOUND, NOT_MATCHED), answer
            got.append(answer.body)
            at = answer.next_offset
            if at == answer.max_offset:
                break
        found[queue_id] = b"".join(got)
    return found


def test_messages_are_the_same_at_every_level(made: Tiered) -> None:
    for node in made.sim.running:
        wanted = read_all(made, node)
        assert sum(map(len, wanted.values())) > 100_000
        assert from_tier(node) == 0
        for level, hot_percent, reads_tier in ((NOT_IN_MEM, 200, False), (NOT_IN_MEM, 40, True), (FORCE, 200, True)):
            set_level(node, level, hot_percent)
            before = from_tier(node)
            assert read_all(made, node) == wanted
            assert (from_tier(node) > before) == reads_tier
            for fields in ({"subscription": "other"}, {"subscription": "a > 5", "expressionType": "SQL92"}):
                assert not any(read_all(made, node, **fields).values())


def test_only_verified_segments_are_read_there(made: Tiered) -> None:
    made.send(3)
    made.sim.settle()
    node = made.sim.leader()
    set_level(node, FORCE)
    served = from_tier(node)
    for topic_id, queue_id in queues(made):
        high = node.state.max_offset(topic_id, queue_id)
        items = node.state.fetch(topic_id, queue_id, 0, high)
        assert all(one.position < other.position for one, other in pairwise(items))
        tiered = sum(item.size for item in items if item.position < made.verified())
        assert 0 < tiered < sum(item.size for item in items)
        served += tiered
    read_all(made, node)
    assert from_tier(node) == served


def test_a_topic_has_a_level_of_its_own(made: Tiered) -> None:
    node = made.sim.leader()
    set_topic_level(made, FORCE)
    wanted = read_all(made, node)
    first = from_tier(node)
    assert first > 0
    set_level(node, FORCE)
    set_topic_level(made, NOT_IN_DISK)
    assert read_all(made, node) == wanted
    assert from_tier(node) == first
    set_topic_level(made, "of another release")  # the cluster's counts
    assert read_all(made, node) == wanted
    assert from_tier(node) > first


def test_a_store_that_is_away_costs_no_message_and_is_left_alone_for_a_while(made: Tiered) -> None:
    node = made.sim.leader()
    wanted = read_all(made, node)
    set_level(node, FORCE)
    made.store.weather = AWAY
    assert read_all(made, node) == wanted
    assert from_tier(node) == 0
    made.store.weather = CALM
    made.sim.loop.run_for(PAUSE_MS / 1000 + 1)
    assert read_all(made, node) == wanted
    assert from_tier(node) > 0


def test_damage_in_the_tier_is_answered_from_the_log(made: Tiered) -> None:
    node = made.sim.leader()
    wanted = read_all(made, node)
    objects = made.store.inner.objects
    for name in list(objects):
        if "/index/" in name or "/log/" in name:
            objects[name] = bytes(len(objects[name]))
    set_level(node, FORCE)
    assert read_all(made, node) == wanted


def test_the_names_are_those_of_the_configuration(made: Tiered) -> None:
    for level in LEVELS:
        set_level(made.sim.leader(), level)
        assert made.sim.leader().running.config.tier.read == level
