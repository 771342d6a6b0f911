"""Reads the log: entries by index, bytes by position; for any thread while one other appends.

Readers look only below the tail. LogState says what may change there, and what a reader does about it. Damage is
recorded frame by frame; a read that touches it raises DamagedLogError from then on, every other read is served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from raftlog.errors import CorruptLogError, DamagedLogError, FrameError, OutOfRangeError, RaftLogError
from raftlog.frame import HEADER_SIZE, FrameHeader, decode_entries, headers_in
from raftlog.kept_errors import bare
from raftlog.storage.files.fs import storage_error, unreadable
from raftlog.storage.log.log_state import LogState, base_index_of, base_position_of
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.damage_finder import Extent, first_damage, whole_file
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, Segment
from raftlog.types import Entry, LogTail

_Read = TypeVar("_Read")

_LOOKS = 8
"""The most attempts of a read that meets bytes that are not frames. Each attempt records the damage that it met."""
_LOOKED_AT_ONCE = 64
"""The number of entries that a search for damage reads at once. While it reads them, no conflict can be cut."""


class SegmentSpan(NamedTuple):
    """The part of the log that one segment file contains."""

    previous: LogTail
    """The log's tail just before the file's first frame; `EMPTY_TAIL` in the first file of all."""
    end_position: int
    """The position at which the file's last frame ends, as far as it is written."""
    sealed: bool
    """True if another file follows, so that nothing is added to this one any more."""


class EntrySpan(NamedTuple):
    """The place of one entry: its frame is the log's bytes [position, end)."""

    index: int  # type: ignore[assignment]
    term: int
    position: int
    end: int


class _Run(NamedTuple):
    """Consecutive entries [low, stop) of one segment."""

    segment: Segment
    low: int
    stop: int
    end: int
    """The position at which the segment's last entry ends."""


class _Part(NamedTuple):
    """The entries [low, stop) of one segment with the place of their frames, the log's bytes [start, end). There are
    none if `stop` is `low`."""

    segment: Segment
    low: int
    stop: int
    start: int
    end: int
    last_term: int

    def check(self, frames: Sequence[Entry | FrameHeader]) -> None:
        """Raises FrameError unless `frames`, which are intact, are the frames of this part."""
        if len(frames) != self.stop - self.low or frames[0].index != self.low or frames[0].position != self.start:
            raise FrameError(
                f"frames at position {self.start} of {self.segment.path.name} are not entries {self.low}.."
                f"{self.stop - 1}"
            )
        _check_chain(frames, self.last_term)


