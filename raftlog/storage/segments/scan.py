"""Walks the frames of one segment file and checks each against the one before it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, FrameError
from raftlog.format_versions import refusal
from raftlog.frame import HEADER_SIZE, MAGIC, VERSION, FrameHeader
from raftlog.storage.files.fs import File, if_readable, unreadable
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, Segment
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import FLAG_ROLL, LogTail
from raftmq_wire.checksums import crc32c

_WINDOW = 1024 * 1024
_PAGE = 512
_NO_HEADER = bytes(HEADER_SIZE)


class Scan(NamedTuple):
    """The result of walking one file: the log's tail after its last valid frame, and the reason why the walk stopped
    (None: at zeroes or the end of the file)."""

    tail: LogTail
    damage: str | None
    at_mark: LogTail | None
    """The log's tail at the end of the sync mark; None if no frame ends there."""
    bytes_read: int
    rotten: list[DamagedRange]
    """The ranges of frames below the sync mark whose header is intact and whose payload is not."""


class Window:
    """Reads a file sequentially, in large pieces. An unreadable sector reads as missing."""

    __slots__ = ("_at", "_data", "_file", "bytes_read")

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self.bytes_read = 0

    def get(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes at `offset`: fewer at the end of the file, none if a sector is unreadable."""
        start = offset - self._at
        if start < 0 or start + size > len(self._data):
            self._data = self._read(max(size, _WINDOW), size, offset)
            self._at = offset
            self.bytes_read += len(self._data)
            start = 0
        return self._data[start : start + size]

    def _read(self, size: int, needed: int, offset: int) -> bytes:
        try:
            return self._file.pread(size, offset)
        except OSError as error:
            if not unreadable(error):
                raise
        return b"" if size == needed else self._read(needed, needed, offset)


def read_around(file: File, size: int, offset: int) -> bytes:
    """Returns bytes of the file, with zeroes where a page of it cannot be read; fewer at the end of the file."""
    try:
        return file.pread(size, offset)
    except OSError as error:
        if not unreadable(error):
            raise
    if size <= _PAGE:
        return bytes(size)
    half = size // 2
    return read_around(file, half, offset) + read_around(file, size - half, offset + half)


def scan_segment(
    file: File,
    segment: Segment,
    *,
    check_payloads: bool,
    mark_end: int = -1,
    begin: tuple[LogTail, SegmentIndex] | None = None,
) -> tuple[Scan, SegmentIndex]:
    """Walks the frames from `begin` (by default the segment's base) while each follows the one before. Returns the
    result and the segment's index.

    With `check_payloads` False only headers are checked (a sealed file whose sidecar is lost): a bad payload then shows
    when it is read. Below `mark_end` a bad payload is recorded and walked over: the header says where the next frame
    is. Raises CorruptLogError for an intact frame of a format that this version does not read.
    """
    header = segment.header
    tail, index = begin or (header.previous, SegmentIndex(header.base_position, header.base_index))
    window = Window(file)
    damage: str | None = None
    at_mark: LogTail | None = None
    rotten: list[DamagedRange] = []
    while True:
        if tail.end_position == mark_end:
            at_mark = tail
        offset = segment.file_offset(tail.end_position)
        raw = window.get(HEADER_SIZE, offset)
        if raw == _NO_HEADER or not raw:
            break
        try:
            frame = FrameHeader(raw, header.group_id)
            check_successor(frame, tail, header.base_position)
            if check_payloads and (bad := _payload_fault(window, frame, offset)) is not None:
                if frame.position + frame.frame_length > mark_end:
                    raise FrameError(bad)
                rotten.append(_alone(frame, f"{segment.path.name}: {bad}"))
        except FrameError as error:
            _refuse_unknown(raw, tail, segment.path)
            damage = str(error)
            break
        index.add(frame.position, frame.term, frame.type)
        tail = tail_of(frame, header.base_position)
    return Scan(tail, damage, at_mark, window.bytes_read, rotten), index


def tail_of(frame: FrameHeader, base: int) -> LogTail:
    """Returns the log's tail after a frame of the segment at `base`."""
    return LogTail(
        frame.term, frame.index, frame.position + frame.frame_length, frame.header_crc, base, frame.timestamp_ms
    )


def _payload_fault(window: Window, frame: FrameHeader, offset: int) -> str | None:
    try:
        frame.entry(window.get(frame.frame_length, offset)[HEADER_SIZE:])
    except FrameError as error:
        return str(error)
    return None


def _alone(frame: FrameHeader, why: str) -> DamagedRange:
    end = frame.position + frame.frame_length
    return DamagedRange(frame.position, end, frame.index, frame.index, frame.parent, frame.header_crc, why)


def check_successor(frame: FrameHeader, tail: LogTail, base: int) -> None:
    """Raises FrameError unless `frame` follows `tail` in the segment at `base`."""
    if (
        frame.index != tail.index + 1
        or frame.position != tail.end_position
        or frame.parent != tail.header_crc
        or frame.term < tail.term
        or frame.timestamp_ms < tail.timestamp_ms
        or bool(frame.flags & FLAG_ROLL) != (frame.position == base)
    ):
        raise FrameError(
            f"frame says index {frame.index}, position {frame.position}, parent {frame.parent:08x}; "
            f"expected {tail.index + 1}, {tail.end_position}, {tail.header_crc:08x}"
        )


def first_frame(file: File, base: int, group_id: int) -> FrameHeader | None:
    """Returns the first frame of the segment file that begins at `base`; None if it is damaged. Raises OSError."""
    frame = if_readable(lambda: FrameHeader(file.pread(HEADER_SIZE, LOCAL_HEADER_SIZE), group_id), FrameError)
    return frame if frame is not None and frame.position == base else None


def has_successor(file: File, segment: Segment, tail: LogTail, group_id: int) -> bool:
    """Returns True if an intact frame begins where `tail` ends and names it as its predecessor. Raises OSError."""
    try:
        frame = FrameHeader(file.pread(HEADER_SIZE, segment.file_offset(tail.end_position)), group_id)
        check_successor(frame, tail, segment.base)
    except FrameError:
        return False
    return True


def _refuse_unknown(raw: bytes, tail: LogTail, path: Path) -> None:
    if len(raw) != HEADER_SIZE or int.from_bytes(raw[:4]) != MAGIC or int.from_bytes(raw[4:8]) != crc32c(raw[8:]):
        return
    if int.from_bytes(raw[8:12]) == tail.header_crc and raw[25] != VERSION:
        what = f"{path}: the intact frame at position {tail.end_position}, index {tail.index + 1}"
        raise CorruptLogError(refusal(what, raw[25], VERSION))
