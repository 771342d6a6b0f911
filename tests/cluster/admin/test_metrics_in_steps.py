"""/metrics with many topics and groups: made metric by metric, each with a bounded number of series."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.runtime.figures.counters import SERIES_MAX
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.topics.topics import CreateTopic

STEP_MAX = 6_000
"""Units of one step: 1001 lines of one metric."""


@pytest.fixture
def many(node: Any) -> Any:
    node.consistency = None
    for number in range(3 * SERIES_MAX):
        node.traffic.messages_in(f"t{number:05}", 2, 10)
    for first in range(0, 3 * SERIES_MAX, 100):
        node.apply([CreateTopic({"name": f"t{first + each:05}"}, True) for each in range(100)])
    node.apply([CreateTopic({"name": "a", "read_queues": 300, "write_queues": 300}, True)])
    for number in range(100):
        node.add_group(f"g{number:03}", "a")
    return node


async def test_series_by_topic_are_bounded_and_sum_up_to_all(client: Any, many: Any) -> None:
    text = await (await client.get("/metrics")).text()
    lines = [line for line in text.splitlines() if line.startswith("rocketmq_messages_in_total{")]
    assert len(lines) == SERIES_MAX + 1
    assert lines[-1] == f'rocketmq_messages_in_total{{topic=""}} {float(2 * 2 * SERIES_MAX)}'
    assert sum(float(line.rsplit(" ", 1)[1]) for line in lines) == 2 * 3 * SERIES_MAX


async def test_a_topic_that_is_gone_has_no_series(client: Any, node: Any) -> None:
    """Whichever node and whichever door was asked to delete it: a series goes with the topic."""
    node.apply([CreateTopic({"name": "orders"}, True), CreateTopic({"name": "users"}, True)])
    for topic in ("orders", "users"):
        node.traffic.messages_in(topic, 1, 10)
        node.broker.deliveries.messages_out(topic, 1, 10)
    assert 'topic="orders"' in await (await client.get("/metrics")).text()
    node.apply([DeleteTopic("orders")])
    text = await (await client.get("/metrics")).text()
    assert 'topic="orders"' not in text
    assert text.count('topic="users"') >= 4


async def test_no_step_is_long(client: Any, many: Any) -> None:
    many.turns.share = 1
    assert (await client.get("/metrics")).status == 200
    assert len(many.turns.steps()) >= 100
    assert max(many.turns.steps()) <= STEP_MAX


async def test_scrapes_at_a_time_do_not_mix(client: Any, many: Any) -> None:
    many.turns.share = 1
    answers = await asyncio.gather(*(client.get("/metrics") for _ in range(4)))
    texts = [await answer.text() for answer in answers]
    for text in texts:
        assert text.count('rocketmq_consumer_lag_messages{consumer_group="g000"') == 1
        assert text.count("raftmq_group_lag_messages{") == 33  # ANSWER_QUEUES_MAX / 300


async def test_deletions_are_counted_until_their_rows_are_gone(client: Any, node: Any) -> None:
    node.consistency = None
    node.apply([CreateTopic({"name": "a"}, True), PutGroup({"name": "g"}, True)])
    node.apply([DeleteTopic("a"), DeleteGroup("g", False)])
    expected = node.state.removing
    assert expected >= 1
    text = await (await client.get("/metrics")).text()
    assert f"\nraftmq_removals_pending {float(expected)}\n" in text
