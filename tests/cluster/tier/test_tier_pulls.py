"""Consumers of three whole nodes read from offset zero to the end while the beginning is only in the tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.groups.group_lag import each_lag
from cluster.tier.fetch.errors import RETRY_MAX_S
from jepsen_like.sim.machines.tier_store import CALM, Weather
from statemachine.consuming.groups import GroupConfig
from tests.support.tier_pulls import BUSY, MOVED, NOT_MATCHED, pull, queues, read_all
from tests.support.tiered_cluster import EVICTING, FOLDER, Tiered


@pytest.fixture
def evicted() -> Iterator[Callable[..., Tiered]]:
    """Nodes that keep two segments or three, and the others only in the tier."""
    with ExitStack() as running:

        def make(seed: int, messages: int = 100) -> Tiered:
            made = running.enter_context(Tiered(seed, **EVICTING))
            made.send(messages)
            made.upload_all()
            made.sim.loop.run_until(lambda: made.leader_state().trim_position > 2 << 14, 300, "an EVICT")
            made.sim.loop.run_until(lambda: made.leader_state().sweep is None, 300, "its end")
            made.sim.settle()
            return made

        yield make


def test_every_node_reads_every_message_from_offset_zero_on(evicted: Callable[..., Tiered]) -> None:
    made = evicted(21)
    for node in made.sim.running:
        for topic_id, queue_id in queues(made):
            assert node.state.min_offset(topic_id, queue_id) > 0
            assert read_all(made, node, queue_id) == list(range(node.state.max_offset(topic_id, queue_id)))


def test_a_queue_begins_where_the_tier_does(evicted: Callable[..., Tiered]) -> None:
    made = evicted(28)
    for node in made.sim.running:
        for topic_id, queue_id in queues(made):
            assert node.state.min_offset(topic_id, queue_id) > 0 == first_offset(node.state, topic_id, queue_id)
        lags = list(each_lag(node.state, GroupConfig("g", subscriptions={"t": ("TAG", "*", 1)})))
        assert lags
        assert all(lag.min_offset == 0 and lag.lag == lag.max_offset for lag in lags)


def test_below_the_tier_there_is_nothing(evicted: Callable[..., Tiered]) -> None:
    made = evicted(22)
    answer = pull(made, made.sim.leader(), queues(made)[0][1], -1)
    assert (answer.code, answer.remark, answer.next_offset, answer.min_offset) == (MOVED, "OFFSET_TOO_SMALL", 0, 0)


def test_a_filter_passes_over_what_it_does_not_want(evicted: Callable[..., Tiered]) -> None:
    made = evicted(23)
    answer = pull(made, made.sim.leader(), queues(made)[0][1], 0, subscription="other")
    assert (answer.code, answer.offsets) == (NOT_MATCHED, [])
    assert answer.next_offset > 0
    by_sql = pull(made, made.sim.leader(), queues(made)[0][1], 0, subscription="a > 5", expressionType="SQL92")
    assert (by_sql.code, by_sql.offsets) == (NOT_MATCHED, [])


def test_a_store_that_is_away_is_no_end_of_the_queue(evicted: Callable[..., Tiered]) -> None:
    made = evicted(24)
    topic_id, queue_id = queues(made)[0]
    made.store.weather = Weather(refused=1.0)
    answer = pull(made, made.sim.leader(), queue_id, 0)
    assert (answer.code, answer.next_offset, answer.offsets) == (BUSY, 0, [])
    assert answer.remark.startswith(f"the tier does not give t queue {queue_id} offsets from 0 on: ")
    made.store.weather = CALM
    made.sim.loop.run_for(RETRY_MAX_S)
    assert read_all(made, made.sim.leader(), queue_id) == list(
        range(made.leader_state().max_offset(topic_id, queue_id))
    )


def test_damage_is_never_served_and_nothing_is_passed_over(evicted: Callable[..., Tiered]) -> None:
    made = evicted(25)
    leader, (topic_id, queue_id) = made.sim.leader(), queues(made)[0]
    row = leader.state.tier.rows[0]
    for _ in range(60):
        if leader.log.first_position >= row.end:  # until then the node's own file mends what is damaged
            break
        made.send(4)
        made.sim.loop.run_for(1)
    assert leader.log.first_position >= row.end
    objects = made.store.inner.objects
    for part in row.parts:
        name = f"{FOLDER}/{part.name}"
        intact = objects[name]
        objects[name] = bytes(len(intact))
        answer = pull(made, leader, queue_id, 0)
        assert (answer.code, answer.next_offset, answer.offsets) == (BUSY, 0, [])
        assert "raftmq tier repair" in answer.remark
        objects[name] = intact
    assert read_all(made, leader, queue_id) == list(range(leader.state.max_offset(topic_id, queue_id)))


def test_a_new_leader_reads_what_its_predecessor_evicted(evicted: Callable[..., Tiered]) -> None:
    made = evicted(26)
    old = made.sim.leader()
    old.kill(power=True)
    new = made.sim.leader(besides=old)
    for topic_id, queue_id in queues(made):
        assert read_all(made, new, queue_id) == list(range(new.state.max_offset(topic_id, queue_id)))
    old.start()
