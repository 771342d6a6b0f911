"""The content of the tier (object storage): one row for each segment of the log that is uploaded, or about to be
(docs/adr/0060).

The leader uploads, and records every step with the command `tier_state`. The rows are part of the replicated state: the
next leader knows where the last one stopped, and every replica knows up to which position the tier can be relied upon.
A sealed segment without a row counts as SEALED, a state that is never stored. ::

    (SEALED) -> UPLOADING -> UPLOADED -> VERIFIED -> DELETING -> (DELETED: no row)
                    |            |                      ^
                    +------------+----------------------+      given up: the log was trimmed before the upload ended

Invariants:

- Rows follow each other without a gap, except for a *hole*: bytes that were trimmed before they were uploaded.
- A row never returns to an earlier state, and its term never falls: late proposals of a deposed leader change nothing.
- A row is DELETING only once nothing below its end is kept anywhere (`BrokerState.kept`): an EVICT does not lead to
  DELETING.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, NamedTuple, Self

import msgpack
from msgspec import Meta

from statemachine.commands import (
    U32,
    U64,
    Command,
    CommandResult,
    InvalidCommandError,
    NumberFrom1,
    converted,
    done,
)
from statemachine.family import Families, Family, Reads, applies, family_of
from statemachine.rows import keys
from statemachine.rows.kv import KV, TIER
from statemachine.rows.write_batch import Stage
from statemachine.trim import TrimState

PARTS_MAX = 64
"""The most objects in which one segment is stored: parts of 64 MiB, and its index."""
NAME_LENGTH_MAX = 200
DIGEST_SIZE = 16
"""The size in bytes of an XXH3 digest of 128 bits."""
LOG_PREFIX = "log/"
"""The prefix of the names of objects that contain frames. Together these objects contain the whole segment."""


class TierState(IntEnum):
    """The state of a segment's upload. Values are in rows and commands: never renumber."""

    UPLOADING = 1
    """A leader may be writing the segment's objects."""
    UPLOADED = 2
    """Every object of the segment was written, and the object store confirmed it."""
    VERIFIED = 3
    """Every object was read back. The log may be trimmed up to the segment's end."""
    DELETING = 4
    """The segment's objects are being removed; nothing may be read from them."""
    DELETED = 5
    """The segment's objects are gone, and so is its row. The state occurs only in a command."""


_NEXT = {
    TierState.UPLOADING: (TierState.UPLOADING, TierState.UPLOADED, TierState.DELETING),
    TierState.UPLOADED: (TierState.UPLOADED, TierState.VERIFIED, TierState.DELETING),
    TierState.VERIFIED: (TierState.VERIFIED, TierState.DELETING),
    TierState.DELETING: (TierState.DELETING, TierState.DELETED),
}


class TierPart(NamedTuple):
    """One object of a segment in the tier. Its name contains the hash of its content, so every node that writes the
    object writes the same bytes."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
    """The object's name below the cluster's prefix."""
    size: NumberFrom1
    digest: Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
    """Digest of the object's content: XXH3, 128 bits, big-endian."""
    crc32c: U32


class SegmentSpan(NamedTuple):
    """The part of the log that one segment covers: its end, and the indexes and times of its first and last entries."""

    end: U64
    """Position in the log at which the next segment begins."""
    first_index: U64
    last_index: U64
    first_ms: U64
    last_ms: U64
    """Log time of the last entry; `first_ms` is that of the first."""


class TierSegment(NamedTuple):
    """The row of one segment in the tier."""

    base: int
    """Position in the log of the segment's first frame."""
    state: TierState
    span: SegmentSpan
    term: int
    """The term of the leader that brought the segment into this state."""
    parts: tuple[TierPart, ...]
    """The objects of the segment; () while it is UPLOADING."""

    @property
    def end(self) -> int:
        """Position in the log at which the next segment begins."""
        return self.span.end

    @property
    def stored_bytes(self) -> int:
        """The total size of the segment's objects in bytes."""
        return sum(part.size for part in self.parts)


