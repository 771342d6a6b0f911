"""The upload of one segment into the tier (docs/adr/0060).

Each step begins when the step before it is applied. A crash at any point therefore leaves a state from which the next
leader continues: it repeats the interrupted step, and writes the same names and the same bytes.

An upload replaces and removes nothing. A part that reads back wrong is written again under another name, and the wrong
object is an orphan that `raftmq tier sweep` removes. If a deposed leader deleted it, the delete could hit an object
that the next leader has verified.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.tier.log_proposals import TierSteps
from cluster.tier.object_names import LOG, PartName
from cluster.tier.segment_reads import Looked, SegmentReads
from cluster.tier.store.errors import AlreadyExists, NotFound
from cluster.tier.store.object_store import Data, ObjectStore, checksum_of
from cluster.tier.tier_metrics import TierMetrics
from raftlog.errors import RaftLogError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import LogTail
from statemachine.tier import SegmentSpan, TierPart, TierSegment, TierState

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState


logger = logging.getLogger(__name__)

COPIES_MAX = 8
"""The most attempts to write the parts of a segment: a store that damages as many objects is broken."""


class BadPartError(Exception):
    """Parts of a segment still read back wrong after COPIES_MAX attempts."""


class PartContent(NamedTuple):
    """The content of a part, with its checksums. The part stands for the bytes [base, end) of the log."""

    folder: str
    base: int
    end: int
    data: Data
    digest: bytes
    crc32c: int


class IndexParts(Protocol):
    """Makes the index part of a segment."""

    async def of_segment(self, base: int, span: SegmentSpan) -> PartContent:
        """Returns the index part. Raises RaftLogError if it cannot be made now."""


class Uploader:
    """Moves one segment after the other through its states. Holds no lock across a call. Event loop only."""

    def __init__(
        self,
        reads: SegmentReads,
        store: ObjectStore,
        folder: str,
        steps: TierSteps,
        *,
        metrics: TierMetrics,
        point: Callable[[str], Awaitable[None]],
        index: IndexParts | None = None,
    ) -> None:
        """`folder`: the cluster's folder in the store. `point` passes the failpoint of a name, at which a test may hold
        the upload or make it fail. `index`: None if segments get no index part."""
        self._reads = reads
        self._store = store
        self._folder = folder
        self._steps = steps
        self._metrics = metrics
        self._point = point
        self._index = index

    async def upload(self, base: int, span: SegmentSpan, known: TierSegment | None, term: int) -> None:
        """Continues from `known`, the segment's row, until the segment is VERIFIED. `known`: None if the upload has not
        begun. Raises StoreError, RaftLogError, OSError, BadPartError and NotRecordedError; the caller may always call
        again."""
        state = TierState.UPLOADING if known is None else known.state
        parts = () if known is None else known.parts
        if known is None:
            # The row comes before the first object, so that the next leader knows which segment may have objects.
            await self._record(base, TierState.UPLOADING, term, span)
        if state is TierState.UPLOADING:
            parts = await self._write(base, span, set())
            await self._record(base, TierState.UPLOADED, term, parts=parts)
        # The nodes may remove their copy of a VERIFIED segment, so every part is read back first.
        avoid: set[str] = set()
        for _ in range(COPIES_MAX):
            bad = await self._bad_parts(parts)
            # Every byte was read back as it was written. Only now may the row be VERIFIED.
            if not bad:
                await self._record(base, TierState.VERIFIED, term)
                return
            for name, why in bad.items():
                logger.warning("tier: %s is written again: %s", name, why)
            self._metrics.rewritten.inc(len(bad))
            avoid |= bad.keys()
            # The new objects get other names. A bad object is never overwritten, because a reader may hold its name.
            parts = await self._write(base, span, avoid)
            await self._record(base, TierState.UPLOADED, term, parts=parts)
        raise BadPartError(f"the segment at {base} read back wrong {COPIES_MAX} times: {', '.join(sorted(avoid))}")

    async def _record(
        self,
        base: int,
        state: TierState,
        term: int,
        span: SegmentSpan | None = None,
        parts: tuple[TierPart, ...] | None = None,
    ) -> None:
        await self._point(f"tier.{state.name.lower()}")
        await self._steps.record(base, state, term, span, parts)
        self._metrics.moved(state)
        logger.info("tier: the segment at %d is %s", base, state.name, extra={"base": base, "state": state.name})

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _write(self, base: int, span: SegmentSpan, avoid: set[str]) -> tuple[TierPart, ...]:
        """Writes every part, the log before the index, and none under a name in `avoid`."""
        parts = []
        at = base
        while at < span.end:
            piece = await self._reads.piece(at, span.end)
            parts.append(await self._put(PartContent(LOG, *piece), avoid))
            at = piece.end
            del piece  # frees 64 MiB while the next piece is read
        if self._index is not None:
            parts.append(await self._put(await self._index.of_segment(base, span), avoid))
        return tuple(parts)

    async def _put(self, made: PartContent, avoid: set[str]) -> TierPart:
        name = PartName(made.folder, made.base, made.end, made.digest.hex()[:16])
        while str(name) in avoid:
            name = name._replace(copy=name.copy + 1)
        size = len(made.data)
        await self._point("tier.put")
        try:
            await self._store.create(f"{self._folder}/{name}", made.data)
        # The name has the content's digest, so the object is the same or damaged; reading it back tells which.
        except AlreadyExists:
            logger.info("tier: %s exists: an earlier attempt wrote it, and it is read back like any other", name)
        else:
            self._metrics.written.labels(made.folder).inc(size)
        return TierPart(str(name), size, made.digest, made.crc32c)

    # --- reading back ------------------------------------------------------------------------------------------------

    async def _bad_parts(self, parts: tuple[TierPart, ...]) -> dict[str, str]:
        """Returns the name of each bad part -> what is wrong with it."""
        bad: dict[str, str] = {}
        await self._point("tier.read_back")
        for part in parts:
            why = await self._problem(part)
            if why:
                why = await self._problem(part)  # a bad answer does not prove a bad object
            if why:
                bad[part.name] = why
        return bad

    async def _problem(self, part: TierPart) -> str:
        """Returns what is wrong with the object, "" if nothing is."""
        name = f"{self._folder}/{part.name}"
        try:
            found = await self._store.head(name)
        except NotFound:
            return "it is missing"
        if found.size != part.size:
            return f"it has {found.size} bytes instead of {part.size}"
        crc = await checksum_of(self._store, name, part.size)
        self._metrics.read_back.inc(part.size)
        return "" if crc == part.crc32c else f"its CRC-32C is {crc:08x} instead of {part.crc32c:08x}"


# Measures how long the oldest message has waited for the store, and says when its segment is to be closed because that
# is too long (ADR 0087).
#
# Otherwise only full segments are closed, and the last messages of a quiet cluster would be on the nodes only, for
# days. Only messages count: otherwise the entries with which the tier records its own steps would close one segment
# after the other without end.

LOOK_BYTES_MAX = 8 << 20
"""The number of bytes of the log that one call of `look` searches. Between two calls a cluster writes fewer bytes of
entries without messages, so the search does not fall behind."""


class AgeSeals:
    """Decides on the leader whether the segment that is being written is to be closed by age. Event loop only."""

    def __init__(self, state: BrokerState, log: SegmentedLog, reads: SegmentReads) -> None:
        self._state = state
        self._log = log
        self._reads = reads
        self._looked = Looked(0, None)
        """The result of the search so far. Below its `position` there is no message that the tier lacks. If `first_ms`
        is not None, the first such message lies at `position`."""

    def begin(self) -> None:
        """Makes the search start again, because this node has just become the leader and the log may have changed."""
        self._looked = Looked(0, None)

    @property
    def _missing_from(self) -> int:
        """Returns the position from which on the tier lacks the log."""
        return max(self._state.tier.verified_to(self._state.trim_position), self._log.first_position)

    def window_ms(self, now_ms: int) -> int:
        """Returns the age in log time of the oldest message that is not VERIFIED in the tier, as far as the log was
        searched; 0 if there is none."""
        position, first_ms = self._looked
        return 0 if first_ms is None or position < self._missing_from else max(0, now_ms - first_ms)

    async def look(self) -> None:
        """Continues the search for the oldest message that the tier lacks, through about LOOK_BYTES_MAX of the log."""
        position, first_ms = self._looked
        begins = self._missing_from
        if position < begins:
            position, first_ms = begins, None
        until = position + LOOK_BYTES_MAX
        while first_ms is None and position < min(self._state.applied_mark.end_position, until):
            try:
                position, first_ms = await self._reads.first_message(position)
            except RaftLogError:
                break  # the log was cut or trimmed at this moment, or is damaged and being repaired
        self._looked = Looked(position, first_ms)

    def is_due(self, now_ms: int, after_ms: int, tail: LogTail) -> bool:
        """Returns True if the segment of `tail`, the leader's last entry, written or not, holds a message that has
        waited for at least `after_ms` of log time (0: never)."""
        # A message below the tail's segment lies in a segment that is closed already. Closing this one would not help.
        if not after_ms or self._looked.position < tail.segment_base:
            return False
        return self.window_ms(now_ms) >= after_ms
