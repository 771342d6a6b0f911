"""An object store in virtual time, shared by all machines: it is slow, and at times it fails, tears an object or loses
an answer.

A request that was sent is carried out whatever becomes of its sender: a killed node's object may appear after its
successor has written the same one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from cluster.tier.store.errors import AlreadyExists, StoreError, Throttled, Unreachable
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data, ObjectInfo, StoredObject
from jepsen_like.sim.machines.loop import SimLoop
from raftmq_wire.checksums import crc32c

T = TypeVar("T")


class Weather(NamedTuple):
    """The probability (0 to 1) of each fault of the object store, for one call."""

    refused: float = 0.0
    """Probability that the store answers 503 and does nothing."""
    lost: float = 0.0
    """Probability that the store does the call and its answer is lost: the caller gets Unreachable."""
    late: float = 0.0
    """Probability that a caller that writes gets Unreachable, and the store does the call seconds later (`late_s`)."""
    torn: float = 0.0
    """Probability that a create keeps only a part of the object and reports success."""
    delay_s: tuple[float, float] = (0.001, 0.02)
    late_s: tuple[float, float] = (0.5, 5.0)


CALM = Weather()
QUICK = Weather(delay_s=(0.0001, 0.001))
STORMY = Weather(refused=0.1, lost=0.1, late=0.05, torn=0.1)
"""The probabilities during the fault phase."""
AWAY = Weather(refused=1.0)


class SimStore:
    """An `ObjectStore` in memory. `weather` (the probabilities of faults) may be changed at any time."""

    root = "sim:"

    def __init__(self, loop: SimLoop, chance: random.Random, weather: Weather = CALM) -> None:
        self._loop = loop
        self._chance = chance
        self.weather = weather
        self.inner = MemoryStore(lambda: int(loop.now * 1000))
        self.on_written: Callable[[str, bytes], None] = lambda name, data: None
        """Function that is called with name and content of each object that is created or replaced."""
        self.on_removed: Callable[[str], None] = lambda name: None
        """Function that is called with the name of each object that is deleted."""
        self.torn: set[str] = set()
        """Names of the objects of which only a part was kept."""

    async def create(self, name: str, data: Data) -> None:
        """Writes a new object; by chance the store keeps only a part of it, unless it is empty, and reports success.
        Raises AlreadyExists."""
        content = bytes(data)
        if self._chance.random() < self.weather.torn and content:
            content = content[: self._chance.randrange(len(content))]

        def do() -> None:
            if name in self.inner.objects:
                raise AlreadyExists(f"{name} exists")
            if len(content) < len(data):
                self.torn.add(name)
            self._write(name, content)

        await self._call(do, writes=True)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the object if its version still is `tag`. Raises Conflict or NotFound."""
        content = bytes(data)

        def do() -> None:
            _run(self.inner.replace(name, content, tag))
            self.on_written(name, content)

        await self._call(do, writes=True)

    def _write(self, name: str, content: bytes) -> None:
        _run(self.inner.create(name, content))
        self.on_written(name, content)

    def flip(self, name: str) -> None:
        """Flips a bit in the first half of an object; a second call restores it. The object's tag stays the same."""
        content = bytearray(self.inner.objects[name])
        content[len(content) // 3] ^= 1
        self.inner.objects[name] = bytes(content)

    async def get(self, name: str, size_max: int) -> StoredObject:
        """Returns the whole object. Raises BadAnswer if it is larger than `size_max`."""
        return await self._call(lambda: _run(self.inner.get(name, size_max)))

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop). Raises BadAnswer if the object ends before `stop`."""
        return await self._call(lambda: _run(self.inner.get_range(name, start, stop)))

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads several ranges of one object, one request each."""
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """Reads bytes [start, stop) back and returns their CRC-32C, continuing `crc`."""
        found: int = crc32c(await self.get_range(name, start, stop), crc)
        return found

    async def head(self, name: str) -> ObjectInfo:
        """Returns size and time of the object. Raises NotFound."""
        return await self._call(lambda: _run(self.inner.head(name)))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Yields every object below a folder, in the order of names."""
        start = f"{folder}/" if folder else ""
        names = await self._call(lambda: sorted(name for name in self.inner.objects if name.startswith(start)))
        for name in names:
            yield ObjectInfo(name, len(self.inner.objects.get(name, b"")), 0)

    async def delete(self, name: str) -> None:
        """Deletes the object; does nothing if there is none."""

        def do() -> None:
            was_there = name in self.inner.objects
            _run(self.inner.delete(name))
            if was_there:
                self.on_removed(name)

        await self._call(do, writes=True)

    async def sweep(self, older_than_ms: int) -> int:
        """Returns 0: this store has no temporary files to delete."""
        return 0

    async def close(self) -> None:
        """Does nothing: this store has no connections."""

    async def _call(self, do: Callable[[], T], *, writes: bool = False) -> T:
        """Sends a request, carries it out outside any process after a delay, and returns the answer. Raises StoreError,
        also for a request that was carried out but whose answer is lost, or that will be carried out later."""
        chance, weather = self._chance, self.weather
        fate, delay_s = chance.random(), chance.uniform(*weather.delay_s)
        answered: asyncio.Future[T] = self._loop.create_future()

        def tell(result: T | None, error: StoreError | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(result)  # type: ignore[arg-type]  # None only where T is None

        def carry_out(lost: bool) -> None:
            try:
                result, error = do(), None
            except StoreError as failed:
                result, error = None, failed
            tell(result, Unreachable("the answer was lost") if lost else error)

        if fate < weather.refused:
            self._loop.call_outside(delay_s, tell, None, Throttled("slow down"))
        elif fate < weather.refused + weather.lost:
            self._loop.call_outside(delay_s, carry_out, True)
        elif writes and fate < weather.refused + weather.lost + weather.late:
            self._loop.call_outside(delay_s, tell, None, Unreachable("the connection was reset"))
            self._loop.call_outside(chance.uniform(*weather.late_s), carry_out, True)
        else:
            self._loop.call_outside(delay_s, carry_out, False)
        return await answered


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the inner store waited")