Rows = tuple[TierSegment, ...]
"""All segment rows, lowest first. The tuple is replaced as a whole when a row changes, so the same object always means
the same rows."""
_base, _end = attrgetter("base"), attrgetter("end")


class MoveSegment(Command, tag="tier_state", frozen=True):
    """Moves the segment at position `base` to a state."""

    base: U64
    state: TierState
    term: NumberFrom1
    """The term of the leader that asks for it."""
    span: object
    """The segment's `SegmentSpan`, with UPLOADING; otherwise ignored."""
    parts: object
    """A list of the segment's `TierPart`s, with UPLOADED; otherwise ignored."""


class TierSegments(Family):
    """The rows of all segments in the tier, lowest first, all of them in memory: about 500 bytes for 64 MiB of log.
    `rows` is replaced, never changed, so any thread may read it."""

    ROWS = ((TIER, b""),)

    def __init__(self, kv: KV, trim: TrimState) -> None:
        """`trim`: the family that knows where the log begins."""
        self._trim = trim
        self.rows: Rows = tuple(
            decode(keys.U64.unpack(key)[0], row) for key, row in kv.scan(TIER, keys.FIRST, keys.LAST)
        )
        self._staged = self.rows
        self._verified: tuple[Rows, int, int] = (), 0, 0
        """The arguments and the result of the last call of `verified_to`: (rows, position, result)."""
        self._above: tuple[Rows, int, Rows] = (), 0, ()
        """The arguments and the result of the last call of `above`: (rows, position, result). Readers ask for the same
        position again and again."""
        self.changed: bool = False
        """True if the batch being applied has changed a row."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TrimState])

    # -- any thread

    @property
    def end(self) -> int | None:
        """The position at which the segment after the last row begins; None if there is no row."""
        rows = self.rows
        return rows[-1].end if rows else None

    def verified_to(self, position: int) -> int:
        """Returns the position up to which the tier holds every byte of the log from `position`, the beginning of a
        segment, on; `position` itself if that segment is not VERIFIED."""
        rows, asked, end = self._verified
        if rows is self.rows and asked == position:
            return end
        rows, end = self.rows, position
        for number in range(bisect_left(rows, position, key=_base), len(rows)):
            row = rows[number]
            if row.base != end or row.state is not TierState.VERIFIED:
                break
            end = row.end
        self._verified = rows, position, end
        return end

    def above(self, position: int) -> Rows:
        """Returns the rows of segments that end above the position. For the same position, the tuple is the same object
        until a row changes."""
        rows, asked, found = self._above
        if rows is not self.rows or asked != position:
            rows = self.rows
            found = rows[bisect_right(rows, position, key=_end) :]
            self._above = rows, position, found
        return found

    def at(self, position: int) -> TierSegment | None:
        """Returns the row of the segment that contains the byte at `position`; None if there is none."""
        rows = self.rows
        number = bisect_right(rows, position, key=_end)
        return rows[number] if number < len(rows) and rows[number].base <= position else None

    # -- apply

    @applies(MoveSegment)
    def move(self, stage: Stage, command: MoveSegment) -> CommandResult:
        """Moves the segment to the state. The result's value is the state in which the segment is afterwards. Raises
        InvalidCommandError, without having changed anything, if the segment cannot enter the state next."""
        base, wanted = command.base, command.state
        rows = self._staged
        number = bisect_left(rows, base, key=_base)
        known = rows[number] if number < len(rows) and rows[number].base == base else None
        row = self._begin(command) if known is None else self._go_on(known, command)
        if wanted is TierState.DELETED:
            self._staged = rows[:number] + rows[number + 1 :]
            stage.delete(TIER, keys.U64.pack(base))
            self.changed = True
        elif row != known:
            self._staged = (*rows[:number], row, *rows[number + (known is not None) :])
            stage.put(TIER, keys.U64.pack(base), encode(row))
            self.changed = True
        return done(int(wanted))

    def _begin(self, command: MoveSegment) -> TierSegment:
        base, wanted, term = command.base, command.state, command.term
        span = _check_span(base, command.span)
        # the published mark is current, because a TRIM is alone in its batch
        log_begins = self._trim.mark.position
        if wanted is not TierState.UPLOADING:
            raise InvalidCommandError(f"no upload of the segment at {base} has begun: it cannot be {wanted.name}")
        last = self._staged[-1] if self._staged else None
        follows = last.end if last is not None and last.end >= log_begins else log_begins
        if base != follows:
            raise InvalidCommandError(f"the segment at {base} is not the next one to upload: that begins at {follows}")
        if last is not None and (span.first_index <= last.span.last_index or term < last.term):
            raise InvalidCommandError(
                f"index {span.first_index}, term {term}, does not follow index {last.span.last_index}, term {last.term}"
            )
        return TierSegment(base, wanted, span, term, ())

    def _go_on(self, known: TierSegment, command: MoveSegment) -> TierSegment:
        wanted, term, kept_from = command.state, command.term, self._trim.kept.position
        if wanted not in _NEXT[known.state]:
            raise InvalidCommandError(f"the segment at {known.base} is {known.state.name}: it cannot be {wanted.name}")
        if term < known.term:
            raise InvalidCommandError(f"the segment at {known.base} is the business of term {known.term}, not {term}")
        if wanted is TierState.DELETING and known.end > kept_from:
            raise InvalidCommandError(
                f"the segment at {known.base} ends at {known.end}, and the log is kept from {kept_from}: it is needed"
            )
        told = _check_parts(known, command.parts) if wanted is TierState.UPLOADED else known.parts
        return known._replace(state=wanted, term=term, parts=told)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.rows, self.changed = self._staged, False


class TierReads(Reads):
    """Read access to what a state holds about the tier."""

    tier = family_of(TierSegments)
    """The log's segments in object storage."""

    @property
    def kept_segments(self) -> tuple[TierSegment, ...]:
        """The segments in the tier that contain bytes of the log which are still kept (`kept`). Segments below, which a
        TRIM removed on all nodes and in the tier, are left out: their objects may be gone."""
        return self.tier.above(self[TrimState].kept.position)


