"""Scrubs of the tier: list, verify, repair and sweep. One scrub runs at a time and ends with a report.

- *verify* reads every object of every VERIFIED segment and compares size and CRC-32C.
- *repair* also writes objects that are missing or damaged again, from this node's log while it still has the bytes, or
  an index file from the segment's own objects. A damaged object is replaced by compare-and-swap against the damaged
  version, so two repairs cannot undo each other.
- *sweep* removes objects that no row names and none will ever name: leftovers of leaders that died between writing an
  object and recording it.

No object counts as missing because of a listing alone, because a broken proxy may show an empty one. A request about
the object itself has to confirm it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from cluster.tier.object_names import part_base
from cluster.tier.store.errors import AlreadyExists, BadAnswer, Conflict, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, READ_BACK_BYTES, ObjectInfo, ObjectStore
from raftlog.errors import FrameError
from raftlog.frame import decode_entries
from raftlog.storage.files.genesis import Genesis
from raftlog.types import Entry
from raftmq_wire.checksums import crc32c
from statemachine.index_file.index_format import IndexMeta
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.payload import PayloadError
from statemachine.tier import LOG_PREFIX, TierPart, TierSegment, TierState

logger = logging.getLogger(__name__)

FINDINGS_MAX = 100
"""The most findings in a report; its counts include the others."""
MANIFESTS, STATES = "manifest/", "state/"
TEMPORARY_MS = 24 * 3_600_000
"""The age from which on a temporary file of the store belongs to nobody, in milliseconds."""


class PartSource(NamedTuple):
    """A source of the content of a damaged part."""

    what: str
    make: Callable[[TierSegment, TierPart], Awaitable[bytes | None]]
    """Returns the content of the part, which the scrubber then checks; None if the source does not have it."""


class ScrubReport(NamedTuple):
    """The counts and findings of a scrub."""

    segments: int
    """VERIFIED segments, all of which were looked at."""
    objects: int
    read_bytes: int
    bad: int
    """Objects that were missing, cut or damaged."""
    repaired: int
    orphans: int
    """Objects that no row names, and none will ever name."""
    unsettled: int
    """Objects that no row names yet."""
    swept: int
    strange: int
    """Objects that do not belong to RaftMQ."""
    findings: list[str]

    @property
    def unrepaired(self) -> int:
        """Objects that are still bad."""
        return self.bad - self.repaired


class ScrubOptions(NamedTuple):
    """The options of a scrub. Every scrub lists the objects and compares their sizes."""

    reads: bool = True
    """True if the scrub reads the objects and compares their checksums."""
    repairs: bool = False
    sweeps: bool = False
    newest: int = 0
    """The number of segments, the newest ones, whose objects are read; of all others only sizes are compared. 0: all
    are read."""

    def reads_of(self, rows: Sequence[TierSegment]) -> int:
        """Returns the position of the log from which on the objects of the segments `rows` are read."""
        if not self.reads:
            return rows[-1].end if rows else 0
        return rows[-self.newest].base if 0 < self.newest < len(rows) else 0


class LeaderChangedError(Exception):
    """This node does not lead any more. Its rows may be old, so it must not remove or write anything."""


class TierScrubber:
    """Does scrubs, one for each call of `scrub`. Event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        rows: Callable[[], Sequence[TierSegment]],
        wall_ms: Callable[[], int],
        leads: Callable[[], bool],
        kept_from: Callable[[], int] = lambda: 0,
        sources: Sequence[PartSource] = (),
        pace: Callable[[int], Awaitable[None]] | None = None,
        where: Callable[[str], str] = str,
    ) -> None:
        """`rows` returns the state's rows of segments. `kept_from` returns the lowest position of the log that is kept
        on the nodes or in the tier. `leads` returns True if this node may change the store. `sources` are tried in
        order to repair an object. `pace` (bytes) waits before a read, to limit the bandwidth; None: no limit. `where`
        returns the name under which an object lies (`LineageStore.where`)."""
        self._store = store
        self._folder = folder
        self._rows = rows
        self._wall_ms = wall_ms
        self._leads = leads
        self._kept_from = kept_from
        self._sources = sources
        self._pace = pace
        self._where = where
        self._read_bytes = 0

    async def scrub(self, wishes: ScrubOptions) -> ScrubReport:
        """Does the scrub. Raises StoreError if the store does not answer, and LeaderChangedError."""
        self._read_bytes = 0
        findings: list[str] = []
        listed = [info async for info in self._listed()]
        rows = self._rows()  # read after the listing, so that objects recorded meanwhile have a row
        seen = survey(rows, listed, self._wall_ms(), self._kept_from())
        bad = repaired = 0
        reads_from = wishes.reads_of(rows)
        for row in rows:
            for part in row.parts:
                if part.name not in seen.expected:
                    continue
                why = await self._problem(part, seen, reads=row.base >= reads_from)
                if not why:
                    continue
                if self._is_gone(row):
                    break  # the tier gave up the segment meanwhile
                bad += 1
                # Asked before the repair, which writes the object below this cluster's own folder.
                name = self._where(f"{self._folder}/{part.name}").removeprefix(f"{self._folder}/")
                mended = await self._repair(row, part) if wishes.repairs else ""
                repaired += bool(mended)
                findings.append(f"{name}: {why}" + (f"; repaired from {mended}" if mended else ""))
        findings += [f"{info.name}: no segment names it ({info.size} bytes)" for info in seen.orphans]
        findings += [f"{name}: not an object of RaftMQ" for name in seen.strange]
        swept = await self._sweep(seen.orphans) if wishes.sweeps else 0
        return ScrubReport(
            segments=len([row for row in rows if any(part.name in seen.expected for part in row.parts)]),
            objects=len(seen.expected),
            read_bytes=self._read_bytes,
            bad=bad,
            repaired=repaired,
            orphans=len(seen.orphans),
            unsettled=len(seen.unsettled),
            swept=swept,
            strange=len(seen.strange),
            findings=findings[:FINDINGS_MAX],
        )

    async def _listed(self) -> AsyncIterator[ObjectInfo]:
        """Yields every object of the cluster except its manifests and state copies, with names below its folder."""
        async for info in self._store.list(self._folder):
            name = info.name.removeprefix(f"{self._folder}/")
            if not name.startswith((MANIFESTS, STATES)):
                yield info._replace(name=name)

    def _is_gone(self, row: TierSegment) -> bool:
        return row not in self._rows()

    # --- objects that are named and not right ---

    async def _problem(self, part: TierPart, seen: ScrubSurvey, *, reads: bool) -> str:
        """Returns what is wrong with the object, "" if nothing is."""
        listed_right = part.name not in seen.absent and part.name not in seen.sized_wrongly
        if listed_right and not reads:
            return ""
        for attempt in range(2):
            why = await self._look(part, reads=reads)
            if not why or attempt:
                return why  # One bad answer does not prove that the object is bad: it was requested twice.
        return ""

    async def _look(self, part: TierPart, *, reads: bool) -> str:
        name = f"{self._folder}/{part.name}"
        try:
            info = await self._store.head(name)
            if info.size != part.size:
                return f"it has {info.size} bytes instead of {part.size}"
            return await self._compare(name, part) if reads else ""
        except NotFound:
            return "it is missing"
        except BadAnswer as error:
            return error.what

    async def _compare(self, name: str, part: TierPart) -> str:
        crc = 0
        for start in range(0, part.size, READ_BACK_BYTES):
            stop = min(part.size, start + READ_BACK_BYTES)
            if self._pace is not None:
                await self._pace(stop - start)
            crc = await self._store.checksum(name, start, stop, crc)
            self._read_bytes += stop - start
        return "" if crc == part.crc32c else f"its CRC-32C is {crc:08x} instead of {part.crc32c:08x}"

    # --- repair ---

    async def _repair(self, row: TierSegment, part: TierPart) -> str:
        """Returns the name of the source from which the object was repaired; "" if no source has the content."""
        for source in self._sources:
            data = await source.make(row, part)
            if data is None or len(data) != part.size or crc32c(data) != part.crc32c:
                continue
            if not self._leads():
                raise LeaderChangedError
            await self._restore(f"{self._folder}/{part.name}", data)
            if not await self._look(part, reads=True):
                logger.info("tier: %s was repaired from %s", part.name, source.what)
                return source.what
        return ""

    async def _restore(self, name: str, data: bytes) -> None:
        try:
            stored = await self._store.get(name, 2 * OBJECT_BYTES_MAX)
        except NotFound:
            try:
                await self._store.create(name, data)
            except AlreadyExists:
                return  # Another node has written the object. The caller checks it next.
            return
        try:
            await self._store.replace(name, data, stored.tag)
        except (Conflict, NotFound):
            return

    # --- objects that are there and not named ---

    async def _sweep(self, orphans: Sequence[ObjectInfo]) -> int:
        """Removes the orphans, and temporary files; returns the number removed."""
        swept = await self._store.sweep(TEMPORARY_MS)
        for info in orphans:
            if not self._leads():
                raise LeaderChangedError
            await self._store.delete(f"{self._folder}/{info.name}")
            logger.info("tier: %s was removed: no segment names it", info.name)
            swept += 1
        return swept


