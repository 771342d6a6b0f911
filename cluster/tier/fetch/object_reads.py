"""Reads ranges of objects: from the cache, from a request in flight, or by a new request.

A reader reserves memory before it sends a request, and waits while there is none. Two readers that want the same bytes
share a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from cluster.runtime.resource_budget import Room, Share
from cluster.tier.fetch.errors import Broken
from cluster.tier.fetch.range_cache import RangeCache
from cluster.tier.store.errors import BadAnswer, StoreError, Unreachable
from cluster.tier.store.object_store import ObjectStore

MEMORY_BYTES_MAX = 32 << 20
"""The most bytes of ranges that are being fetched, for all readers together."""
REQUESTS_MAX = 8
"""The most requests at once."""
BLOCK = 1 << 20
"""Reads of whole blocks end at multiples of this size, so that readers of neighbouring ranges find each other's bytes
in the cache."""


class _Flight(NamedTuple):
    """A request for bytes [start, stop) of an object. It is kept until the cache has the bytes, so that they are not
    fetched twice."""

    start: int
    stop: int
    data: asyncio.Future[bytes]


class ObjectReads:
    """Reads ranges of objects. `read` raises what the store raises. Event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        cache: RangeCache | None,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        where: Callable[[str], str] = str,
    ) -> None:
        """`where` returns the name under which an object lies, for messages to people (`LineageStore.where`)."""
        self._store = store
        self._cache = cache
        self._room = Room(memory_bytes_max, lambda call: asyncio.get_running_loop().call_soon(call))
        self._requests = asyncio.Semaphore(REQUESTS_MAX)
        self._flights: dict[str, list[_Flight]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken = Broken()
        self.where = where

    async def close(self) -> None:
        """Cancels the requests in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def keeps(self) -> bool:
        """True if there is a cache, so that bytes that are fetched ahead are found again."""
        return self._cache is not None

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests in progress."""
        return self._room.taken

    async def read(self, name: str, start: int, stop: int, *, fresh: bool = False, reach: int = 0) -> bytes:
        """Returns bytes [start, stop) of an object. `fresh`: they are read from the store itself, and the cached copy
        is dropped. `reach`: bytes that the cache lacks are fetched to the end of their block, but not beyond this
        position."""
        if fresh:
            if self._cache is not None:
                self._cache.drop(name, start, stop)
            share = self._room.share()
            try:
                return await self._request(share, name, start, stop)
            finally:
                share.hold(0)
        pieces: list[bytes] = []
        at = start
        while at < stop:
            piece = await self._piece(name, at, stop, reach)
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def fetch(self, name: str, start: int, stop: int, *, reach: int = 0) -> None:
        """Fetches bytes [start, stop) of an object into the cache, except those that it already has or that are being
        fetched."""
        at = start
        while at < stop:
            end = self._cache.end(name, at) if self._cache is not None else None
            if end is None and (flight := self._flight(name, at)) is not None:
                end = flight.stop
            at = end or at + len(await self._fly(name, at, self._until(name, at, stop, reach)))

    async def _piece(self, name: str, at: int, stop: int, reach: int) -> bytes:
        """Returns bytes from `at` on, at least one and none from `stop` on."""
        if self._cache is not None:
            cached = await self._cache.take(name, at, stop)
            if cached is not None:
                return cached
        flight = self._flight(name, at)
        if flight is not None:
            data = await asyncio.shield(flight.data)
            return data[at - flight.start : stop - flight.start]
        data = await self._fly(name, at, self._until(name, at, stop, reach))
        return data[: stop - at]

    def _flight(self, name: str, at: int) -> _Flight | None:
        """Returns the request in flight that brings the byte at `at`; None if there is none."""
        return next((each for each in self._flights.get(name, []) if each.start <= at < each.stop), None)

    def _until(self, name: str, at: int, stop: int, reach: int) -> int:
        """Returns the position at which a request for bytes from `at` on ends: before bytes that are cached or being
        fetched."""
        stop = max(stop, min(reach, -(-stop // BLOCK) * BLOCK))
        until = min([stop, *(each.start for each in self._flights.get(name, []) if each.start > at)])
        return until if self._cache is None else self._cache.next_start(name, at, until)

    async def _fly(self, name: str, start: int, stop: int) -> bytes:
        """Sends a request that other readers may join. It goes on if this caller is cancelled, because others may have
        joined."""
        flight = _Flight(start, stop, asyncio.get_running_loop().create_future())
        self._flights.setdefault(name, []).append(flight)
        task = asyncio.ensure_future(self._run(name, flight))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(flight.data)

    async def _run(self, name: str, flight: _Flight) -> None:
        share = self._room.share()
        try:
            data = await self._request(share, name, flight.start, flight.stop)
            flight.data.set_result(data)
            if self._cache is not None:
                await self._cache.put(name, flight.start, data)
        except (StoreError, asyncio.CancelledError) as error:
            if not flight.data.done():
                flight.data.set_exception(error if isinstance(error, StoreError) else Unreachable("the node stops"))
                flight.data.exception()  # marks the exception as retrieved, even if nobody waits any more
        finally:
            share.hold(0)
            flights = self._flights[name]
            flights.remove(flight)
            if not flights:
                del self._flights[name]

    async def _request(self, share: Share, name: str, start: int, stop: int) -> bytes:
        cut = f"{name} from byte {start} on"
        self.broken.check(name)
        await self._take(share, stop - start)
        async with self._requests:
            self.broken.check(name)  # another call may have found the object broken while this one waited
            self.broken.check(cut)
            try:
                data = await self._store.get_range(name, start, stop)
            except StoreError as error:
                self.broken.failed(cut if isinstance(error, BadAnswer) else name, error)
                raise
        self.broken.whole(name)
        self.broken.whole(cut)
        return data

    async def _take(self, share: Share, size: int) -> None:
        """Waits until there is memory for `size` more bytes, and reserves it."""
        if self._room.fits(size):
            share.hold(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take() -> None:
            if not turn.done():
                share.hold(size)
                turn.set_result(None)

        waiter = self._room.wait(size, take)
        try:
            await turn
        finally:
            waiter.leave()
