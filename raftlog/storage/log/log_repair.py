"""Repairs a damaged range of the log by a peer's copy. The copy is proved first, then written.

The peer's bytes are staged in `log/repair-N.tmp`, one file per segment file of the range, laid out as that segment.
Nothing is put in place before the last frame has arrived and the chain leads from the frame before the range to the
frame after it: then the bytes are those that were lost, whichever peer sent them. A crash at any point leaves the range
damaged or repaired. Staged files are never read by a start, and the next repair overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import FrameError, OutOfRangeError
from raftlog.frame import HEADER_SIZE, FrameHeader
from raftlog.storage.files.fs import ZERO_CHUNK, File, FileSystem, storage_error
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, encode_header
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import FLAG_ROLL, LogTail

STAGED = "repair-{}.tmp"


class Part(NamedTuple):
    """The frames of a range under repair that lie in one segment file. `previous`: the log's tail before the first of
    these frames."""

    file: File
    previous: LogTail
    segment_index: SegmentIndex
    """The segment index of the part's frames only."""
    whole: bool
    """True if the frames are those of a whole file: its first frame has the flag ROLL."""


class RangeRepair:
    """The repair of one damaged range. Used by one thread at a time; `finish` may block appends for the time of its
    writes.

    The caller feeds frames in order, in pieces of any size, from `next_position` on.
    """

    def __init__(
        self,
        fs: FileSystem,
        log: Path,
        group_id: int,
        damaged: DamagedRange,
        previous: LogTail,
        place: Callable[[RangeRepair], None],
    ) -> None:
        """Callers use `SegmentedLog.repairing`. `previous` is the tail before the range, if it is known. `place` puts
        the frames in place."""
        self.damaged = damaged
        self.parts: list[Part] = []
        self.tail = previous
        """The log's tail after the last valid frame that arrived."""
        self._fs = fs
        self._log = log
        self._group_id = group_id
        self._place = place
        self._rest = b""
        self._closed = False

    @property
    def next_position(self) -> int:
        """The position in the log from which bytes are wanted next. The bytes of a frame that arrived only in part are
        kept."""
        return self.tail.end_position + len(self._rest)

    @property
    def complete(self) -> bool:
        """True if the whole range has arrived."""
        return self.tail.end_position == self.damaged.end_position

    def feed(self, data: bytes) -> None:
        """Checks frames and stages them. Raises FrameError if they cannot be the lost ones: nothing is changed then,
        and the caller starts again.

        Raises StorageError if the disk fails or is full.
        """
        if self._closed:
            raise FrameError("this repair is over")
        data = self._rest + data
        at = 0
        try:
            while len(data) - at >= HEADER_SIZE:
                header = FrameHeader(data[at : at + HEADER_SIZE], self._group_id)
                self._check(header)
                stop = at + header.frame_length
                if stop > len(data):
                    break
                header.entry(data[at + HEADER_SIZE : stop])
                self._stage(header, data[at:stop])
                at = stop
            self._rest = data[at:]
            if self._rest and self.complete:
                raise FrameError(f"{len(self._rest)} bytes more than the damaged range {self.damaged.end_position}")
        except FrameError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            raise storage_error(self._fs, "staging a repair in", self._log, error) from error

    def finish(self) -> None:
        """Puts the frames in place, durably, and removes the range from the damage.

        Raises FrameError if frames are missing or lead elsewhere, OutOfRangeError if the log changed there in the
        meantime (a conflict was cut, another repair finished), StorageError if the disk fails: the range stays damaged
        then.
        """
        damaged, tail = self.damaged, self.tail
        try:
            if not self.complete or self._rest or tail.index != damaged.last_index:
                raise FrameError(
                    f"the frames end at position {tail.end_position}, index {tail.index}; the damaged range ends at "
                    f"{damaged.end_position}, index {damaged.last_index}"
                )
            if damaged.after is not None and tail.header_crc != damaged.after:
                raise FrameError(
                    f"the last frame is {tail.header_crc:08x}, but the log goes on from {damaged.after:08x}: the copy "
                    "is of another history"
                )
            self._place(self)
        except OSError as error:
            raise storage_error(self._fs, "repairing", self._log, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Closes the staged files. The next repair overwrites them."""
        if not self._closed:
            self._closed = True
            for part in self.parts:
                part.file.close()

    def _check(self, header: FrameHeader) -> None:
        tail, damaged = self.tail, self.damaged
        known = tail.end_position > damaged.first_position or damaged.before is not None
        if (
            header.index != tail.index + 1
            or header.position != tail.end_position
            or (known and header.parent != tail.header_crc)
            or header.term < tail.term
            or header.position + header.frame_length > damaged.end_position
            or header.index > damaged.last_index
        ):
            raise FrameError(
                f"frame of index {header.index} at position {header.position} with parent {header.parent:08x} is not "
                f"what was lost: index {tail.index + 1} at {tail.end_position} after {tail.header_crc:08x}, up to "
                f"index {damaged.last_index} at {damaged.end_position}"
            )

    def _stage(self, header: FrameHeader, frame: bytes) -> None:
        rolls = bool(header.flags & FLAG_ROLL)
        if rolls or not self.parts:
            self._begin_part(rolls)
        part = self.parts[-1]
        part.file.pwritev([frame], LOCAL_HEADER_SIZE + header.position - part.segment_index.base)
        part.segment_index.add(header.position, header.term, header.type)
        base = header.position if rolls else self.tail.segment_base
        self.tail = LogTail(
            header.term,
            header.index,
            header.position + header.frame_length,
            header.header_crc,
            base,
            header.timestamp_ms,
        )

    def _begin_part(self, rolls: bool) -> None:
        file = self._fs.open(self._log / STAGED.format(len(self.parts)), create=True)
        file.truncate(0)
        file.pwritev([encode_header(self.tail, self._group_id)], 0)
        self.parts.append(Part(file, self.tail, SegmentIndex(self.tail.end_position, self.tail.index + 1), rolls))


def copy_frames(part: Part, size: int, target: File, offset: int) -> None:
    """Writes the part's frames, `size` bytes, to the file `target` and syncs it.

    Each piece but the last ends at the end of a page. Otherwise the kernel would have to read the rest of the page
    first, and that may be a bad sector.
    """
    at = 0
    while at < size:
        stop = min(size, (offset + at) // len(ZERO_CHUNK) * len(ZERO_CHUNK) + len(ZERO_CHUNK) - offset)
        target.pwritev([part.file.pread(stop - at, LOCAL_HEADER_SIZE + at)], offset + at)
        at = stop
    target.fdatasync()


def check_still_damaged(ranges: tuple[DamagedRange, ...], damaged: DamagedRange) -> None:
    """Raises OutOfRangeError unless the log still counts exactly this range as damaged."""
    if damaged not in ranges:
        raise OutOfRangeError(
            f"entries {damaged.first_index}..{damaged.last_index} are not a damaged range of this log (any more)"
        )
