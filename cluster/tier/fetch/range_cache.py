"""A bounded cache of ranges of immutable objects, in files of a directory.

Everything in the cache can be fetched again. The directory is therefore emptied at start, nothing is synced, and a
range that cannot be read or written, or that does not match its checksum, is dropped. Each file holds one range. The
map of the ranges is in memory, with a CRC-32C for each CHUNK bytes of a range.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cluster.runtime.lanes import CallThreads
from raftmq_wire.checksums import crc32c

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
FILES_MAX = 20_000
"""The most files. The map then takes about 10 MB of memory. Without this limit, ranges of single messages would fill a
large cache with millions of files."""
THREADS = 2
_FILE = re.compile(r"[0-9a-f]{16}\.range")


class Extent(NamedTuple):
    """Bytes [start, stop) of an object, in the file `number`."""

    start: int
    stop: int
    number: int


class CacheCounts:
    """Counts of the cache since the process started."""

    def __init__(self) -> None:
        self.hits = 0
        """Lookups that found at least the first wanted byte."""
        self.misses = 0
        self.dropped = 0
        """Files that did not match their checksum, or that could not be read or written."""

    def hit(self) -> None:
        """Counts a range that was found."""
        self.hits += 1

    def miss(self) -> None:
        """Counts a range that was not found."""
        self.misses += 1

    def drop(self) -> None:
        """Counts a file that was dropped as unusable."""
        self.dropped += 1


class RangeCache:
    """Keeps ranges of objects in files of `folder`: at most `bytes_max` bytes in `files_max` files. Event loop only."""

    def __init__(self, folder: Path, bytes_max: int, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self.counts = CacheCounts()
        self.bytes = 0
        self._folder = folder
        self._bytes_max = bytes_max
        self._threads = CallThreads("tier-cache", THREADS)
        self._objects: dict[str, list[Extent]] = {}
        """Name of an object -> its cached ranges, ascending by start. No range lies inside another."""
        self._checksums: OrderedDict[int, tuple[str, Extent, tuple[int, ...]]] = OrderedDict()
        """Number of a file -> (name of the object, range, checksums), least recently used first."""
        self._number = 0
        self._is_open = False

    async def open(self) -> None:
        """Makes the directory and removes files of this cache from it. If that fails, the cache keeps nothing."""
        try:
            await self._threads.call(_empty, self._folder)
        except OSError as error:
            logger.warning("tier: nothing that is read will be kept: %s", error)
        else:
            self._is_open = True

    def close(self) -> None:
        """Stops the threads, and does not wait for them."""
        self._threads.close()

    def covers(self, name: str, at: int) -> bool:
        """Returns True if the cache has the byte at `at`."""
        return self._extent(name, at) is not None

    def end(self, name: str, at: int) -> int | None:
        """Returns the end of the range that has the byte at `at`; None if the cache does not have it."""
        extent = self._extent(name, at)
        return None if extent is None else extent.stop

    def next_start(self, name: str, at: int, stop: int) -> int:
        """Returns the beginning of the next cached range above `at`; `stop` if that comes first."""
        extents = self._objects.get(name, [])
        after = bisect_right(extents, at, key=_start)
        return min(stop, extents[after].start) if after < len(extents) else stop

    async def take(self, name: str, at: int, stop: int) -> bytes | None:
        """Returns bytes from `at` on, at least one and none from `stop` on; None if the first is not cached."""
        extent = self._extent(name, at)
        if extent is None:
            self.counts.miss()
            return None
        checksums = self._checksums[extent.number][2]
        self._checksums.move_to_end(extent.number)
        begin, end = at - extent.start, min(stop, extent.stop) - extent.start
        try:
            data = await self._threads.call(_read, self._path(extent.number), begin, end, checksums)
        except (OSError, ValueError) as error:
            # If the file is absent, the cache has removed it in the meantime as the least recently used one.
            if not isinstance(error, FileNotFoundError):
                logger.warning("tier: a file of the cache is dropped: %s", error)
                self.counts.drop()
            self._forget(extent.number)
            return None
        self.counts.hit()
        return data

    async def put(self, name: str, start: int, data: bytes) -> None:
        """Adds a range. Never fails: a range is not kept if it cannot be written, is larger than the cache, or lies
        inside a cached one."""
        if not self._is_open or not data or len(data) > self._bytes_max:
            return
        self._number += 1
        number = self._number
        checksums = tuple(crc32c(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
        try:
            await self._threads.call(_write, self._path(number), data)
        except OSError as error:
            logger.warning("tier: nothing is added to the cache: %s", error)
            self.counts.drop()
            self._unlink(number)
            return
        extent = Extent(start, start + len(data), number)
        near = self._near(name, *extent[:2])
        for other in [each for each in near if _inside(each, extent)]:
            self._forget(other.number)
        if any(_inside(extent, each) and not _inside(each, extent) for each in near):
            self._unlink(number)
            return
        insort(self._objects.setdefault(name, []), extent)
        self._checksums[number] = (name, extent, checksums)
        self.bytes += len(data)
        while self.bytes > self._bytes_max or len(self._checksums) > self._files_max:
            self._forget(next(iter(self._checksums)))

    def drop(self, name: str, start: int, stop: int) -> None:
        """Forgets every range that has a byte of [start, stop)."""
        for extent in self._near(name, start, stop):
            self.counts.drop()
            self._forget(extent.number)

    def _extent(self, name: str, at: int) -> Extent | None:
        extents = self._objects.get(name, [])
        before = bisect_right(extents, at, key=_start) - 1  # earlier ranges end earlier, so they lack the byte too
        return extents[before] if before >= 0 and at < extents[before].stop else None

    def _near(self, name: str, start: int, stop: int) -> list[Extent]:
        """Returns the slice of ranges that have a byte of [start, stop)."""
        extents = self._objects.get(name, [])
        first = bisect_right(extents, start, key=_stop)  # the ends of ranges ascend as their starts do
        return extents[first : bisect_left(extents, stop, key=_start)]

    def _forget(self, number: int) -> None:
        known = self._checksums.pop(number, None)
        if known is None:
            return
        name, extent, _ = known
        extents = self._objects[name]
        del extents[bisect_left(extents, extent)]
        if not extents:
            del self._objects[name]
        self.bytes -= extent.stop - extent.start
        self._unlink(number)

    def _unlink(self, number: int) -> None:
        self._threads.begin(_unlink, self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:016x}.range"


def _start(extent: Extent) -> int:
    return extent.start


def _stop(extent: Extent) -> int:
    return extent.stop


def _inside(one: Extent, other: Extent) -> bool:
    return other.start <= one.start and one.stop <= other.stop


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if _FILE.fullmatch(path.name):
            path.unlink()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _read(path: Path, begin: int, end: int, checksums: tuple[int, ...]) -> bytes:
    """Returns bytes [begin, end) of the file, read in whole chunks whose checksums match. Raises ValueError if one does
    not."""
    first, last = begin // CHUNK, (end - 1) // CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(first * CHUNK)
        data = file.read((last + 1 - first) * CHUNK)
    for number in range(first, last + 1):
        at = (number - first) * CHUNK
        if crc32c(data[at : at + CHUNK]) != checksums[number]:
            raise ValueError(f"chunk {number} of {path} does not match its CRC")
    return data[begin - first * CHUNK : end - first * CHUNK]
