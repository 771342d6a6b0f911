"""The read half of the log: entries by index, bytes by position; for any thread while one other appends.

What the appending thread publishes is `_segments` and `_tail`, each replaced as a whole. Readers look only below the
tail, where bytes change in two cases: a conflict cuts them, or a repair puts a peer's copy in place. A reader that
meets a bad CRC (or a file that went to trash) therefore waits for `_cutting` and looks again before it calls the
log damaged. Damage is recorded in `damage`, frame by frame; whatever touches it raises DamagedLogError from then on,
everything else is served.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, DamagedLogError, FrameError, OutOfRangeError, RaftLogError
from raftlog.frame import decode_entries
from raftlog.storage.damage import DamagedRange, DamageMap
from raftlog.storage.damage_finder import Extent, first_damage, whole_file
from raftlog.storage.fs import File, FileSystem, storage_error, unreadable
from raftlog.storage.sealed_index import load_index
from raftlog.storage.segment import LOCAL_HEADER_SIZE, Segment
from raftlog.storage.segment_index import SegmentIndex
from raftlog.types import Entry, LogTail

_OPEN_FILES = 128
"""Sealed segment files kept open for reading."""
_LOADED_INDEXES = 16
"""Sidecars of sealed segments kept in memory."""
_LOOKS = 8
"""Times a read looks again at bytes that were not frames; each look records the damage it met."""
_LOOKED_AT_ONCE = 64
"""Entries read while a conflict may not be cut."""


class SegmentSpan(NamedTuple):
    """What one segment file holds."""

    previous: LogTail
    """The log's tail just before its first frame; `EMPTY_TAIL` in the first file of all."""
    end_position: int
    """Where its last frame ends, as far as it is written."""
    sealed: bool
    """Another file follows: nothing is added any more."""


