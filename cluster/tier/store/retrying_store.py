"""A store whose calls have a deadline and are retried after an exponential back-off with full jitter.

Full jitter means a random pause between 0 and the doubled limit, so that nodes do not all come back at once after a
store was down: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cluster.tier.store.errors import AlreadyExists, BadAnswer, Conflict, StoreError, Unreachable
from cluster.tier.store.object_store import Data, ObjectInfo, ObjectStore, StoredObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits after which a call is given up."""

    pause_min_s: float = 0.05
    pause_max_s: float = 30.0
    call_s: float = 60.0
    """Seconds for one request; each MiB of a write or read adds `call_s_per_mib`."""
    call_s_per_mib: float = 4.0
    total_s: float = 180.0
    """Seconds after the first attempt from which on no new attempt begins."""
    bad_answers_max: int = 3
    """The number of bad answers after which a call is given up, because the object itself is probably bad."""

    def deadline_s(self, size: int) -> float:
        """Returns the seconds that one request with `size` bytes may take."""
        return self.call_s + self.call_s_per_mib * size / (1 << 20)

    def pause_s(self, attempt: int, chance: random.Random) -> float:
        """Returns the seconds to wait before repetition `attempt`, which is 1 for the first one."""
        return chance.uniform(0, min(self.pause_max_s, self.pause_min_s * 2 ** min(attempt, 30)))


class RetryingStore:
    """A store with retries (`ObjectStore`). Conflict and AlreadyExists have `maybe_ours` set if an earlier attempt of
    the same call has an unknown outcome, because the caller itself may then have written what was found."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        chance: random.Random,
        counts: RequestCounts,
        bandwidth: Bandwidth | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`chance` makes the random pauses. `bandwidth` limits writes only; None: no limit."""
        self._store = store
        self._policy = policy
        self._chance = chance
        self._bandwidth = bandwidth
        self._sleep = sleep
        self.counts = counts

    @property
    def root(self) -> str:
        return self._store.root

    async def create(self, name: str, data: Data) -> None:
        size = memoryview(data).nbytes
        await self._call("create", name, size, lambda: self._store.create(name, data), writes=True)
        self.counts.sent(size)

    async def replace(self, name: str, data: Data, tag: str) -> None:
        size = memoryview(data).nbytes
        await self._call("replace", name, size, lambda: self._store.replace(name, data, tag), writes=True)
        self.counts.sent(size)

    async def get(self, name: str, size_max: int) -> StoredObject:
        stored = await self._call("get", name, size_max, lambda: self._store.get(name, size_max))
        self.counts.received(len(stored.data))
        return stored

    async def get_range(self, name: str, start: int, stop: int) -> bytes:
        data = await self._call("get_range", name, stop - start, lambda: self._store.get_range(name, start, stop))
        self.counts.received(len(data))
        return data

    async def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [await self.get_range(name, *each) for each in ranges]

    async def checksum(self, name: str, start: int, stop: int, crc: int = 0) -> int:
        size = stop - start
        found = await self._call("get_range", name, size, lambda: self._store.checksum(name, start, stop, crc))
        self.counts.received(size)
        return found

    async def head(self, name: str) -> ObjectInfo:
        return await self._call("head", name, 0, lambda: self._store.head(name))

    async def list(self, folder: str = "") -> AsyncIterator[ObjectInfo]:
        """Lists the objects below a folder (`ObjectStore.list`). Each step has a deadline. No step is retried, because
        names were already handed out."""
        infos = aiter(self._store.list(folder))
        outcome = "ok"
        try:
            while True:
                try:
                    async with asyncio.timeout(self._policy.call_s):
                        info = await anext(infos)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    outcome = "Timeout"
                    raise _late("list", folder, self._policy.call_s) from None
                except StoreError as error:
                    outcome = type(error).__name__
                    raise
                yield info
        finally:
            self.counts.record("list", outcome)

    async def delete(self, name: str) -> None:
        await self._call("delete", name, 0, lambda: self._store.delete(name))

    async def sweep(self, older_than_ms: int) -> int:
        return await self._call("sweep", "temporary files", 0, lambda: self._store.sweep(older_than_ms))

    async def close(self) -> None:
        await self._store.close()

    async def _call(
        self, operation: str, name: str, size: int, call: Callable[[], Awaitable[T]], *, writes: bool = False
    ) -> T:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._policy.total_s
        attempt, bad_answers, unknown = 0, 0, False
        while True:
            if writes and self._bandwidth is not None:
                wait_s = self._bandwidth.wait_s(size)
                if wait_s:
                    await self._sleep(wait_s)
            try:
                return await self._attempt(operation, name, size, call)
            except StoreError as error:
                if isinstance(error, AlreadyExists | Conflict) and unknown:
                    raise type(error)(error.what, error.fix, maybe_ours=True) from error
                unknown = unknown or (writes and error.outcome_unknown)
                attempt += 1
                pause_s = self._policy.pause_s(attempt, self._chance)
                bad_answers += isinstance(error, BadAnswer)
                given_up = bad_answers >= self._policy.bad_answers_max or loop.time() + pause_s >= until_s
                if not error.retryable or given_up:
                    raise
            self.counts.retried()
            await self._sleep(pause_s)

    async def _attempt(self, operation: str, name: str, size: int, call: Callable[[], Awaitable[T]]) -> T:
        deadline_s = self._policy.deadline_s(size)
        try:
            async with asyncio.timeout(deadline_s):
                result = await call()
        except TimeoutError:
            self.counts.record(operation, "Timeout")
            raise _late(operation, name, deadline_s) from None
        except StoreError as error:
            self.counts.record(operation, type(error).__name__)
            raise
        self.counts.record(operation, "ok")
        return result


def _late(operation: str, name: str, after_s: float) -> Unreachable:
    return Unreachable(f"{operation} of {name}: no answer within {after_s:.0f} s", "look at the store, or at the mount")


class Bandwidth:
    """A limit of `rate` bytes per second; 0: no limit. A write of any size may begin when the time of the writes booked
    before it is over. Its own time delays the next write."""

    def __init__(self, rate: int, monotonic_s: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic_s = monotonic_s
        self._free_at_s = monotonic_s()

    def reload(self, rate: int) -> None:
        """Changes the rate; bytes that are booked stay booked."""
        self._rate = rate

    def wait_s(self, size: int) -> float:
        """Books `size` bytes; returns the seconds that the caller waits before it writes."""
        if not self._rate:
            return 0.0
        now_s = self._monotonic_s()
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + size / self._rate
        return begin_s - now_s


class RequestCounts:
    """Counts since the process started. Event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """(operation, outcome) -> number. The outcome is ok, the name of an error class in `errors.py`, or Timeout."""
        self.retries = 0
        self.sent_bytes = 0
        """Bytes of successful writes."""
        self.received_bytes = 0

    def record(self, operation: str, outcome: str) -> None:
        """Counts a request that ended."""
        self.requests[operation, outcome] += 1

    def retried(self) -> None:
        """Counts a repeated request."""
        self.retries += 1

    def sent(self, size: int) -> None:
        """Counts written bytes."""
        self.sent_bytes += size

    def received(self, size: int) -> None:
        """Counts received bytes."""
        self.received_bytes += size