def encode(row: TierSegment) -> bytes:
    """Returns the packed value of a segment's row: msgpack [state, term, [end, first_index, last_index, first_ms,
    last_ms], [[name, size, digest, crc32c], ...]]."""
    packed: bytes = msgpack.packb([int(row.state), row.term, list(row.span), [list(part) for part in row.parts]])
    return packed


def decode(base: int, value: bytes) -> TierSegment:
    """Returns the segment at `base` from the value of its row."""
    state, term, span, parts = msgpack.unpackb(value)
    return TierSegment(base, TierState(state), SegmentSpan(*span), term, tuple(TierPart(*part) for part in parts))


_Parts = Annotated[tuple[TierPart, ...], Meta(min_length=1, max_length=PARTS_MAX)]


def _check_span(base: int, span: object) -> SegmentSpan:
    found = converted(span, SegmentSpan)
    if not (found.end > base and found.last_index >= found.first_index and found.last_ms >= found.first_ms):
        raise InvalidCommandError(f"the span of the segment at {base} ends before it begins: {span!r}")
    return found


def _check_parts(segment: TierSegment, parts: object) -> tuple[TierPart, ...]:
    """Returns the checked parts of a segment. Raises InvalidCommandError unless each has its own name, and those that
    contain frames have together the segment's size."""
    found: tuple[TierPart, ...] = converted(parts, _Parts)
    if len({part.name for part in found}) < len(found):
        raise InvalidCommandError("two parts have one name")
    size = sum(part.size for part in found if part.name.startswith(LOG_PREFIX))
    if size != segment.end - segment.base:
        raise InvalidCommandError(f"the parts of the log have {size} bytes, the segment {segment.end - segment.base}")
    return found
