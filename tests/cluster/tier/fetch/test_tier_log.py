"""Messages from the tier: what is served is what was written, whatever happened to the objects."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from cluster.tier.fetch.errors import DamagedError, NotTieredError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.fetch.tier_log import AMPLIFICATION, TierLog
from cluster.tier.store.errors import Unreachable
from statemachine.tier import TierState
from tests.support.tier_kit import FOLDER, Message, TierKit

QUEUES = [(1, 0), (1, 1), (2, 0)]


def packed(messages: list[Message]) -> bytes:
    return b"".join(each.packed() for each in messages)


def joined(messages: list[Message]) -> bytes:
    return b"".join(each.body for each in messages)


def log_of(kit: TierKit, cache: RangeCache | None = None, **more: object) -> TierLog:
    return TierLog(ObjectReads(kit.store, cache), lambda: tuple(kit.rows), FOLDER, **more)  # type: ignore[arg-type]


@pytest.fixture
def kit() -> TierKit:
    kit = TierKit(11, parts=3)
    for _ in range(3):
        kit.segment(QUEUES, 60)
    return kit


async def test_messages_come_whole_across_objects_and_segments(kit: TierKit) -> None:
    log = log_of(kit)
    for queue in QUEUES:
        wanted = kit.of_queue(*queue)
        assert await log.messages(packed(wanted)) == (joined(wanted), len(wanted))
    assert log.counts.served_bytes == len(joined(kit.messages))
    assert await log.messages(packed(kit.messages)) == (joined(kit.messages), len(kit.messages))


async def test_a_rare_topic_costs_at_most_three_times_its_bytes() -> None:
    kit = TierKit(3)
    kit.segment([(1, number) for number in range(100)], 20_000, (200, 300))
    wanted = kit.of_queue(1, 7)
    assert 100 < len(wanted) < 400
    assert (await log_of(kit).messages(packed(wanted))).count == len(wanted)
    assert kit.store.read_bytes <= AMPLIFICATION * len(joined(wanted))


async def test_a_common_topic_is_read_in_few_requests() -> None:
    kit = TierKit(4)
    kit.segment([(1, 0), (1, 1)], 2000)
    wanted = kit.of_queue(1, 0)
    assert (await log_of(kit).messages(packed(wanted))).count == len(wanted)
    assert len(kit.store.ranges) < len(wanted) / 10
    assert kit.store.read_bytes <= AMPLIFICATION * len(joined(wanted))


def flip(kit: TierKit, chance: random.Random) -> None:
    name = chance.choice([name for name in sorted(kit.store.objects) if "/log/" in name])
    data = bytearray(kit.store.objects[name])
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    kit.store.overwrite(name, data)


@pytest.mark.parametrize("cached", [False, True])
async def test_damage_at_random_places_is_never_served(kit: TierKit, tmp_path: Path, cached: bool) -> None:
    chance = random.Random(99)
    intact = dict(kit.store.objects)
    seen = 0
    cache = RangeCache(tmp_path, 10 << 20) if cached else None
    if cache is not None:
        await cache.open()
    for _ in range(250):
        kit.store.objects = dict(intact)
        flip(kit, chance)
        reads = ObjectReads(kit.store, cache)
        log = TierLog(reads, lambda: tuple(kit.rows), FOLDER)
        wanted = kit.of_queue(*chance.choice(QUEUES))
        try:
            body, count = await log.messages(packed(wanted))
        except DamagedError:
            body, count = b"", 0
        assert body == joined(wanted[:count])
        seen += count < len(wanted)
        if count < len(wanted):
            with pytest.raises(DamagedError, match=f"position {wanted[count].position} .*repair"):
                await log.messages(packed(wanted[count:]))
        while reads.in_flight_bytes:  # until all that was read is in the cache
            await asyncio.sleep(0)
        for name in intact:
            if cache is not None:
                cache.drop(name, 0, 1 << 40)
    assert seen > 20
    if cache is not None:
        cache.close()


async def test_damage_in_the_cache_or_on_the_way_is_mended_by_a_second_fetch(kit: TierKit) -> None:
    wanted = kit.of_queue(1, 0)
    original = kit.store.get_range
    damaged: set[str] = set()

    async def once_wrong(name: str, start: int, stop: int) -> bytes:
        data = bytearray(await original(name, start, stop))
        if name not in damaged:
            damaged.add(name)
            data[len(data) // 2] ^= 0x40
        return bytes(data)

    kit.store.get_range = once_wrong  # type: ignore[method-assign]
    log = log_of(kit)
    assert await log.messages(packed(wanted)) == (joined(wanted), len(wanted))
    assert log.counts.damaged == log.counts.mended > 0


@pytest.mark.parametrize("right", [True, False])
async def test_another_source_is_asked_before_a_message_is_given_up(kit: TierKit, right: bool) -> None:
    wanted = kit.of_queue(2, 0)
    by_position = {each.position: each.body for each in wanted}
    for name in list(kit.store.objects):
        kit.store.overwrite(name, bytes(len(kit.store.objects[name])))

    async def elsewhere(position: int, size: int) -> bytes | None:
        body = by_position[position]
        assert len(body) == size
        return body if right else body[:-1] + bytes([body[-1] ^ 1])

    log = log_of(kit, elsewhere=elsewhere)
    if right:
        assert await log.messages(packed(wanted)) == (joined(wanted), len(wanted))
        assert log.counts.mended == len(wanted)
    else:
        with pytest.raises(DamagedError):
            await log.messages(packed(wanted))


async def test_an_object_that_is_gone_says_so(kit: TierKit) -> None:
    wanted = kit.of_queue(1, 0)
    for name in [name for name in kit.store.objects if "/log/" in name]:
        await kit.store.delete(name)
    with pytest.raises(DamagedError, match="there is no c1/log/"):
        await log_of(kit).messages(packed(wanted))


async def test_what_can_be_had_comes_before_what_the_store_does_not_answer(kit: TierKit) -> None:
    wanted = kit.of_queue(1, 0)
    original = kit.store.get_range
    last = kit.rows[-1]

    async def first_segments_only(name: str, start: int, stop: int) -> bytes:
        if f"{last.base:020d}-" in name:
            raise Unreachable("cut off")
        return await original(name, start, stop)

    kit.store.get_range = first_segments_only  # type: ignore[method-assign]
    body, count = await log_of(kit).messages(packed(wanted))
    assert body == joined(wanted[:count])
    assert wanted[count].position >= last.base
    with pytest.raises(Unreachable):
        await log_of(kit).messages(packed(wanted[count:]))


async def test_only_verified_segments_are_read(kit: TierKit) -> None:
    wanted = kit.of_queue(1, 0)
    for state in (TierState.UPLOADING, TierState.UPLOADED, TierState.DELETING):
        kit.rows[0] = kit.rows[0]._replace(state=state)
        with pytest.raises(NotTieredError):
            await log_of(kit).messages(packed(wanted))
    assert not any(f"{kit.rows[0].base:020d}-" in name for name, _, _ in kit.store.ranges)


async def test_what_is_warm_needs_no_request(kit: TierKit, tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 10 << 20)
    await cache.open()
    log, wanted = log_of(kit, cache), kit.of_queue(1, 1)
    await log.warm(packed(wanted), dense=False)
    requests = len(kit.store.ranges)
    for each in range(0, len(wanted), 7):
        some = wanted[each : each + 7]
        assert await log.messages(packed(some)) == (joined(some), len(some))
    assert len(kit.store.ranges) == requests
    cache.close()