class LogReader:
    """See the module."""

    __slots__ = ("_cutting", "_fs", "_group_id", "_load", "_log", "_open", "_segments", "_tail", "damage")

    def __init__(self, fs: FileSystem, log: Path, group_id: int, segments: list[Segment], tail: LogTail) -> None:
        """`log` is DATA/log."""
        self._fs = fs
        self._log = log
        self._group_id = group_id
        self._segments = tuple(segments)
        """Ascending; the last is active. Replaced as a whole, so a reader keeps a consistent view."""
        self._tail = tail
        self._cutting = threading.Lock()
        """Held while bytes below the tail change: a conflict is cut, a repair put in place."""
        self.damage = DamageMap()
        """Frames below the tail that cannot be read intact."""
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
    def previous(self) -> LogTail:
        """The tail just before the oldest entry that is here: `EMPTY_TAIL` before GENESIS."""
        return self._segments[0].header.previous

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

    def membership_indexes(self) -> list[int]:
        """Where MEMBERSHIP entries are, as far as the indexes tell, ascending; held in memory, no scan. An index from
        before members could change while the group runs tells of none: there each is the first of its term."""
        last = self._tail.index
        return [number for segment in self._segments for number in tuple(segment.members) if number <= last]

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries [low, high), both CRCs checked; stops before `bytes_max` frame bytes, but gives at least one, and
        stops before damage.

        Raises OutOfRangeError unless first_index <= low and high <= tail.index + 1, and DamagedLogError if entry `low`
        is damaged.
        """
        for _look in range(_LOOKS):
            try:
                return self._read_entries(low, self._sound_below(low, high) if self.damage.ranges else high, bytes_max)
            except FrameError as error:
                # A conflict zeroed these bytes meanwhile, then the range is gone; or they are rotten, then that is
                # recorded, and the next look stops before it. Others may rot while this one is recorded.
                failed = error
                self.find_damage(low, high)
        raise CorruptLogError(f"{self._log}: damage in entries {low}..{high - 1}: {failed}") from failed

    def _sound_below(self, low: int, high: int) -> int:
        """The end of what can be read from `low` on. Raises DamagedLogError if nothing can."""
        damaged = self.damage.first_in(low, high)
        if damaged is None:
            return high
        if damaged.first_index <= low:
            raise damaged.error()
        return damaged.first_index

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
            except OSError as error:
                raise self._failed_read(segment, error) from error
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
        index = self._places(segment)
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
            last_term = index.term(stop - 1)
        except IndexError:
            raise FrameError(f"index {low} is not in {segment.path.name}") from None
        file = segment.file or self._open(segment)
        entries = list(decode_entries(file.pread(end - start, segment.file_offset(start)), self._group_id))
        if len(entries) != stop - low or entries[0].index != low or entries[0].position != start:
            raise FrameError(f"frames at position {start} of {segment.path.name} are not entries {low}..{stop - 1}")
        _check_chain(entries, last_term)
        return entries

    def read_at(self, position: int, size: int) -> bytes:
        """Raw log bytes [position, position + size), unchecked: the caller holds a CRC of what it wants, and tells
        `report_damage` if it does not match.

        Raises OutOfRangeError if any byte is outside the log, DamagedLogError where damage is known.
        """
        segments = self._segments
        number = bisect_right(segments, position, key=_base_position) - 1
        if number < 0 or size < 0 or position + size > self._tail.end_position:
            raise OutOfRangeError(
                f"bytes {position}..{position + size} are not all in the log, which has "
                f"{self.first_position}..{self._tail.end_position}"
            )
        if self.damage.ranges and (damaged := self.damage.touching(position, size)) is not None:
            raise damaged.error(position)
        segment = segments[number]
        if number + 1 < len(segments):
            beyond = position + size - segments[number + 1].base
            if beyond > 0:
                return self.read_at(position, size - beyond) + self.read_at(position + size - beyond, beyond)
        try:
            file = segment.file or self._open(segment)
            data = file.pread(size, LOCAL_HEADER_SIZE + position - segment.header.base_position)
        except OSError as error:
            failed = self._failed_read(segment, error)
            raise (self._damaged_at(position, size) or failed if unreadable(error) else failed) from error
        if len(data) != size:  # of a file that was trimmed meanwhile, whatever was still there was right
            raise self._damaged_at(position, size) or CorruptLogError(
                f"{segment.path} ended before position {position + size}, but its frames can be read now"
            )
        return data

    def _failed_read(self, segment: Segment, error: OSError) -> RaftLogError:
        """A lost file and a sector that cannot be read are damage like any other; anything else is final."""
        if unreadable(error):
            return FrameError(f"reading {segment.path} failed: {error.strerror}")
        return storage_error(self._fs, "reading", segment.path, error)

    def _damaged_at(self, position: int, size: int) -> DamagedLogError | None:
        """Raises OutOfRangeError if the position was trimmed meanwhile."""
        if position < self.first_position:
            raise self._below(position)
        damaged = self.report_damage(position, size)
        return damaged.error(position) if damaged else None

    def _below(self, position: int) -> OutOfRangeError:
        return OutOfRangeError(f"position {position} was trimmed: the log begins at position {self.first_position}")

    def read_raw(self, position: int, size_max: int) -> bytes:
        """Whole frames from the one that begins at `position`, every CRC checked: at least one, then as many of the
        same segment file as fit `size_max` bytes. For a peer that repairs its log.

        Raises OutOfRangeError if no frame begins there, and DamagedLogError if the first is damaged here too.
        """
        if not self.first_position <= position < self._tail.end_position:
            raise OutOfRangeError(
                f"position {position} is not in the log, which has {self.first_position}..{self._tail.end_position}"
            )
        first = self._index_at(position)  # may find damage
        if (damaged := self.damage.touching(position, 1)) is not None:
            raise damaged.error(position)
        if self.position_of(first) != position:
            raise OutOfRangeError(f"no frame begins at position {position}: entry {first} begins below")
        number = bisect_right(self._segments, position, key=_base_position)
        high = self._segments[number].header.base_index if number < len(self._segments) else self._tail.index + 1
        entries = self.read_entries(first, high, size_max)
        return b"".join([part for entry in entries for part in (entry.header, entry.payload)])

    def segment_at(self, position: int) -> SegmentSpan:
        """The segment file that holds `position`. Raises OutOfRangeError."""
        segments, tail = self._segments, self._tail
        if not segments[0].base <= position < tail.end_position:
            raise OutOfRangeError(
                f"position {position} is not in the log, which has {segments[0].base}..{tail.end_position}"
            )
        number = bisect_right(segments, position, key=_base_position)
        sealed = number < len(segments)
        end = segments[number].base if sealed else tail.end_position
        return SegmentSpan(segments[number - 1].header.previous, end, sealed)

    def position_of(self, index: int) -> int:
        """Position of the entry's frame. Raises OutOfRangeError, and DamagedLogError where the place was lost."""
        if index < self.first_index or index > self._tail.index:
            raise OutOfRangeError(f"entry {index} is not in the log, which has {self.first_index}..{self._tail.index}")
        places = self._places(self._segment_of(index))  # may find damage
        if self.damage.ranges and (damaged := self.damage.at_index(index)) is not None and not damaged.located:
            raise damaged.error()
        return places.position(index)

    # Damage

    def report_damage(self, position: int, size: int) -> DamagedRange | None:
        """Somebody read [position, position + size) and its checksum did not match: which frames there are damaged?

        Records and returns the first such range; None if every frame there is intact (then the checksum was wrong).
        """
        size = max(1, size)
        if (known := self.damage.touching(position, size)) is not None:
            return known
        if not self.first_position <= position < self._tail.end_position:
            return None
        last = min(position + size, self._tail.end_position) - 1
        return self.find_damage(self._index_at(position), self._index_at(last) + 1)

    def find_damage(self, low: int, high: int) -> DamagedRange | None:
        """Reads entries [low, high) one by one up to the first damaged range, known or new, which it records."""
        while low < high:
            with self._cutting:
                low = max(low, self.first_index)
                if low > self._tail.index:
                    break
                extent = self._extent(low)
                stop = min(high, extent.end.index + 1, low + _LOOKED_AT_ONCE)
                known = self.damage.first_in(low, stop)
                found = self._first_damage(extent, low, known.first_index if known else stop)
                if found is not None:
                    return self.damage.add(found)
                if known is not None:
                    return known
                low = stop
        return None

    def _extent(self, index: int) -> Extent:
        segments = self._segments
        number = bisect_right(segments, index, key=_base_index) - 1
        end = segments[number + 1].header.previous if number + 1 < len(segments) else self._tail
        return Extent(segments[number], self._places(segments[number]), end, self._group_id)

    def _first_damage(self, extent: Extent, low: int, high: int) -> DamagedRange | None:
        try:
            file = extent.segment.file or self._fs.open(extent.segment.path)
        except OSError as error:
            if not unreadable(error):
                raise storage_error(self._fs, "reading", extent.segment.path, error) from error
            return whole_file(extent.segment, extent.end, f"{extent.segment.path}: {error.strerror}", located=True)
        return first_damage(extent, file, low, high)

    def _index_at(self, position: int) -> int:
        segments = self._segments
        number = bisect_right(segments, position, key=_base_position) - 1
        if number < 0:
            raise self._below(position)
        return self._places(segments[number]).next_below(position)

    def _open_sealed(self, segment: Segment) -> File:
        return self._fs.open(segment.path)

    def _load_sealed(self, segment: Segment) -> SegmentIndex:
        segments = self._segments
        if segment not in segments[:-1]:
            if segment.base < segments[0].base:
                raise self._below(segment.base)
            raise FrameError(f"{segment.path.name} is no sealed segment any more")
        following = segments[segments.index(segment) + 1]
        loaded = load_index(self._fs, segment, following.header.previous, self._group_id)
        for damaged in loaded.damaged:
            self.damage.add(damaged)
        return loaded.places

    def _places(self, segment: Segment) -> SegmentIndex:
        """Where the segment's entries begin; those in a range that is not `located` are not to be used."""
        return segment.index or self._load(segment)

    def _segment_of(self, index: int) -> Segment:
        segments = self._segments
        number = bisect_right(segments, index, key=_base_index) - 1
        if number < 0:
            raise OutOfRangeError(f"entry {index} was trimmed: the log begins with entry {self.first_index}")
        return segments[number]


def _check_chain(entries: Sequence[Entry], last_term: int) -> None:
    """Raises FrameError unless these intact frames are of one history, the first of them being in its place: a disk
    that wrote to the wrong place, or not at all, leaves intact frames of other entries, or of former terms.

    What a lost write left from before ends where a frame names another parent, or else the last one is of its term.
    """
    if any(after.parent != before.header_crc for before, after in pairwise(entries)) or entries[-1].term != last_term:
        raise FrameError(f"the frames of entries {entries[0].index}..{entries[-1].index} are not of one history")


def _base_index(segment: Segment) -> int:
    return segment.header.base_index


def _base_position(segment: Segment) -> int:
    return segment.header.base_position
