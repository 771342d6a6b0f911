"""Pages of a queue from the tier, for people."""

from __future__ import annotations

import asyncio

import pytest

from cluster.tier.store.errors import StoreError, Unreachable
from cluster.tier.tier_assembly import TierReading
from tests.support.tier_kit import FOLDER, TierKit

QUEUE = (1, 0)


@pytest.fixture
def kit() -> TierKit:
    kit = TierKit(2600020)
    for _ in range(3):
        kit.segment([QUEUE, (2, 0)], 30)
    return kit


def reading_of(kit: TierKit) -> TierReading:
    return TierReading(asyncio.get_running_loop(), kit.store, FOLDER, lambda: tuple(kit.rows), None)


async def test_pages_go_on_where_the_last_one_ended_also_from_segment_to_segment(kit: TierKit) -> None:
    reading, wanted = reading_of(kit), kit.of_queue(*QUEUE)
    at, bodies = 0, []
    while at < len(wanted):
        page = await reading.pages.page(*QUEUE, at, len(wanted), 7)
        assert (len(page.messages), page.unreadable) == (min(7, len(wanted) - at), [])
        at = page.next_offset
        bodies += [bytes(one) for one in page.messages]
    assert bodies == [message.body for message in wanted]
    below = await reading.pages.page(*QUEUE, 2, 5, 7)
    assert (len(below.messages), below.next_offset) == (3, 5)
    await reading.close()


async def test_a_damaged_message_is_named_and_does_not_hide_the_others(kit: TierKit) -> None:
    reading, wanted = reading_of(kit), kit.of_queue(*QUEUE)
    bad, row = wanted[3], kit.rows[0]
    name = f"{FOLDER}/{row.parts[0].name}"
    data = bytearray(kit.store.objects[name])
    data[bad.position - row.base + 40] ^= 1
    kit.store.overwrite(name, bytes(data))
    page = await reading.pages.page(*QUEUE, 1, len(wanted), 5)
    assert (page.unreadable, page.next_offset) == ([3], 6)
    assert [bytes(one) for one in page.messages] == [wanted[number].body for number in (1, 2, 4, 5)]
    await reading.close()


async def test_what_the_tier_has_no_more_is_passed_over_and_a_store_that_is_away_is_not(
    kit: TierKit,
) -> None:
    reading, end = reading_of(kit), len(kit.of_queue(*QUEUE))
    assert (await reading.pages.page(9, 0, 4, 50, 5)) == ([], 50, [])
    assert (await reading.pages.page(*QUEUE, end, end + 5, 5)) == ([], end + 5, [])

    def away(data: bytes) -> bytes:
        raise Unreachable("the store is away", "wait")

    kit.store.answer = away
    with pytest.raises(StoreError, match="away"):
        await reading.pages.page(*QUEUE, 1, end, 5)
    await reading.close()
