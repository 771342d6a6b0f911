"""Queues of the tier, found in index files: compared with what was written."""

from __future__ import annotations

import random
from contextlib import aclosing

import pytest

from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.tier_queues import TOGETHER, TierQueues
from statemachine.tier import TierState
from tests.support.tier_kit import FOLDER, Message, TierKit

ALL = [(1, 0), (1, 1), (2, 0), (3, 5)]


@pytest.fixture
def kit() -> TierKit:
    """Queues that begin late, end early, and are absent in between; one with a gap in its offsets."""
    kit = TierKit(21)
    for queues in ([(1, 0)], [(1, 0), (1, 1)], [(2, 0)], [(2, 0)], [(1, 0), (2, 0)], [(2, 0)], [(1, 1), (3, 5)]):
        kit.segment(queues, 30)
    kit.skip(1, 1, 100)
    kit.segment([(1, 1)], 10)
    return kit


def queues_of(kit: TierKit) -> TierQueues:
    return TierQueues(ObjectReads(kit.store, None), lambda: tuple(kit.rows), FOLDER)


def packed(messages: list[Message]) -> bytes:
    return b"".join(each.packed() for each in messages)


async def test_keys_are_looked_for_in_the_newest_segments_first_and_no_further_than_is_wanted() -> None:
    kit = TierKit(2600040, keyed=True)
    for _ in range(5 * TOGETHER // 2):
        kit.segment([(1, 0), (2, 0)], 4)
    queues, wanted = queues_of(kit), [each.position for each in reversed(kit.of_queue(1, 0))]
    async with aclosing(queues.positions(1, b"k", 0, 1 << 40)) as positions:
        newest = [await anext(positions) for _ in range(3)]
    assert newest == wanted[:3]
    assert {name for name, _, _ in kit.store.ranges} == {
        f"{FOLDER}/{row.parts[-1].name}" for row in kit.rows[-TOGETHER:]
    }
    assert [each async for each in queues.positions(1, b"k", 0, 1 << 40)] == wanted
    assert [each async for each in queues.positions(1, b"other", 0, 1 << 40)] == []
    span = kit.rows[3].span
    within = [each async for each in queues.positions(1, b"k", span.first_ms, span.last_ms)]
    assert within == [each for each in wanted if kit.rows[3].base <= each < kit.rows[3].end]


@pytest.mark.parametrize("queue", ALL)
async def test_a_queue_is_read_from_its_first_message_to_its_last(kit: TierKit, queue: tuple[int, int]) -> None:
    queues, wanted = queues_of(kit), kit.of_queue(*queue)
    assert await queues.first_offset(*queue) == wanted[0].queue_offset
    at, found = 0, []
    while at <= wanted[-1].queue_offset:
        items = await queues.items(*queue, at, 7)
        first = [each.queue_offset for each in wanted].index(items.first_offset)
        some = wanted[first : first + items.next_offset - items.first_offset]
        assert items.packed == packed(some)
        found += some
        at = items.next_offset
    assert found == wanted


@pytest.mark.parametrize("warm", [False, True])
async def test_any_offset_is_found_from_anywhere(kit: TierKit, warm: bool) -> None:
    chance, queues = random.Random(8), queues_of(kit)
    for _ in range(300):
        if not warm:
            queues = queues_of(kit)
        queue = chance.choice(ALL)
        wanted = kit.of_queue(*queue)
        offset = chance.randrange(wanted[-1].queue_offset + 1)
        first = next(each for each in wanted if each.queue_offset >= offset)
        items = await queues.items(*queue, offset, 1)
        assert items == (first.queue_offset, first.packed())


async def test_what_the_tier_does_not_have_is_said(kit: TierKit) -> None:
    queues = queues_of(kit)
    end = kit.of_queue(1, 0)[-1].queue_offset + 1
    for queue, offset in (((1, 0), end), ((9, 0), 0), ((1, 7), 0)):
        with pytest.raises(NotTieredError):
            await queues.items(*queue, offset, 1)
    assert await queues.first_offset(9, 0) is None
    kit.rows[:] = [row._replace(state=TierState.UPLOADED) for row in kit.rows]
    assert await queues.first_offset(1, 0) is None


async def test_a_time_finds_the_first_message_at_or_after_it(kit: TierKit) -> None:
    queues = queues_of(kit)
    for queue in ALL:
        wanted = kit.of_queue(*queue)
        for each in wanted[:: max(1, len(wanted) // 8)]:
            assert await queues.offset_by_time(*queue, each.store_time_ms) == each.queue_offset
            later = next((one.queue_offset for one in wanted if one.store_time_ms > each.store_time_ms), None)
            assert await queues.offset_by_time(*queue, each.store_time_ms + 1) == later


async def test_a_warm_reader_asks_for_items_only(kit: TierKit) -> None:
    queues = queues_of(kit)
    await queues.items(1, 0, 0, 5)
    before = len(kit.store.ranges)
    await queues.items(1, 0, 5, 5)
    assert len(kit.store.ranges) == before + 1


async def test_a_damaged_index_is_fetched_again_and_never_believed(kit: TierKit) -> None:
    chance = random.Random(4)
    intact = dict(kit.store.objects)
    index_names = [name for name in sorted(intact) if "/index/" in name]
    damaged = 0
    for _ in range(250):
        kit.store.objects = dict(intact)
        name = chance.choice(index_names)
        data = bytearray(intact[name])
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        kit.store.overwrite(name, data)
        queue = chance.choice(ALL)
        wanted = kit.of_queue(*queue)
        offset = chance.randrange(wanted[-1].queue_offset + 1)
        first = next(each for each in wanted if each.queue_offset >= offset)
        try:
            items = await queues_of(kit).items(*queue, offset, 1)
        except DamagedError:
            damaged += 1
        else:
            assert items == (first.queue_offset, first.packed())
    assert damaged > 10


async def test_a_segment_without_an_index_is_not_passed_over(kit: TierKit) -> None:
    row = kit.rows[0]
    kit.rows[0] = row._replace(parts=tuple(part for part in row.parts if part.name.startswith("log/")))
    with pytest.raises(DamagedError, match=f"at {row.base} has no index"):
        await queues_of(kit).first_offset(1, 0)


async def test_a_bad_answer_is_no_bad_object(kit: TierKit) -> None:
    original = kit.store.get_range
    wrong = [True]

    async def once_wrong(name: str, start: int, stop: int) -> bytes:
        data = bytearray(await original(name, start, stop))
        if wrong.pop() if wrong else False:
            data[-1] ^= 1
        return bytes(data)

    kit.store.get_range = once_wrong  # type: ignore[method-assign]
    items = await queues_of(kit).items(1, 0, 0, 3)
    assert items == (0, packed(kit.of_queue(1, 0)[:3]))
