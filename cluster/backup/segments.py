"""Finds the segment files for a backup, and checks that their frames form one log."""

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
    """A segment file of the node, and how much of it goes into a backup."""

    path: Path
    header: SegmentHeader
    end_position: int
    last_header_crc: int
    """Header CRC of the last frame that goes into the backup. It ends at `end_position`."""
    whole: bool
    """True if the segment is complete and lies below the cut, so that its file never changes again."""

    @property
    def size(self) -> int:
        """Number of bytes of the file up to the cut, including the local header."""
        return LOCAL_HEADER_SIZE + self.end_position - self.header.base_position


def parts_below(log: Path, end_position: int, header_crc: int, group_id: int) -> list[BackedUpSegment]:
    """Returns the segment files with the log's bytes below `end_position`, by position. `header_crc` is the header CRC
    of the last frame below it.

    Raises CorruptLogError if a local header is damaged, and OSError if a file disappears meanwhile.
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
    """Returns the first positions of the log's segment files, ascending. Files below the log's beginning, which a trim
    has yet to remove, are left out."""
    floor = log_first.load(OsFileSystem(), log, group_id) or EMPTY_TAIL
    bases = layout.segment_bases([path.name for path in log.iterdir()])
    return [base for base in bases if base >= floor.end_position]


def _is_sealed_at(log: Path, end_position: int) -> bool:
    return (log / layout.segment_name(end_position)).exists()


def read_header(path: Path, group_id: int) -> tuple[Path, SegmentHeader]:
    """Returns (path, local header) of a segment file. Raises CorruptLogError if the header is damaged, OSError if the
    file is missing."""
    with path.open("rb") as file:
        return path, decode_header(file.read(LOCAL_HEADER_SIZE), path, group_id)


def walk(path: Path, previous: LogTail | None, end_position: int, group_id: int) -> tuple[LogTail, SegmentRecord]:
    """Reads the frames of a file up to `end_position`. Checks each one, its payload, and its link to the frame before.
    Returns the last frame, and the record of the file for a manifest.

    `previous` is the last frame before this file, or None for the first file of a trimmed log. Raises CorruptLogError
    with the file, position and index.
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
    """Returns (last readable frame of the log's last segment file, True if it reaches the sync mark). False means that
    synced frames are damaged, or that no mark can be read. Raises CorruptLogError if the local header is damaged."""
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
    """Reads the frames of a file one after another, and computes the CRC-32C of the bytes read."""

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
