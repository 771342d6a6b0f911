"""Puts a peer's copy of a damaged range of the log (log_repair.py) in its place in the open log."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise
from pathlib import Path

from raftlog.errors import OutOfRangeError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import storage_error, write_file
from raftlog.storage.log.log_repair import STAGED, Part, RangeRepair, check_still_damaged, copy_frames
from raftlog.storage.log.log_state import LogState
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.sealed_index import load_sidecar, rebuild_index
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    Segment,
    decode_header,
    encode_header,
    header_is_damaged,
)
from raftlog.storage.segments.segment_index import SegmentIndex, encode_index
from raftlog.types import LogTail


class LogRepairer:
    """Repairs damaged ranges of the log. `repairing`, `repair` and the objects that they return are for one thread at a
    time, which may be any thread."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def repair(self, damaged: DamagedRange, frames: bytes) -> None:
        """Puts a peer's copy of the whole range in place, durably. Raises like RangeRepair.feed and finish; after any
        error the range still counts as damaged."""
        repair = self.repairing(damaged)
        repair.feed(frames)
        repair.finish()

    def repairing(self, damaged: DamagedRange) -> RangeRepair:
        """Begins the repair of a range in pieces; the caller feeds it from `next_position` on, then calls `finish`.

        Raises OutOfRangeError unless `damaged` is one of `damage.ranges`, StorageError if the disk fails.
        """
        state = self._state
        check_still_damaged(state.damage.ranges, damaged)
        try:
            for name in state.fs.listdir(state.log):
                if name.startswith(STAGED.partition("{")[0]):
                    state.fs.unlink(state.log / name)
        except OSError as error:
            raise storage_error(state.fs, "removing what an earlier repair left in", state.log, error) from error
        return RangeRepair(state.fs, state.log, state.group_id, damaged, self._tail_below(damaged), self._put_in_place)

    def _tail_below(self, damaged: DamagedRange) -> LogTail:
        segment = self._state.segment_of(damaged.first_index)
        if segment.base == damaged.first_position:
            return segment.header.previous
        term = [term for first, term in segment.terms if first < damaged.first_index][-1]
        return LogTail(term, damaged.first_index - 1, damaged.first_position, damaged.before or 0, segment.base, 0)

    def _put_in_place(self, repair: RangeRepair) -> None:
        state = self._state
        with state.cutting:  # meanwhile no cut may remove or zero the bytes being written
            check_still_damaged(state.damage.ranges, repair.damaged)
            ends = [part.previous for part in repair.parts[1:]] + [repair.tail]
            for number, (part, end) in enumerate(zip(repair.parts, ends, strict=True)):
                base = self._file_of(part)
                path = state.log / layout.segment_name(base)
                if state.fs.exists(path):
                    self._write_into(path, base, part, end)
                else:
                    self._build(state.log / STAGED.format(number), path, part)
            self._publish_files(repair.parts)
            state.forget_sealed()
            for part, end in zip(repair.parts, ends, strict=True):
                self._adopt_index(part, end, located=repair.damaged.located)
            state.damage.drop(repair.damaged)

    def _file_of(self, part: Part) -> int:
        """Returns the base position of the file that contains the part. A frame with the flag ROLL begins a file; other
        frames lie in the last file that begins below them."""
        state = self._state
        if part.whole:
            return part.segment_index.base
        bases = layout.segment_bases(state.fs.listdir(state.log))
        return max(base for base in bases if base <= part.segment_index.base)

    def _write_into(self, path: Path, base: int, part: Part, end: LogTail) -> None:
        # The file is opened anew: on the append's descriptor, a sync here could consume the error of an append's failed
        # sync.
        state = self._state
        file = state.fs.open(path)
        if part.whole and header_is_damaged(file.pread(LOCAL_HEADER_SIZE, 0)):
            file.pwritev([encode_header(part.previous, state.group_id)[: MARK_OFFSETS[0]]], 0)
        copy_frames(
            part, end.end_position - part.segment_index.base, file, LOCAL_HEADER_SIZE + part.segment_index.base - base
        )
        file.close()

    def _build(self, staged: Path, path: Path, part: Part) -> None:
        state = self._state
        part.file.fdatasync()
        state.fs.rename(staged, path)
        state.fs.fsync_dir(state.log)

    def _publish_files(self, parts: list[Part]) -> None:
        """Adds or replaces the Segment of each repaired file, and removes the Segments whose frames turned out to be in
        another file."""
        state = self._state
        with state.publishing:
            known = {segment.base: segment for segment in state.segments}
            for part in parts:
                base = part.segment_index.base
                path = state.log / layout.segment_name(base)
                if not part.whole:
                    if base in known and not state.fs.exists(path):
                        del known[base]
                    continue
                header = decode_header(state.fs.open(path).pread(LOCAL_HEADER_SIZE, 0), path, state.group_id)
                if base in known:
                    known[base].header = header
                else:
                    known[base] = Segment(path, header)
            state.segments = tuple(known[base] for base in sorted(known))

    def _adopt_index(self, part: Part, end: LogTail, *, located: bool) -> None:
        state = self._state
        segment = state.segment_of(part.segment_index.base_index)
        if segment.index is not None:
            adopt(segment.index, part.segment_index)
            return
        following = next((after for before, after in pairwise(state.segments) if before is segment), None)
        if following is None:
            raise OutOfRangeError(f"{segment.path.name} is no sealed segment any more")
        last = following.header.previous
        path = segment.path.with_suffix(layout.INDEX_SUFFIX)
        if located or load_sidecar(state.fs, segment, last, state.group_id) is not None:
            return
        whole = part.whole and end == last
        index = part.segment_index if whole else rebuild_index(state.fs, segment, last, state.group_id).segment_index
        segment.tell(index)
        write_file(state.fs, path, b"".join(encode_index(index, last, state.group_id)))


def adopt(index: SegmentIndex, part: SegmentIndex) -> None:
    """Enters the positions and terms of the part's entries into `index`."""
    at = part.base_index - index.base_index
    shift = part.base - index.base
    index.offsets[at : at + len(part.offsets)] = type(index.offsets)("I", [offset + shift for offset in part.offsets])
    after = part.base_index + len(part.offsets)
    runs = tuple(index.terms)
    terms = [run for run in runs if run[0] < part.base_index] + part.terms
    if after < index.base_index + len(index.offsets):
        terms += [(after, index.term(after))] + [run for run in runs if run[0] > after]
    kept = [run for number, run in enumerate(terms) if not number or terms[number - 1][1] != run[1]]
    index.terms[: len(runs)] = kept  # an append may have added later terms meanwhile
    for number in part.members:
        if number not in index.members:
            insort(index.members, number)
