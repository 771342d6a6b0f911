"""Retries: what is tried again, how often, what is counted, and what stays unknown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from cluster.tier.store.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Denied,
    NotFound,
    StoreError,
    Throttled,
    Unreachable,
)
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data
from cluster.tier.store.retrying_store import Bandwidth, RequestCounts, RetryingStore, RetryPolicy


class Shaky(MemoryStore):
    """Raises what it is given, one per call; a write with an unknown outcome is carried out first."""

    def __init__(self, *errors: StoreError | None) -> None:
        super().__init__()
        self.errors = list(errors)

    def _trouble(self, then: Callable[[], None] = lambda: None) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            if error.outcome_unknown:
                then()
            raise error

    async def create(self, name: str, data: Data) -> None:
        self._trouble(lambda: self._write(name, data))
        await super().create(name, data)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        self._trouble(lambda: self._write(name, data))
        await super().replace(name, data, tag)

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        self._trouble()
        return await super().get_range(name, start, stop)


class Sleeps(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def retrying(store: MemoryStore, policy: RetryPolicy | None = None) -> tuple[RetryingStore, Sleeps]:
    sleeps = Sleeps()
    return RetryingStore(store, policy or RetryPolicy(), random.Random(7), RequestCounts(), sleep=sleeps), sleeps


async def test_a_read_is_tried_again_until_it_succeeds() -> None:
    inner = Shaky(Throttled("slow"), Unreachable("reset"), BadAnswer("short"))
    inner.objects["a"] = b"12345"
    store, sleeps = retrying(inner)
    assert await store.get_range("a", 1, 3) == b"23"
    assert len(sleeps) == 3
    assert dict(store.counts.requests) == {
        ("get_range", "Throttled"): 1,
        ("get_range", "Unreachable"): 1,
        ("get_range", "BadAnswer"): 1,
        ("get_range", "ok"): 1,
    }
    assert (store.counts.retries, store.counts.received_bytes) == (3, 2)


async def test_an_object_that_keeps_being_short_is_bad_and_not_waited_for() -> None:
    store, sleeps = retrying(Shaky(*[BadAnswer("short")] * 100))
    with pytest.raises(BadAnswer):
        await store.get_range("a", 0, 1)
    assert len(sleeps) == 2


@pytest.mark.parametrize("error", [NotFound("x"), Denied("x"), AlreadyExists("x"), Conflict("x")])
async def test_what_will_not_change_by_itself_is_not_tried_again(error: StoreError) -> None:
    store, sleeps = retrying(Shaky(error))
    with pytest.raises(type(error)):
        await store.create("a", b"1")
    assert (sleeps, store.counts.sent_bytes) == ([], 0)


@pytest.mark.parametrize(("first", "ours"), [(Unreachable("reset"), True), (Throttled("slow"), False)])
async def test_after_an_unknown_outcome_a_taken_name_may_be_ours(first: StoreError, ours: bool) -> None:
    inner = Shaky(first)
    if not ours:
        inner.objects["a"] = b"another's"
    store, _ = retrying(inner)
    with pytest.raises(AlreadyExists) as raised:
        await store.create("a", b"1")
    assert raised.value.maybe_ours is ours


async def test_after_an_unknown_outcome_a_conflict_may_be_with_ourselves() -> None:
    inner = Shaky()
    store, _ = retrying(inner)
    await store.create("HEAD", b"1")
    tag = (await store.get("HEAD", 9)).tag
    inner.errors = [Unreachable("reset")]
    with pytest.raises(Conflict) as raised:
        await store.replace("HEAD", b"2", tag)
    assert raised.value.maybe_ours
    with pytest.raises(Conflict) as raised:
        await store.replace("HEAD", b"3", tag)
    assert not raised.value.maybe_ours


async def test_a_call_that_hangs_has_a_deadline_and_an_end() -> None:
    class Hanging(MemoryStore):
        async def get_range(self, name: str, start: int, stop: int) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    policy = RetryPolicy(call_s=0.001, call_s_per_mib=0.0, total_s=0.05, pause_min_s=0.01, pause_max_s=0.02)
    store = RetryingStore(Hanging(), policy, random.Random(1), RequestCounts())
    with pytest.raises(Unreachable, match="no answer within"):
        await store.get_range("a", 0, 1)
    assert set(store.counts.requests) == {("get_range", "Timeout")}


def test_pauses_double_and_are_spread_down_to_nothing() -> None:
    policy, chance = RetryPolicy(), random.Random(3)
    for attempt, most in ((1, 0.1), (4, 0.8), (9, 25.6), (10, 30.0), (10_000, 30.0)):
        pauses = [policy.pause_s(attempt, chance) for _ in range(300)]
        assert max(pauses) <= most
        assert max(pauses) > most * 0.9
        assert min(pauses) < most * 0.1


def test_a_large_write_has_more_time() -> None:
    assert RetryPolicy().deadline_s(0) == 60
    assert RetryPolicy().deadline_s(64 << 20) == 60 + 256


def test_writes_keep_to_the_bandwidth_on_average() -> None:
    now = [100.0]
    limit = Bandwidth(1000, lambda: now[0])
    assert [limit.wait_s(500), limit.wait_s(2000), limit.wait_s(1)] == [0, 0.5, 2.5]
    now[0] = 110.0
    assert limit.wait_s(10**9) == 0  # nothing is refused, but paid for afterwards
    now[0] = 111.0
    assert limit.wait_s(1) == 10**6 - 1
    assert Bandwidth(0, lambda: now[0]).wait_s(10**12) == 0


async def test_a_write_waits_for_its_bandwidth_and_a_read_does_not() -> None:
    inner, sleeps = MemoryStore(), Sleeps()
    limit = Bandwidth(1000, lambda: 0.0)
    store = RetryingStore(inner, RetryPolicy(), random.Random(1), RequestCounts(), limit, sleeps)
    await store.create("a", bytes(1500))
    await store.create("b", b"")
    assert (await store.get("a", 1500)).data == bytes(1500)
    assert sleeps == [1.5]
    assert (store.counts.sent_bytes, store.counts.received_bytes) == (1500, 1500)


async def test_a_listing_is_counted_once_and_not_tried_again() -> None:
    class Broken(MemoryStore):
        async def list(self, folder: str = ""):  # type: ignore[no-untyped-def]
            async for info in super().list(folder):
                yield info
            raise Unreachable("cut off")

    inner = Broken()
    inner.objects = {}
    store, _ = retrying(inner)
    with pytest.raises(Unreachable):
        [info async for info in store.list()]
    good, _ = retrying(MemoryStore())
    await good.create("a/b", b"1")
    assert [info.name async for info in good.list("a")] == ["a/b"]
    assert store.counts.requests["list", "Unreachable"] == good.counts.requests["list", "ok"] == 1
