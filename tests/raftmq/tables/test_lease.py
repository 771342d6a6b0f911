"""The lease of a table on an object store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.tier.store.errors import Unreachable
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data
from raftmq.tables.lease import NAME, Held, Lease, decoded, seen
from tests.support.stopped_store import StoppableStore
from tests.support.wait_until import until

SHORT_S = 0.2


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def taken(store: Any, over_after_s: float = SHORT_S) -> tuple[Lease, list[str]]:
    lease, told = Lease(store, over_after_s), list[str]()
    await lease.take(lambda who, seconds: told.append(f"{who} {seconds}"))
    return lease, told


async def test_a_lease_that_is_renewed_is_held(store: MemoryStore) -> None:
    first, told = await taken(store)
    assert told == []
    with pytest.raises(Held, match=r"process [0-9]+ on "):
        await taken(store)
    await first.give_back()
    second, told = await taken(store)
    assert told == [], "who gave it back is not waited for"
    await second.give_back()
    found = await seen(store)
    assert found is not None
    assert found.text.holder == ""


async def test_a_lease_that_is_silent_is_taken_over(store: MemoryStore) -> None:
    paused = StoppableStore(store)
    first, _ = await taken(paused)
    paused.is_stopped = True
    second, told = await taken(store)
    assert len(told) == 1
    assert told[0].endswith(f" {SHORT_S}"), "it is watched for as long as its holder says"
    paused.is_stopped = False
    await until(lambda: first.lost)
    await first.give_back()
    found = await seen(store)
    assert found is not None
    assert found.text.holder == second.holder, "only its own lease is given back"
    await second.give_back()


class Forgetful(MemoryStore):
    """Carries the next write out, and nobody learns of it."""

    lost = 0

    async def create(self, name: str, data: Data) -> None:
        await super().create(name, data)
        self._lose()

    async def replace(self, name: str, data: Data, tag: str) -> None:
        await super().replace(name, data, tag)
        self._lose()

    def _lose(self) -> None:
        if self.lost:
            self.lost -= 1
            raise Unreachable("no answer")


async def test_a_renewal_without_an_answer_is_no_loss() -> None:
    store = Forgetful()
    lease, _ = await taken(store)
    store.lost = 2
    await until(lambda: not store.lost)
    before = (await store.get(NAME, 1000)).tag
    while (await store.get(NAME, 1000)).tag == before:  # it is renewed again
        await asyncio.sleep(0.01)
    assert lease.lost == ""
    await lease.give_back()


async def test_an_object_of_another_kind_is_watched_like_any_lease(store: MemoryStore) -> None:
    await store.create(NAME, b"what is this")
    assert decoded(b"what is this").holder == "unknown"
    lease = Lease(store, SHORT_S)
    waiting = asyncio.ensure_future(lease.take(lambda who, seconds: told.append(who)))
    told: list[str] = []
    await until(lambda: told)
    await store.replace(NAME, b"another", (await store.get(NAME, 100)).tag)
    with pytest.raises(Held):
        await waiting
