"""Scrubs of the tier: list, verify, repair, sweep; one at a time, each with a report.

- *verify* reads every object of every VERIFIED segment and compares size and CRC-32C.
- *repair* also writes what is missing or damaged again, from this node's log while it still has the bytes. A damaged
  object is replaced by compare-and-swap against the damaged version, so two repairs cannot undo each other.
- *sweep* removes objects that no row names, and none ever will: leftovers of leaders that died between writing an
  object and recording it.

Nothing is concluded from a listing alone but what a request about the very object confirms: a broken proxy may show an
empty listing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from cluster.tier.scrub.survey import Survey, survey
from cluster.tier.store.errors import AlreadyExists, BadAnswer, Conflict, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, READ_BACK_BYTES, ObjectInfo, ObjectStore
from raftlog.checksums import crc32c
from statemachine.tier import LOG_PREFIX, TierPart, TierSegment

logger = logging.getLogger(__name__)

FINDINGS_MAX = 100
"""Kept in a report; the counts say how many there were."""
MANIFESTS, STATES = "manifest/", "state/"
TEMPORARY_MS = 24 * 3_600_000
"""A temporary file of the store that is older belongs to nobody."""


class Source(NamedTuple):
    """Where the content of a damaged part may come from."""

    what: str
    make: Callable[[TierSegment, TierPart], Awaitable[bytes | None]]
    """None if it has not got it (any more). The scrubber compares what it gets."""


class Report(NamedTuple):
    """What a scrub found."""

    segments: int
    """Verified ones, all of which were looked at."""
    objects: int
    read_bytes: int
    bad: int
    """Objects that were missing, cut or damaged."""
    repaired: int
    orphans: int
    """Objects that no row names, and none ever will."""
    unsettled: int
    """Objects that no row names yet."""
    swept: int
    strange: int
    """Objects that are none of this program's."""
    findings: list[str]

    @property
    def unrepaired(self) -> int:
        """Objects that are still bad."""
        return self.bad - self.repaired


class Wishes(NamedTuple):
    """What a scrub is to do beside listing."""

    reads: bool = True
    """Compare contents, not only sizes."""
    repairs: bool = False
    sweeps: bool = False
    newest: int = 0
    """Compare the contents of so many segments, the newest, and only the sizes of the others; 0: contents of all."""

    def reads_of(self, rows: Sequence[TierSegment]) -> int:
        """Position from which on the contents of segments are compared."""
        if not self.reads:
            return rows[-1].end if rows else 0
        return rows[-self.newest].base if 0 < self.newest < len(rows) else 0


class LeaderChangedError(Exception):
    """This node does not lead any more: its rows may be old, so nothing may be removed or written."""


class Scrubber:
    """Event loop only."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        rows: Callable[[], Sequence[TierSegment]],
        wall_ms: Callable[[], int],
        leads: Callable[[], bool],
        kept_from: Callable[[], int] = lambda: 0,
        sources: Sequence[Source] = (),
        pace: Callable[[int], Awaitable[None]] | None = None,
        where: Callable[[str], str] = str,
    ) -> None:
        """`kept_from`: see `survey`. `leads`: whether this node may change the store. `pace` (bytes): waits so that
        reading does not take more bandwidth than it may. `where`: see ObjectReads."""
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

    async def scrub(self, wishes: Wishes) -> Report:
        """Raises StoreError if the store does not answer, LeaderChangedError."""
        self._read_bytes = 0
        findings: list[str] = []
        listed = [info async for info in self._listed()]
        rows = self._rows()  # after the listing: what was written and recorded meanwhile has a row
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
                    break  # trimmed from the tier meanwhile
                bad += 1
                name = self._where(f"{self._folder}/{part.name}").removeprefix(f"{self._folder}/")  # before the repair
                mended = await self._repair(row, part) if wishes.repairs else ""
                repaired += bool(mended)
                findings.append(f"{name}: {why}" + (f"; repaired from {mended}" if mended else ""))
        findings += [f"{info.name}: no segment names it ({info.size} bytes)" for info in seen.orphans]
        findings += [f"{name}: not an object of RaftMQ" for name in seen.strange]
        swept = await self._sweep(seen.orphans) if wishes.sweeps else 0
        return Report(
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
        """Everything of the cluster but its manifests and state copies, with names below its folder."""
        async for info in self._store.list(self._folder):
            name = info.name.removeprefix(f"{self._folder}/")
            if not name.startswith((MANIFESTS, STATES)):
                yield info._replace(name=name)

    def _is_gone(self, row: TierSegment) -> bool:
        return row not in self._rows()

    # --- what is named and not right ---

    async def _problem(self, part: TierPart, seen: Survey, *, reads: bool) -> str:
        """What is wrong with the object, "" if nothing is."""
        listed_right = part.name not in seen.absent and part.name not in seen.sized_wrongly
        if listed_right and not reads:
            return ""
        for attempt in range(2):
            why = await self._look(part, reads=reads)
            if not why or attempt:
                return why  # a bad answer is no bad object: it was asked for twice
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
        """Where the content came from, "" if nobody has it."""
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
                return  # somebody else did; it is looked at next
            return
        try:
            await self._store.replace(name, data, stored.tag)
        except (Conflict, NotFound):
            return

    # --- what is there and not named ---

    async def _sweep(self, orphans: Sequence[ObjectInfo]) -> int:
        """Removes them, and temporary files; returns how many."""
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
    """The content of a log part, from `piece` (base, end), which reads this node's log."""
    at = row.base
    for other in sorted((each for each in row.parts if each.name.startswith(LOG_PREFIX)), key=lambda each: each.name):
        if other.name == part.name:
            return bytes(await piece(at, at + part.size))
        at += other.size
    return None
