"""The bytes of each topic: exact where few rows are to be read, an estimate with a bound on the work where many are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.topic_sizes import FRESH_MS, LARGEST_MAX, REST, TopicSize, TopicSizes, measure
from statemachine.consume_queue import BLOCK
from statemachine.payload import ITEM


class FakeState:
    """Topics by id, with the sizes of their messages by queue; trimmed below `first`. Counts what is read."""

    def __init__(self, topics: dict[int, list[list[int]]], first: int = 0) -> None:
        self.rows, self.first, self.reads = topics, first, 0
        self.topics = {str(id): SimpleNamespace(id=id) for id in topics}
        self.applied = SimpleNamespace(index=7)

    def stored_queues(self, topic: Any) -> int:
        return len(self.rows[topic.id])

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        return len(self.rows[topic_id][queue_id])

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        return self.first

    def fetch_packed(self, topic_id: int, queue_id: int, start: int, count: int) -> bytes:
        self.reads += 1
        assert start >= self.first
        assert count <= BLOCK
        return b"".join(ITEM.pack(0, size, 0, 0, 0) for size in self.rows[topic_id][queue_id][start : start + count])


def sizes(state: Any, blocks_max: int) -> dict[int, TopicSize]:
    return measure(state, state.topics.values(), blocks_max)


def test_few_messages_are_counted_exactly() -> None:
    state = FakeState({1: [[100] * 300, []], 2: [[7, 8, 9]], 3: [[]]}, first=1)
    assert sizes(state, 3) == {1: TopicSize(29_900, True), 2: TopicSize(17, True), 3: TopicSize(0, True)}
    assert state.reads == 3


def test_many_are_estimated_from_blocks_all_over_the_topic() -> None:
    """The second half of the messages is three times as large as the first: a look at one end would be off by half."""
    growing = [100] * (32 * BLOCK) + [300] * (32 * BLOCK)
    state = FakeState({1: [growing], 2: [[50] * BLOCK] * 2})
    found = sizes(state, 16)
    assert state.reads <= 16
    assert abs(found[1].bytes - sum(growing)) < sum(growing) / 10
    assert not found[1].exact
    assert found[2].bytes == 50 * BLOCK * 2


@pytest.mark.parametrize("topics", [5, 50])
def test_the_work_is_bounded_however_many_topics_there_are(topics: int) -> None:
    state = FakeState({id: [[10] * BLOCK, [10] * BLOCK] for id in range(topics)})
    found = sizes(state, 8)
    assert state.reads <= 8
    assert {size.bytes for size in found.values()} == {10 * BLOCK * 2}
    assert len(found) == min(topics, 8), "the others are left out"


async def test_askers_share_one_look_for_a_while() -> None:
    state, now = FakeState({1: [[10]]}), [0]
    known = TopicSizes(state, lambda: now[0])  # type: ignore[arg-type]
    first, second = await asyncio.gather(known.all(), known.all())
    assert first == second == (7, {1: TopicSize(10, True)}, {1: 10})
    now[0] += FRESH_MS - 1
    await known.all()
    assert state.reads == 1
    now[0] += 1
    state.rows[1][0].append(5)
    assert (await known.all()).sizes == {1: TopicSize(15, True)}


async def test_a_look_that_takes_long_is_not_soon_repeated() -> None:
    state, now = FakeState({1: [[10]]}), [0]
    known = TopicSizes(state, lambda: now[0])  # type: ignore[arg-type]
    looks = asyncio.ensure_future(known.all())
    await asyncio.sleep(0)
    now[0] += FRESH_MS
    await looks
    now[0] += REST * FRESH_MS - 1
    await known.all()
    assert state.reads == 1
    now[0] += 1
    await known.all()
    assert state.reads == 2


async def test_the_largest_are_picked_where_they_are_measured() -> None:
    """The metrics show few of many topics: the event loop does not look at the others."""
    state = FakeState({topic: [[topic]] for topic in range(1, LARGEST_MAX + 50)})
    measured = await TopicSizes(state, lambda: 0).all()  # type: ignore[arg-type]
    assert len(measured.sizes) == LARGEST_MAX + 49
    assert next(iter(measured.largest.items())) == (LARGEST_MAX + 49, LARGEST_MAX + 49)
    assert (len(measured.largest), min(measured.largest.values())) == (LARGEST_MAX, 50)
