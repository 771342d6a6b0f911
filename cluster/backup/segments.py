"""The log in a backup: finds the segment files below the cut, and checks that their frames form the expected log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.backup.files import CHUNK, drop_cache
from cluster.backup.manifest import SegmentRecord
from raftlog.errors import CorruptLogError, FrameError
from raftlog.frame import HEADER_SIZE, FrameHeader, check_follows, tail_after
from raftlog.storage.files import layout, log_first
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, SegmentHeader, decode_header, newest_mark
from raftlog.types import EMPTY_TAIL, LogTail
from raftmq_wire.checksums import crc32c


class BackedUpSegment(NamedTuple):
    """A segment file of the node, up to the end of the part that goes into a backup."""

    path: Path
    header: SegmentHeader
    end_position: int
    last_header_crc: int
    """Header CRC of the frame that ends at `end_position`."""
    whole: bool
    """True if the segment is sealed and lies below the cut completely."""

    @property
    def size(self) -> int:
        """Bytes of the file up to the cut, local header included."""
        return LOCAL_HEADER_SIZE + self.end_position - self.header.base_position


def parts_below(log: Path, end_position: int, header_crc: int, group_id: int) -> list[BackedUpSegment]:
    """Returns the files with the log's bytes below `end_position`, whose last frame has `header_crc`.

    Raises CorruptLogError if a file in the middle is missing or its local header damaged, OSError if one vanishes.
    """
    bases = [base for base in bases_of(log, group_id) if base < end_position]
    headers = [read_header(log / layout.segment_name(base), group_id) for base in bases]
    parts: list[BackedUpSegment] = []
    for number, (path, header) in enumerate(headers):
        following = headers[number + 1][1].previous if number + 1 < len(headers) else None
        end = end_position if following is None else following.end_position
        crc = header_crc if following is None else following.header_crc
        whole = following is not None or _is_sealed_at(log, end_position)
        parts.append(BackedUpSegment(path, header, end, crc, whole))
    return parts


def bases_of(log: Path, group_id: int) -> list[int]:
    """Returns the positions at which the log's files begin, ascending, without files that a trim gave up but that are
    not removed yet."""
    floor = log_first.load(OsFileSystem(), log, group_id) or EMPTY_TAIL
    bases = layout.segment_bases([path.name for path in log.iterdir()])
    return [base for base in bases if base >= floor.end_position]


def _is_sealed_at(log: Path, end_position: int) -> bool:
    return (log / layout.segment_name(end_position)).exists()


def read_header(path: Path, group_id: int) -> tuple[Path, SegmentHeader]:
    """Returns (path, local header) of a segment file. Raises CorruptLogError."""
    with path.open("rb") as file:
        return path, decode_header(file.read(LOCAL_HEADER_SIZE), path, group_id)


def walk(path: Path, previous: LogTail | None, end_position: int, group_id: int) -> tuple[LogTail, SegmentRecord]:
    """Reads the frames up to `end_position` and checks each one, its payload, and its link to the frame before.

    `previous` is the log's tail before this file, or None for the first file of a trimmed log. Raises CorruptLogError
    naming file, position and index.
    """
    _, header = read_header(path, group_id)
    if previous is not None and header.previous != previous:
        raise CorruptLogError(f"{path} begins at position {header.base_position}, the file before ends elsewhere")
    tail = header.previous
    frames = _Frames(path, end_position - header.base_position)
    try:
        while tail.end_position < end_position:
            tail = frames.next(tail, group_id)
    except FrameError as error:
        raise CorruptLogError(
            f"{path} is damaged at position {tail.end_position}, index {tail.index + 1}: {error}"
        ) from error
    return tail, SegmentRecord(header.base_position, end_position, tail.index, tail.header_crc, frames.crc)


def last_of(path: Path, group_id: int) -> tuple[LogTail, bool]:
    """Returns the end of the last segment file's frames, and True if it is at or above the sync mark, as it should be.
    Raises CorruptLogError if the local header is damaged."""
    _, header = read_header(path, group_id)
    with path.open("rb") as file:
        mark = newest_mark(file.read(LOCAL_HEADER_SIZE))
    tail = header.previous
    frames = _Frames(path, path.stat().st_size - LOCAL_HEADER_SIZE)
    with contextlib.suppress(FrameError):
        while True:
            tail = frames.next(tail, group_id)
    return tail, mark is not None and tail.end_position >= mark.end_position


class _Frames:
    """Collects frames one after another, and the CRC of their bytes."""

    def __init__(self, path: Path, size: int) -> None:
        self.crc = 0
        self._chunks = self._read(path, size)
        self._data = b""
        self._at = 0

    def _read(self, path: Path, size: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            drop_cache(file.fileno())
            file.seek(LOCAL_HEADER_SIZE)
            while size and (data := file.read(min(CHUNK, size))):
                size -= len(data)
                self.crc = crc32c(data, self.crc)
                yield data

    def _take(self, size: int) -> bytes:
        while len(self._data) - self._at < size:
            data = next(self._chunks, b"")
            if not data:
                raise FrameError("the file ends within a frame")
            self._data = self._data[self._at :] + data
            self._at = 0
        self._at += size
        return self._data[self._at - size : self._at]

    def next(self, tail: LogTail, group_id: int) -> LogTail:
        frame = FrameHeader(self._take(HEADER_SIZE), group_id)
        entry = frame.entry(self._take(frame.frame_length - HEADER_SIZE))
        check_follows(tail, entry)
        return tail_after(tail, entry)