class LogReader:
    """Reads entries by index and bytes by position, from any thread."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def term_ranges(self) -> list[tuple[int, int]]:
        """Returns (first index, term) of each run of entries with one term, ascending; from memory, without a scan."""
        state = self._state
        ranges: list[tuple[int, int]] = []
        last = state.tail.index
        for segment in state.segments:
            for first, term in tuple(segment.terms):
                if first <= last and (not ranges or ranges[-1][1] != term):
                    ranges.append((first, term))
        return ranges

    def membership_indexes(self) -> list[int]:
        """Returns the indexes of the MEMBERSHIP entries that the segments' indexes list, ascending; from memory,
        without a scan. Entries whose headers were lost are not listed before they are repaired."""
        state = self._state
        last = state.tail.index
        return [number for segment in state.segments for number in tuple(segment.members) if number <= last]

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the entries [low, high), both CRCs checked. Stops before damage, and before the entry that would
        exceed `bytes_max` bytes of frames, but returns at least one.

        Raises OutOfRangeError unless first_index <= low and high <= tail.index + 1, and DamagedLogError if entry `low`
        is damaged.
        """
        return self._looked(low, high, lambda stop: self._read_entries(low, stop, bytes_max))

    def _looked(self, low: int, high: int, read: Callable[[int], _Read]) -> _Read:
        """Returns the result of `read` for the entries from `low` up to `high`, or up to the first damage. Records
        damage that `read` meets, and tries again, _LOOKS times in all. Then raises CorruptLogError."""
        state = self._state
        for _look in range(_LOOKS):
            try:
                return read(self._sound_below(low, high) if state.damage.ranges else high)
            except FrameError as error:
                # Either a conflict zeroed these bytes during the read: then the entries no longer exist. Or the bytes
                # are damaged: then `find_damage` records the damage, and the next try stops before it. It may meet
                # further damage, hence several tries.
                failed = bare(error)
                self.find_damage(low, high)
        raise CorruptLogError(f"{state.log}: damage in entries {low}..{high - 1}: {failed}") from failed

    def _sound_below(self, low: int, high: int) -> int:
        """Returns the end of the undamaged range of entries that begins at `low`, at most `high`. Raises
        DamagedLogError if entry `low` is damaged."""
        damaged = self._state.damage.first_in(low, high)
        if damaged is None:
            return high
        if damaged.first_index <= low:
            raise damaged.error()
        return damaged.first_index

    def _read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        run = self._run(low, high)
        entries: list[Entry] = []
        while low < high:
            part, frames = self._read_run(run, bytes_max, at_least_one=not entries)
            entries += part
            low += len(part)
            if low < run.stop or low == high:
                break
            bytes_max -= len(frames)
            run = self._run(low, high)
        return entries

    def _run(self, low: int, high: int) -> _Run:
        """Returns the part of [low, high) that lies in the same segment as `low`. Raises OutOfRangeError if any of the
        entries is not in the log."""
        tail = self._state.tail
        segments = self._state.segments
        if low < segments[0].header.base_index or high > tail.index + 1:
            raise OutOfRangeError(
                f"entries {low}..{high - 1} are not all in the log, which has {self._state.first_index}..{tail.index}"
            )
        number = bisect_right(segments, low, key=base_index_of)
        following = segments[number].header if number < len(segments) else None
        if following is None or following.base_index > high:
            return _Run(segments[number - 1], low, high, following.base_position if following else tail.end_position)
        return _Run(segments[number - 1], low, following.base_index, following.base_position)

    def _read_run(self, run: _Run, bytes_max: int, *, at_least_one: bool) -> tuple[list[Entry], bytes]:
        """Returns as many entries of the run as `bytes_max` allows, and the bytes of their frames."""
        part = self._fitting(run, bytes_max, at_least_one=at_least_one)
        if part.stop <= part.low:
            return [], b""
        segment = run.segment
        try:
            file = segment.file or self._state.open_sealed(segment)
            frames = file.pread(part.end - part.start, segment.file_offset(part.start))
        except OSError as error:
            raise self._failed_read(segment, error) from error
        entries = list(decode_entries(frames, self._state.group_id))
        part.check(entries)
        return entries, frames

    def _read_run_into(self, run: _Run, room: memoryview) -> int:
        """Reads the frames of as many entries of the run as fit into the buffer `room`. Returns the number of bytes."""
        part = self._fitting(run, len(room), at_least_one=False)
        if part.stop <= part.low:
            return 0
        segment, size = run.segment, part.end - part.start
        try:
            file = segment.file or self._state.open_sealed(segment)
            count = file.pread_into(room[:size], segment.file_offset(part.start))
        except OSError as error:
            raise self._failed_read(segment, error) from error
        part.check(list(headers_in(room[:count], self._state.group_id)))
        return size

    def _fitting(self, run: _Run, bytes_max: int, *, at_least_one: bool) -> _Part:
        segment, low, stop, end = run
        try:
            index = self._state.segment_index(segment)
            start = index.position(low)
            if stop - index.base_index < len(index.offsets):
                end = index.position(stop)
            if end - start > bytes_max:
                fitting = index.next_below(start + bytes_max)
                stop = min(stop, max(fitting, low + 1) if at_least_one else fitting)
                if stop > low and stop - index.base_index < len(index.offsets):
                    end = min(end, index.position(stop))
            last_term = index.term(max(low, stop - 1))
        except IndexError:
            raise FrameError(f"index {low} is not in {segment.path.name}") from None
        except OSError as error:
            raise self._failed_read(segment, error) from error
        return _Part(segment, low, stop, start, end, last_term)

    def read_at(self, position: int, size: int) -> bytes:
        """Returns the raw bytes [position, position + size) of the log, unchecked. The caller has a CRC of the bytes
        that it wants, and calls `report_damage` if they do not match it.

        Raises OutOfRangeError if any byte is outside the log, DamagedLogError where damage is known.
        """
        state = self._state
        log_end = state.tail.end_position
        segments = state.segments
        number = len(segments) - 1
        if position < segments[number].base:
            number = bisect_right(segments, position, key=base_position_of) - 1
        if number < 0 or size < 0 or position + size > log_end:
            raise OutOfRangeError(
                f"bytes {position}..{position + size} are not all in the log, which has "
                f"{state.first_position}..{log_end}"
            )
        if state.damage.ranges and (damaged := state.damage.touching(position, size)) is not None:
            raise damaged.error(position)
        if number + 1 == len(segments) or position + size <= segments[number + 1].base:  # the usual case: one file
            return self._read_in(segments[number], position, size)
        parts: list[bytes] = []
        end = position + size
        while position < end:  # a read may cross hundreds of small files; the join copies each byte once more
            stop = min(end, segments[number + 1].base) if number + 1 < len(segments) else end
            parts.append(self._read_in(segments[number], position, stop - position))
            position, number = stop, number + 1
        return b"".join(parts)

    def _read_in(self, segment: Segment, position: int, size: int) -> bytes:
        """Returns bytes that lie in one file. Raises like `read_at`."""
        state = self._state
        try:
            file = segment.file or state.open_sealed(segment)
            data = file.pread(size, LOCAL_HEADER_SIZE + position - segment.header.base_position)
        except OSError as error:
            failed = self._failed_read(segment, error)
            raise (self._damaged_at(position, size) or failed if unreadable(error) else failed) from error
        if len(data) != size:  # the file is too short: it was damaged, or a repair has just restored it
            raise self._damaged_at(position, size) or CorruptLogError(
                f"{segment.path} ended before position {position + size}, but its frames can be read now"
            )
        return data

    def _failed_read(self, segment: Segment, error: OSError) -> RaftLogError:
        """Returns the error for a read that failed. A lost file or an unreadable sector is damage like any other; every
        other error is final."""
        if unreadable(error):
            return FrameError(f"reading {segment.path} failed: {error.strerror}")
        return storage_error(self._state.fs, "reading", segment.path, error)

    def _damaged_at(self, position: int, size: int) -> DamagedLogError | None:
        """Searches these bytes for damage and records it. Returns the error that a read of them must raise; None if
        they are intact. Raises OutOfRangeError if the position was trimmed."""
        state = self._state
        if position < state.first_position:
            raise state.trimmed(position)
        damaged = self.report_damage(position, size)
        return damaged.error(position) if damaged else None

    def read_raw(self, position: int, size_max: int) -> bytes:
        """Returns complete frames, from the one that begins at `position` on, every CRC checked: at least one, then as
        many of the same segment file as fit into `size_max` bytes. A peer that repairs its log asks for them.

        Raises OutOfRangeError if no frame begins there, and DamagedLogError if the first is damaged here too.
        """
        first, high = self._frames_from(position)
        read = self._read_run
        return self._looked(first, high, lambda stop: read(self._run(first, stop), size_max, at_least_one=True)[1])

    def read_raw_into(self, position: int, room: memoryview) -> int:
        """Reads the same frames as `read_raw` into the writable buffer `room`. Returns the number of bytes; 0 if the
        first frame does not fit."""
        first, high = self._frames_from(position)
        return self._looked(first, high, lambda stop: self._read_run_into(self._run(first, stop), room))

    def _frames_from(self, position: int) -> tuple[int, int]:
        """Returns the index of the entry whose frame begins at the position, and the index after the last entry of its
        segment. Raises like `read_raw`."""
        state = self._state
        if not state.first_position <= position < state.tail.end_position:
            raise OutOfRangeError(
                f"position {position} is not in the log, which has {state.first_position}..{state.tail.end_position}"
            )
        first = self._index_at(position)  # this call records damage that it meets; the next line looks for it
        if (damaged := state.damage.touching(position, 1)) is not None:
            raise damaged.error(position)
        if self.position_of(first) != position:
            raise OutOfRangeError(f"no frame begins at position {position}: entry {first} begins below")
        tail, segments = state.tail, state.segments
        number = bisect_right(segments, position, key=base_position_of)
        return first, segments[number].header.base_index if number < len(segments) else tail.index + 1

    def segment_at(self, position: int) -> SegmentSpan:
        """Returns the extent of the segment file that contains `position`. Raises OutOfRangeError if the log does not
        contain that position."""
        segment, end, sealed = self._segment_with(position)
        return SegmentSpan(segment.header.previous, end, sealed)

    def _segment_with(self, position: int) -> tuple[Segment, int, bool]:
        """Returns the segment that contains `position`, the position at which it ends, and True if another segment
        follows. Raises OutOfRangeError if the log does not contain that position."""
        tail, segments = self._state.tail, self._state.segments
        if not segments[0].base <= position < tail.end_position:
            raise OutOfRangeError(
                f"position {position} is not in the log, which has {segments[0].base}..{tail.end_position}"
            )
        after = bisect_right(segments, position, key=base_position_of)
        sealed = after < len(segments)
        return segments[after - 1], segments[after].base if sealed else tail.end_position, sealed

    def position_of(self, index: int) -> int:
        """Returns the position of the entry's frame. Raises OutOfRangeError if the log does not contain the entry,
        DamagedLogError if the position was lost."""
        state = self._state
        if index < state.first_index or index > state.tail.index:
            raise OutOfRangeError(f"entry {index} is not in the log, which has {state.first_index}..{state.tail.index}")
        # this call records damage that it meets; the next line looks for it
        segment_index = state.segment_index(state.segment_of(index))
        if state.damage.ranges and (damaged := state.damage.at_index(index)) is not None and not damaged.located:
            raise damaged.error()
        return segment_index.position(index)

    def entry_at(self, position: int) -> EntrySpan:
        """Returns the place of the entry whose frame contains the byte at `position`, according to the index of its
        segment: no frame is read.

        Raises OutOfRangeError, and DamagedLogError if the positions of the entries were lost.
        """
        state = self._state
        segment, end, _ = self._segment_with(position)
        places = state.segment_index(segment)  # records damage that it meets, for which the code below looks
        index = places.next_below(position)
        if state.damage.ranges and (damaged := state.damage.at_index(index)) is not None and not damaged.located:
            raise damaged.error()
        after = index + 1 - places.base_index
        if after < len(places.offsets):
            end = places.position(index + 1)
        return EntrySpan(index, places.term(index), places.position(index), end)

    def tail_at(self, index: int) -> LogTail:
        """Returns the log's tail as it was after entry `index`. Raises OutOfRangeError, and DamagedLogError if the
        entry's header is lost."""
        state = self._state
        position = self.position_of(index)  # compares `index` with the tail, so it comes before `segment_of`
        base = state.segment_of(index).base
        try:
            frame = FrameHeader(self.read_at(position, HEADER_SIZE), state.group_id)
        except FrameError:
            damaged = self.report_damage(position, HEADER_SIZE)
            if damaged is None:
                raise
            raise damaged.error() from None
        end = frame.position + frame.frame_length
        return LogTail(frame.term, frame.index, end, frame.header_crc, base, frame.timestamp_ms)

    # Damage

    def report_damage(self, position: int, size: int) -> DamagedRange | None:
        """Searches for damaged frames in [position, position + size), after a caller found that these bytes do not
        match their checksum.

        Records and returns the first damaged range; None if every frame there is intact (then the caller's checksum was
        wrong).
        """
        state = self._state
        size = max(1, size)
        if (known := state.damage.touching(position, size)) is not None:
            return known
        if not state.first_position <= position < state.tail.end_position:
            return None
        last = min(position + size, state.tail.end_position) - 1
        return self.find_damage(self._index_at(position), self._index_at(last) + 1)

    def find_damage(self, low: int, high: int) -> DamagedRange | None:
        """Reads the entries [low, high) one by one up to the first damaged range, known or new, which it records and
        returns; None if there is none."""
        state = self._state
        while low < high:
            with state.cutting:
                low = max(low, state.first_index)
                if low > state.tail.index:
                    break
                extent = self._extent(low)
                stop = min(high, extent.end.index + 1, low + _LOOKED_AT_ONCE)
                known = state.damage.first_in(low, stop)
                found = self._first_damage(extent, low, known.first_index if known else stop)
                if found is not None:
                    return state.damage.add(found)
                if known is not None:
                    return known
                low = stop
        return None

    def _extent(self, index: int) -> Extent:
        state = self._state
        tail, segments = state.tail, state.segments
        number = bisect_right(segments, index, key=base_index_of) - 1
        end = segments[number + 1].header.previous if number + 1 < len(segments) else tail
        return Extent(segments[number], state.segment_index(segments[number]), end, state.group_id)

    def _first_damage(self, extent: Extent, low: int, high: int) -> DamagedRange | None:
        state = self._state
        try:
            file = extent.segment.file or state.fs.open(extent.segment.path)
        except OSError as error:
            if not unreadable(error):
                raise storage_error(state.fs, "reading", extent.segment.path, error) from error
            return whole_file(extent.segment, extent.end, f"{extent.segment.path}: {error.strerror}", located=True)
        return first_damage(extent, file, low, high)

    def _index_at(self, position: int) -> int:
        state = self._state
        segments = state.segments
        number = bisect_right(segments, position, key=base_position_of) - 1
        if number < 0:
            raise state.trimmed(position)
        return state.segment_index(segments[number]).next_below(position)


def _check_chain(entries: Sequence[Entry | FrameHeader], last_term: int) -> None:
    """Raises FrameError unless these intact frames belong to one history and are at their positions. A disk that wrote
    to the wrong place, or not at all, leaves intact frames of other entries, or of former terms.

    A stale frame that a lost write left in place is followed by a frame that names another parent; if it is the last
    one, its term shows that it is stale.
    """
    if any(after.parent != before.header_crc for before, after in pairwise(entries)) or entries[-1].term != last_term:
        raise FrameError(f"the frames of entries {entries[0].index}..{entries[-1].index} are not of one history")