async def log_bytes(
    piece: Callable[[int, int], Awaitable[memoryview]], row: TierSegment, part: TierPart
) -> bytes | None:
    """Returns the content of a log part, read by `piece` (base, end) from this node's log; None if the row has no such
    log part."""
    at = row.base
    for other in sorted((each for each in row.parts if each.name.startswith(LOG_PREFIX)), key=lambda each: each.name):
        if other.name == part.name:
            return bytes(await piece(at, at + part.size))
        at += other.size
    return None


# Compares a listing of the store with the rows of the state. No I/O.

PROBE_MS = 3_600_000
"""Milliseconds. If an object of a probe (`store.object_store.probe`) is older, the node that wrote it has died."""
_PROBE = re.compile(r"probe/[0-9a-f]+")


class ScrubSurvey(NamedTuple):
    """The result of the comparison. Names are below the cluster's folder."""

    expected: dict[str, TierPart]
    """Objects of VERIFIED segments by name."""
    absent: list[str]
    """Expected objects that are not in the listing. Only a request for each proves that it is gone."""
    sized_wrongly: dict[str, int]
    """Expected objects that are in the listing with another size."""
    orphans: list[ObjectInfo]
    """Objects that no row names, and none will ever name."""
    unsettled: list[ObjectInfo]
    """Objects that no row names yet: of a segment that is being uploaded, or of a probe."""
    strange: list[str]
    """All other objects. They do not belong to RaftMQ, so they are never removed."""


