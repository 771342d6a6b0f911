"""An object store in virtual time: shared by all machines, slow, and at times it fails, tears or says nothing.

What was sent is carried out whatever becomes of the sender: a killed node's object may appear after its successor has
written the same one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from cluster.tier.store.errors import AlreadyExists, StoreError, Throttled, Unreachable
from cluster.tier.store.memory import MemoryStore
from cluster.tier.store.object_store import Data, ObjectInfo, Stored
from jepsen_like.sim.machines.loop import SimLoop
from raftmq_wire.checksums import crc32c

T = TypeVar("T")


class Weather(NamedTuple):
    """The probability of each fault, for one call."""

    refused: float = 0.0
    """503: nothing is done."""
    lost: float = 0.0
    """The call is done, and the answer never comes."""
    late: float = 0.0
    """The answer is an error, and the call is done seconds later."""
    torn: float = 0.0
    """A create keeps a part of the object, and says that all is well."""
    delay_s: tuple[float, float] = (0.001, 0.02)
    late_s: tuple[float, float] = (0.5, 5.0)


CALM = Weather()
QUICK = Weather(delay_s=(0.0001, 0.001))
STORMY = Weather(refused=0.1, lost=0.1, late=0.05, torn=0.1)
"""The probabilities while there are faults."""
AWAY = Weather(refused=1.0)


class SimStore:
    """An `ObjectStore` in memory. `weather` may be changed at any time."""

    root = "sim:"

    def __init__(self, loop: SimLoop, chance: random.Random, weather: Weather = CALM) -> None:
        self._loop = loop
        self._chance = chance
        self.weather = weather
        self.inner = MemoryStore(lambda: int(loop.now * 1000))
        self.on_written: Callable[[str, bytes], None] = lambda name, data: None
        """Told of each object that comes into being or is replaced."""
        self.on_removed: Callable[[str], None] = lambda name: None
        """Told of each object that goes."""
        self.torn: set[str] = set()
        """Names of objects that are not whole."""

    async def create(self, name: str, data: Data) -> None:
        """Writes a new object; by chance it keeps a part of it and says that all is well. Raises AlreadyExists."""
        content = bytes(data)
        if self._chance.random() < self.weather.torn:
            content = content[: self._chance.randrange(len(content))]

        def do() -> None:
            if name in self.inner.objects:
                raise AlreadyExists(f"{name} exists")
            if len(content) < len(data):
                self.torn.add(name)
            self._write(name, content)

        await self._call(do, writes=True)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        """Replaces the object if it still is the version `tag`. Raises Conflict or NotFound."""
        content = bytes(data)

        def do() -> None:
            _run(self.inner.replace(name, content, tag))
            self.on_written(name, content)

        await self._call(do, writes=True)

    def _write(self, name: str, content: bytes) -> None:
        _run(self.inner.create(name, content))
        self.on_written(name, content)

    def flip(self, name: str) -> None:
        """A bit in the first half of an object rots; the second time it is what it was. Its tag stays."""
        content = bytearray(self.inner.objects[name])
        content[len(content) // 3] ^= 1
        self.inner.objects[name] = bytes(content)

    async def get(self, name: str, size_max: int) -> Stored:
        """Returns the whole object. Raises BadAnswer if it is larger than `size_max`."""
        return await self._call(lambda: _run(self.inner.get(name, size_max)))

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop). Raises BadAnswer if the object ends before `stop`."""
        return await self._call(lambda: _run(self.inner.get_range(name, start, stop)))

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads several ranges of one object, one request each."""
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        """Returns the CRC-32C of bytes [start, stop) as they are read back, continuing `crc`."""
        found: int = crc32c(await self.get_range(name, start, stop), crc)
        return found

    async def head(self, name: str) -> ObjectInfo:
        """Returns size and time of the object. Raises NotFound."""
        return await self._call(lambda: _run(self.inner.head(name)))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Yields everything below a folder, in the order of names."""
        names = await self._call(lambda: sorted(name for name in self.inner.objects if name.startswith(f"{folder}/")))
        for name in names:
            yield ObjectInfo(name, len(self.inner.objects.get(name, b"")), 0)

    async def delete(self, name: str) -> None:
        """Removes the object; nothing if there is none."""

        def do() -> None:
            was_there = name in self.inner.objects
            _run(self.inner.delete(name))
            if was_there:
                self.on_removed(name)

        await self._call(do, writes=True)

    async def sweep(self, older_than_ms: int) -> int:
        """Removes nothing: this store has no temporary files."""
        return 0

    async def close(self) -> None:
        """Does nothing: this store has no connections."""

    async def _call(self, do: Callable[[], T], *, writes: bool = False) -> T:
        """The request leaves, is carried out by nobody's process, and its answer comes, or does not."""
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
    """Runs a coroutine that waits for nothing; returns its result."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the inner store waited")
