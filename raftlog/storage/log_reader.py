"""The read half of the log: entries by index, bytes by position; for any thread while one other appends.

What the appending thread publishes is `_segments` and `_tail`, each replaced as a whole. Readers look only below the
tail, where bytes change in one case: a conflict cuts them. A reader that meets a bad CRC (or a file that went to trash)
therefore waits for `_cutting` and looks once more before it calls the log damaged.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path

from raftlog.errors import CorruptLogError, FrameError, OutOfRangeError
from raftlog.frame import decode_entries
from raftlog.storage.fs import File, FileSystem, storage_error
from raftlog.storage.scan import load_index
from raftlog.storage.segment import LOCAL_HEADER_SIZE, Segment
from raftlog.storage.segment_index import SegmentIndex
from raftlog.types import Entry, LogTail

_OPEN_FILES = 128
"""Sealed segment files kept open for reading."""
_LOADED_INDEXES = 16
"""Sidecars of sealed segments kept in memory."""


class LogReader:
    """See the module."""

    __slots__ = ("_cutting", "_fs", "_group_id", "_load", "_log", "_open", "_segments", "_tail")

    def __init__(self, fs: FileSystem, log: Path, group_id: int, segments: list[Segment], tail: LogTail) -> None:
        """`log` is DATA/log."""
        self._fs = fs
        self._log = log
        self._group_id = group_id
        self._segments = tuple(segments)
        """Ascending; the last is active. Replaced as a whole, so a reader keeps a consistent view."""
        self._tail = tail
        self._cutting = threading.Lock()
        """Held while a conflict is cut."""
        # Keyed by the Segment object: one that was cut and made anew under the same name is another key.
        self._open = lru_cache(_OPEN_FILES)(self._open_sealed)
        self._load = lru_cache(_LOADED_INDEXES)(self._load_sealed)

    @property
    def first_index(self) -> int:
        """Index of the oldest entry that is here."""
        return self._segments[0].header.base_index

    @property
    def first_position(self) -> int:
        """Position of the oldest entry that is here."""
        return self._segments[0].base

    @property
    def tail(self) -> LogTail:
        """The last entry that is written and synced."""
        return self._tail

    def term_ranges(self) -> list[tuple[int, int]]:
        """(first index, term) of each run of entries with one term, ascending; held in memory, no scan."""
        ranges: list[tuple[int, int]] = []
        last = self._tail.index
        for segment in self._segments:
            for first, term in tuple(segment.terms):
                if first <= last and (not ranges or ranges[-1][1] != term):
                    ranges.append((first, term))
        return ranges

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries [low, high), both CRCs checked; stops before `bytes_max` frame bytes, but gives at least one.

        Raises OutOfRangeError unless first_index <= low and high <= tail.index + 1, and CorruptLogError on damage.
        """
        try:
            return self._read_entries(low, high, bytes_max)
        except FrameError:
            with self._cutting:  # maybe a conflict zeroed these bytes meanwhile; then the range is gone, not rotten
                pass
        try:
            return self._read_entries(low, high, bytes_max)
        except FrameError as error:
            raise CorruptLogError(f"{self._log}: damage in entries {low}..{high - 1}: {error}") from error

    def _read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        segments = self._segments
        tail = self._tail
        if low < segments[0].header.base_index or high > tail.index + 1:
            raise OutOfRangeError(
                f"entries {low}..{high - 1} are not all in the log, which has {self.first_index}..{tail.index}"
            )
        entries: list[Entry] = []
        number = bisect_right(segments, low, key=_base_index) - 1
        while low < high:
            segment = segments[number]
            following = segments[number + 1].header if number + 1 < len(segments) else None
            stop = min(high, following.base_index) if following else high
            end = following.base_position if following else tail.end_position
            try:
                part = self._read_run(segment, low, stop, end, bytes_max, at_least_one=not entries)
            except FileNotFoundError as error:
                raise FrameError(f"{segment.path} is missing") from error
            except OSError as error:
                raise storage_error(self._fs, "reading", segment.path, error) from error
            if part:
                entries += part
                bytes_max -= part[-1].end_position - part[0].position
                low += len(part)
            if low < stop:
                break
            number += 1
        return entries

    def _read_run(
        self, segment: Segment, low: int, stop: int, end: int, bytes_max: int, *, at_least_one: bool
    ) -> list[Entry]:
        """Entries [low, stop) of one segment as far as they fit `bytes_max`; `end` is where the segment's last ends."""
        index = segment.index or self._load(segment)
        try:
            start = index.position(low)
            if stop - index.base_index < len(index.offsets):
                end = index.position(stop)
            if end - start > bytes_max:
                fitting = index.next_below(start + bytes_max)
                stop = min(stop, max(fitting, low + 1) if at_least_one else fitting)
                if stop <= low:
                    return []
                if stop - index.base_index < len(index.offsets):
                    end = min(end, index.position(stop))
        except IndexError:
            raise FrameError(f"index {low} is not in {segment.path.name}") from None
        file = segment.file or self._open(segment)
        entries = list(decode_entries(file.pread(end - start, segment.file_offset(start)), self._group_id))
        if len(entries) != stop - low or entries[0].index != low or entries[0].position != start:
            raise FrameError(f"frames at position {start} of {segment.path.name} are not entries {low}..{stop - 1}")
        return entries

    def read_at(self, position: int, size: int) -> bytes:
        """Raw log bytes [position, position + size), unchecked: the caller holds a CRC of what it wants.

        Raises OutOfRangeError if any byte is outside the log, StorageError if the disk fails.
        """
        segments = self._segments
        number = bisect_right(segments, position, key=_base_position) - 1
        if number < 0 or size < 0 or position + size > self._tail.end_position:
            raise OutOfRangeError(
                f"bytes {position}..{position + size} are not all in the log, which has "
                f"{self.first_position}..{self._tail.end_position}"
            )
        segment = segments[number]
        if number + 1 < len(segments):
            beyond = position + size - segments[number + 1].base
            if beyond > 0:
                return self.read_at(position, size - beyond) + self.read_at(position + size - beyond, beyond)
        try:
            file = segment.file or self._open(segment)
            data = file.pread(size, LOCAL_HEADER_SIZE + position - segment.header.base_position)
        except OSError as error:
            raise storage_error(self._fs, "reading", segment.path, error) from error
        if len(data) != size:
            raise CorruptLogError(f"{segment.path} ends before position {position + size}: the file was cut")
        return data

    def position_of(self, index: int) -> int:
        """Position of the entry's frame. Raises OutOfRangeError."""
        if index < self.first_index or index > self._tail.index:
            raise OutOfRangeError(f"entry {index} is not in the log, which has {self.first_index}..{self._tail.index}")
        segment = self._segment_of(index)
        return (segment.index or self._load(segment)).position(index)

    def _open_sealed(self, segment: Segment) -> File:
        return self._fs.open(segment.path)

    def _load_sealed(self, segment: Segment) -> SegmentIndex:
        segments = self._segments
        if segment not in segments[:-1]:
            raise FrameError(f"{segment.path.name} is no sealed segment any more")
        following = segments[segments.index(segment) + 1]
        return load_index(self._fs, segment, following.header.previous, self._group_id)

    def _segment_of(self, index: int) -> Segment:
        return self._segments[bisect_right(self._segments, index, key=_base_index) - 1]


def _base_index(segment: Segment) -> int:
    return segment.header.base_index


def _base_position(segment: Segment) -> int:
    return segment.header.base_position
