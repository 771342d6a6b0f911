"""Walking the frames of one segment file, and the index of a sealed one from its sidecar or from its frames."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from google_crc32c import value as crc32c

from raftlog.errors import CorruptLogError, FrameError
from raftlog.frame import HEADER_SIZE, MAGIC, VERSION, FrameHeader
from raftlog.storage import layout
from raftlog.storage.fs import File, FileSystem, read_file
from raftlog.storage.segment import Segment
from raftlog.storage.segment_index import SegmentIndex, decode_index
from raftlog.types import FLAG_ROLL, LogTail

_WINDOW = 1024 * 1024
_NO_HEADER = bytes(HEADER_SIZE)


class Scan(NamedTuple):
    """The valid frames of one file: where they end, and why the scan stopped (None: at zeroes or end of file)."""

    tail: LogTail
    damage: str | None
    at_mark: LogTail | None
    """What the tail was where the sync mark ends; None if no frame ends there."""
    bytes_read: int


class _Window:
    """Sequential reads of a file in large pieces."""

    __slots__ = ("_at", "_data", "_file", "bytes_read")

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self.bytes_read = 0

    def get(self, size: int, offset: int) -> bytes:
        start = offset - self._at
        if start < 0 or start + size > len(self._data):
            self._data = self._file.pread(max(size, _WINDOW), offset)
            self._at = offset
            self.bytes_read += len(self._data)
            start = 0
        return self._data[start : start + size]


def scan_segment(
    file: File, segment: Segment, *, check_payloads: bool, mark_end: int = -1
) -> tuple[Scan, SegmentIndex]:
    """Walks the frames from the segment's base while each follows the one before.

    With `check_payloads` False only headers are checked (a sealed file whose sidecar is lost): a bad payload then shows
    when it is read. Raises CorruptLogError for an intact frame of a newer format.
    """
    header = segment.header
    tail = header.previous
    index = SegmentIndex(header.base_position, header.base_index)
    window = _Window(file)
    damage: str | None = None
    at_mark: LogTail | None = None
    while True:
        if tail.end_position == mark_end:
            at_mark = tail
        offset = segment.file_offset(tail.end_position)
        raw = window.get(HEADER_SIZE, offset)
        if raw == _NO_HEADER or not raw:
            break
        try:
            frame = FrameHeader(raw, header.group_id)
            _check_successor(frame, tail, header.base_position)
            if check_payloads:
                frame.entry(window.get(frame.frame_length, offset)[HEADER_SIZE:])
        except FrameError as error:
            _refuse_newer(raw, tail, segment.path)
            damage = str(error)
            break
        index.add(frame.position, frame.term)
        tail = LogTail(
            frame.term, frame.index, frame.position + frame.frame_length, frame.header_crc, header.base_position,
            frame.timestamp_ms,
        )  # fmt: skip
    return Scan(tail, damage, at_mark, window.bytes_read), index


def _check_successor(frame: FrameHeader, tail: LogTail, base: int) -> None:
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


def _refuse_newer(raw: bytes, tail: LogTail, path: Path) -> None:
    if len(raw) != HEADER_SIZE or int.from_bytes(raw[:4]) != MAGIC or int.from_bytes(raw[4:8]) != crc32c(raw[8:]):
        return
    if int.from_bytes(raw[8:12]) == tail.header_crc and raw[25] > VERSION:
        raise CorruptLogError(
            f"{path}: the frame at position {tail.end_position}, index {tail.index + 1} is intact but of format "
            f"{raw[25]}: this data was written by a newer RaftMQ; start that version"
        )


def rebuild_index(fs: FileSystem, segment: Segment, end: LogTail, group_id: int) -> SegmentIndex:
    """Scans the headers of a sealed segment. Raises CorruptLogError unless it ends at `end`."""
    file = fs.open(segment.path)
    scan, index = scan_segment(file, segment, check_payloads=False)
    file.close()
    if scan.tail != end:
        raise CorruptLogError(
            f"{segment.path}: frames end at position {scan.tail.end_position}, index {scan.tail.index} "
            f"({scan.damage or 'then zeroes'}), but the next segment file begins at position {end.end_position}, index "
            f"{end.index + 1}: a damaged or missing file. Restore it from a peer or a backup, or replace the node."
        )
    return index


def sidecar_fits(fs: FileSystem, path: Path, end: LogTail, group_id: int) -> bool:
    """Whether the sidecar is intact and of a segment that ends at `end`."""
    try:
        return decode_index(read_file(fs, path), group_id)[0].tail == end
    except (FrameError, OSError):
        return False


def load_index(fs: FileSystem, segment: Segment, end: LogTail, group_id: int) -> SegmentIndex:
    """The index of a sealed segment that ends at `end`: its sidecar if good, else from the frames."""
    path = segment.path.with_suffix(layout.INDEX_SUFFIX)
    if fs.exists(path):
        try:
            head, index = decode_index(read_file(fs, path), group_id)
            if head.tail == end:
                return index
        except FrameError:
            pass
    return rebuild_index(fs, segment, end, group_id)
