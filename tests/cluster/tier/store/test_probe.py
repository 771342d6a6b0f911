"""The probe: each condition that a store ignores is found, and nothing is left behind."""

from __future__ import annotations

import pytest

from cluster.tier.store.errors import AlreadyExists, Conflict, Denied, NotFound, StoreError, Unsupported
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data, ObjectInfo, probe
from tests.support.rows import each_row


class NoCreateOnly(MemoryStore):
    async def create(self, name: str, data: Data) -> None:
        self._write(name, data)


class SaysSo(MemoryStore):
    """Answers rightly and does the wrong thing."""

    async def create(self, name: str, data: Data) -> None:
        taken = name in self.objects
        self._write(name, data)
        if taken:
            raise AlreadyExists("x")


class NoIfMatch(MemoryStore):
    async def replace(self, name: str, data: Data, tag: str) -> None:
        self._write(name, data)


class RefusesAndReplaces(MemoryStore):
    async def replace(self, name: str, data: Data, tag: str) -> None:
        stale = str(self._versions[name]) != tag
        self._write(name, data)
        if stale:
            raise Conflict("x")


class WholeForRange(MemoryStore):
    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self.objects[name]


class WrongSize(MemoryStore):
    async def head(self, name: str) -> ObjectInfo:
        return (await super().head(name))._replace(size=1)


class StaleList(MemoryStore):
    async def list(self, folder: str = ""):  # type: ignore[no-untyped-def]
        for _ in ():
            yield ObjectInfo("", 0, 0)


class KeepsAll(MemoryStore):
    async def delete(self, name: str) -> None:
        pass


BROKEN = (NoCreateOnly, SaysSo, NoIfMatch, RefusesAndReplaces, WholeForRange, WrongSize, StaleList, KeepsAll)


@each_row("kind", BROKEN)
async def test_a_store_that_ignores_a_condition_is_refused(kind: type[MemoryStore]) -> None:
    store = kind()
    with pytest.raises(Unsupported) as raised:
        await probe(store, "c1", "0123")
    assert raised.value.fix
    assert (store.objects == {}) is (kind is not KeepsAll)


@pytest.mark.parametrize("error", [Denied("no"), NotFound("no bucket")])
async def test_what_a_call_raises_is_passed_on(error: StoreError) -> None:
    class Refusing(MemoryStore):
        async def create(self, name: str, data: Data) -> None:
            raise error

        async def delete(self, name: str) -> None:
            raise error

    with pytest.raises(type(error), match=error.what):
        await probe(Refusing(), "c1", "0123")
