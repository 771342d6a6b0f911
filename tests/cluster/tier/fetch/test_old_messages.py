"""Pulls from the tier: what a consumer gets that reads queues whose local part is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cluster.broker.evicted.evicted_pulls import Gone
from cluster.broker.filters.sql import SqlFilter
from cluster.broker.reads.pull_values import Pull
from cluster.broker.reads.row_scan import Found
from cluster.runtime.turns.work import Turns
from cluster.tier.fetch.errors import DamagedError
from cluster.tier.fetch.evicted_messages import OldReads
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_log import TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.store.errors import StoreError
from raftmq_wire.message_format import Message as WireMessage
from raftmq_wire.message_format import encode_message
from statemachine.payload import ITEM
from tests.support.message_bytes import build_properties
from tests.support.tier_kit import FOLDER, Message, TierKit

QUEUE = (1, 0)


@pytest.fixture
def kit() -> TierKit:
    kit = TierKit(31, parts=2)
    for _ in range(4):
        kit.segment([QUEUE, (1, 1), (2, 0)], 90)
    return kit


@pytest.fixture
async def reads(kit: TierKit, tmp_path: Path) -> AsyncIterator[ObjectReads]:
    cache = RangeCache(tmp_path, 10 << 20)
    await cache.open()
    opened = ObjectReads(kit.store, cache)
    yield opened
    await opened.close()
    cache.close()


def old_reads(kit: TierKit, reads: ObjectReads) -> OldReads:
    rows = lambda: tuple(kit.rows)  # noqa: E731
    return OldReads(asyncio.get_running_loop(), TierQueues(reads, rows, FOLDER), TierLog(reads, rows, FOLDER), reads)


def pull(offset: int, *, messages_max: int = 32, bytes_max: int = 10_000, tags: frozenset[int] | None = None) -> Pull:
    wish = SimpleNamespace(
        topic="orders",
        topic_id=QUEUE[0],
        queue_id=QUEUE[1],
        offset=offset,
        messages_max=messages_max,
        bytes_max=bytes_max,
        wanted=tags,
    )
    return cast(Pull, wish)


async def messages_of(old: OldReads, pull: Pull, stop: int) -> Found:
    """The messages of a pull that is to get some."""
    found = await old.found(pull, stop)
    assert isinstance(found, Found)
    return found


def joined(messages: list[Message]) -> bytes:
    return b"".join(each.body for each in messages)


@pytest.mark.parametrize("seed", range(4))
async def test_a_consumer_reads_all_of_a_queue_in_order(kit: TierKit, reads: ObjectReads, seed: int) -> None:
    chance, old, wanted = random.Random(seed), old_reads(kit, reads), kit.of_queue(*QUEUE)
    at, got = 0, b""
    while at < len(wanted):
        messages_max, bytes_max = chance.randrange(1, 40), chance.randrange(1, 20_000)
        found = await messages_of(old, pull(at, messages_max=messages_max, bytes_max=bytes_max), len(wanted))
        assert 1 <= found.messages == found.next_offset - at <= messages_max
        assert len(found.body) <= bytes_max or found.messages == 1
        assert found.last_position == wanted[found.next_offset - 1].position
        got += found.body
        at = found.next_offset
    assert got == joined(wanted)
    await old.close()


async def test_who_reads_in_order_finds_the_next_answer_in_the_cache(kit: TierKit, reads: ObjectReads) -> None:
    old, wanted = old_reads(kit, reads), kit.of_queue(*QUEUE)
    first = await messages_of(old, pull(0, messages_max=4), 1 << 40)
    second = await messages_of(old, pull(first.next_offset, messages_max=4), 1 << 40)
    await asyncio.gather(*old._tasks)
    while reads.in_flight_bytes:
        await asyncio.sleep(0.001)
    del kit.store.ranges[:]
    third = await messages_of(old, pull(second.next_offset, messages_max=4), 1 << 40)
    await old.close()
    assert third.body == joined(wanted[8:12])
    asked = [kit.rows[0].base + start for name, start, _ in kit.store.ranges if name == first_log(kit)]
    assert all(position >= wanted[12].position for position in asked)  # for the answer after it


def first_log(kit: TierKit) -> str:
    return next(name for name in sorted(kit.store.objects) if "/log/" in name)


async def test_nothing_is_read_ahead_of_who_jumps(kit: TierKit, reads: ObjectReads) -> None:
    old = old_reads(kit, reads)
    for offset in (50, 3, 80, 20):
        found = await messages_of(old, pull(offset, messages_max=1, bytes_max=1), 1 << 40)
        assert found.body == kit.of_queue(*QUEUE)[offset].body
    while reads.in_flight_bytes:
        await asyncio.sleep(0.001)
    assert sum(stop - start for name, start, stop in kit.store.ranges if "/log/" in name) == sum(
        len(kit.of_queue(*QUEUE)[offset].body) for offset in (50, 3, 80, 20)
    )
    await old.close()


async def test_an_answer_ends_where_the_local_log_begins(kit: TierKit, reads: ObjectReads) -> None:
    old, wanted = old_reads(kit, reads), kit.of_queue(*QUEUE)
    found = await messages_of(old, pull(0, messages_max=1000, bytes_max=1 << 20), 3)
    assert found == Found(3, joined(wanted[:3]), 3, wanted[2].position)
    assert await old.found(pull(len(wanted)), len(wanted) + 7) == Gone(len(wanted) + 7)


async def test_a_segment_that_goes_while_it_is_read_is_no_damage(kit: TierKit, reads: ObjectReads) -> None:
    """A TRIM takes the first segments, and their objects go, after the pull has found where its messages lie."""
    old, wanted = old_reads(kit, reads), kit.of_queue(*QUEUE)
    get_range = kit.store.get_range
    first = next(number for number, each in enumerate(wanted) if each.position >= kit.rows[1].base)

    async def trimmed_before(name: str, start: int, stop: int) -> bytes:
        if len(kit.rows) == 4 and "/log/" in name:
            for part in kit.rows.pop(0).parts:
                await kit.store.delete(f"{FOLDER}/{part.name}")
        return await get_range(name, start, stop)

    kit.store.get_range = trimmed_before  # type: ignore[method-assign]
    assert await old.found(pull(0), len(wanted)) == Gone(first)
    found = await messages_of(old, pull(first, messages_max=3), len(wanted))
    assert isinstance(found, Found)
    assert found.body == joined(wanted[first : first + 3])


async def test_damage_is_still_told(kit: TierKit, reads: ObjectReads) -> None:
    old = old_reads(kit, reads)
    for part in kit.rows[0].parts:
        await kit.store.delete(f"{FOLDER}/{part.name}")
    with pytest.raises(StoreError):
        await old.found(pull(0), 1 << 40)


async def test_tags_that_are_not_wanted_are_passed_over(kit: TierKit, reads: ObjectReads) -> None:
    old = old_reads(kit, reads)
    found = await messages_of(old, pull(0, tags=frozenset([77])), 1 << 40)
    assert (found.messages, found.body) == (0, b"")
    assert 0 < found.next_offset <= len(kit.of_queue(*QUEUE))
    assert (await messages_of(old, pull(0, tags=frozenset([0, 77])), 1 << 40)).messages > 0


async def test_damage_ends_an_answer_and_is_then_said(kit: TierKit, reads: ObjectReads) -> None:
    old, wanted = old_reads(kit, reads), kit.of_queue(*QUEUE)
    bad = wanted[5]
    name = first_log(kit)
    data = bytearray(kit.store.objects[name])
    data[bad.position - kit.rows[0].base] ^= 1
    kit.store.overwrite(name, data)
    found = await messages_of(old, pull(0), 1 << 40)
    assert (found.messages, found.next_offset, found.body) == (5, 5, joined(wanted[:5]))
    with pytest.raises(DamagedError, match=f"position {bad.position}"):
        await old.found(pull(5), 1 << 40)
    heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    old.find(pull(5), 1 << 40, heard.set_result)
    assert isinstance(await heard, DamagedError)
    await old.close()


async def test_answers_are_called_back_within_their_room(
    kit: TierKit, reads: ObjectReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, wanted = old_reads(kit, reads), kit.of_queue(*QUEUE)
    old._room.size = 25_000  # two answers of 10,000 bytes at a time
    most = now = 0
    original = old.found

    async def counted(pull: Pull, stop: int) -> Found | Gone:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return await original(pull, stop)
        finally:
            now -= 1

    monkeypatch.setattr(old, "found", counted)
    answers: list[Found | Gone | Exception] = []
    for offset in range(20):
        old.find(pull(offset, messages_max=1), 1 << 40, answers.append)
    while len(answers) < 20:
        await asyncio.sleep(0.001)
    assert {answer.body for answer in answers if isinstance(answer, Found)} == {each.body for each in wanted[:20]}
    assert most == 2
    await old.close()


async def test_a_filter_of_old_messages_takes_turns(kit: TierKit, reads: ObjectReads) -> None:
    """Other work of the loop goes on between its terms, and it selects what it always does."""
    messages, items, position = [], [], 0
    for number in range(6):
        properties = build_properties({"long": "a" * 20_000, "price": str(number)})
        messages.append(encode_message(WireMessage("orders", b"m", properties, position=position)))
        items.append(ITEM.pack(position, len(messages[-1]), 0, 0, 0))
        position += len(messages[-1])
    wanted = SqlFilter(" OR ".join(["long CONTAINS 'abcdefgh'"] * 50 + ["price > 3"]))
    old = old_reads(kit, reads)
    old._turns = Turns(asyncio.get_running_loop().call_soon, share=1_000)
    task = asyncio.ensure_future(old._filtered("a client", b"".join(items), b"".join(messages), wanted))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert task.result() == (2, messages[4] + messages[5])
    assert turns > 6 * wanted.units(20_000) // 1_000 // 2