def survey(rows: Sequence[TierSegment], listed: Iterable[ObjectInfo], now_ms: int, kept_from: int = 0) -> ScrubSurvey:
    """Compares the rows with the objects in the store. `listed`: every object below the cluster's folder except
    manifests and state copies, with names below that folder. `kept_from`: the lowest position of the log that is kept
    on the nodes or in the tier."""
    named = {part.name for row in rows for part in row.parts}
    expected = {part.name: part for row in rows if row.state is TierState.VERIFIED for part in row.parts}
    sizes: dict[str, int] = {}
    found = ScrubSurvey(expected, [], {}, [], [], [])
    for info in listed:
        base, probe = part_base(info.name), _PROBE.fullmatch(info.name)
        if info.name in named:
            sizes[info.name] = info.size
        elif base is None and probe is None:
            found.strange.append(info.name)
        elif _is_settled(rows, base, kept_from) if base is not None else info.modified_ms + PROBE_MS <= now_ms:
            found.orphans.append(info)
        else:
            found.unsettled.append(info)
    found.absent.extend(name for name in expected if name not in sizes)
    found.sized_wrongly.update(
        {name: sizes[name] for name, part in expected.items() if name in sizes and sizes[name] != part.size}
    )
    return found


def _is_settled(rows: Sequence[TierSegment], base: int, kept_from: int) -> bool:
    """Returns True if no upload will ever name another object of the segment at `base`: its names are VERIFIED and do
    not change, or it lies below all rows or below `kept_from`, and uploads continue only above both. The age of an
    object does not decide. Otherwise a removal that a slow network delays could hit an object that an upload has found
    and verified since."""
    number = bisect_right(rows, base, key=lambda row: row.base) - 1
    if number >= 0 and base < rows[number].end:
        return rows[number].state >= TierState.VERIFIED
    return base < kept_from or bool(rows and base < rows[0].base)


# Makes the index file of a segment again from the segment's own objects in the store.
#
# Once a segment is evicted, no node has its rows or its entries. A damaged index file would then hide intact messages,
# although the store has their frames.


class IndexOfTier:
    """A source of index files for repairs. A thread decodes the entries; one complete segment is in memory at a time.
    Event loop only."""

    def __init__(self, store: ObjectStore, folder: str, genesis: Genesis) -> None:
        self._store = store
        self._folder = folder
        self._genesis = genesis

    async def content_of(self, row: TierSegment, part: TierPart) -> bytes | None:
        """Returns the content of the index file `part`. Returns None if `part` is not an index file, if the segment's
        own objects are not intact, or if the original listed other messages than the entries do: it lacks those of
        topics that were deleted before it was made. Raises StoreError if the store does not answer."""
        if part.name.startswith(LOG_PREFIX):
            return None
        frames = bytearray()
        for each in sorted((each for each in row.parts if each.name.startswith(LOG_PREFIX)), key=lambda one: one.name):
            try:
                data = (await self._store.get(f"{self._folder}/{each.name}", each.size)).data
            except (NotFound, BadAnswer):
                return None
            if crc32c(bytes(data)) != each.crc32c:
                return None
            frames += data
        made = await asyncio.get_running_loop().run_in_executor(None, self._make, row, bytes(frames))
        is_it = made is not None and len(made) == part.size and crc32c(made) == part.crc32c
        return made if is_it else None

    def _make(self, row: TierSegment, frames: bytes) -> bytes | None:
        made = bytearray()
        try:
            entries = list(decode_entries(frames, self._genesis.group_id))
            write_index_of_log(entries, self._meta(row, entries), made.extend)
        except (FrameError, PayloadError):
            return None  # a newer release wrote the frames
        return bytes(made)

    def _meta(self, row: TierSegment, entries: Sequence[Entry]) -> IndexMeta:
        span, last = row.span, entries[-1]
        return IndexMeta(
            cluster_id=self._genesis.cluster_uuid,
            base=row.base,
            end=row.end,
            first_index=span.first_index,
            last_index=span.last_index,
            last_term=last.term,
            first_ms=span.first_ms,
            last_ms=span.last_ms,
            messages=0,
            queues=0,
            keys=0,
            group_id=self._genesis.group_id,
            last_crc=last.header_crc,
        )
