"""Removes old segment files from the log, and puts older ones from a peer back in front of it.

Trimmed entries disappear from all readers first. Their files are unlinked later, oldest first, after log/FIRST is on
disk with the position at which the log must begin (log_first.py). A crash in between leaves a log that begins lower, or
leftover files that the next start removes. A file that is put in front of the log is proved by its chain: the log's
first entry names the file's last frame as its parent, so the bytes are those that every replica has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from raftlog.errors import FrameError
from raftlog.storage.files import layout, log_first
from raftlog.storage.files.fs import File, storage_error, write_file
from raftlog.storage.log.genesis_copy import keep_copy
from raftlog.storage.log.log_state import LogState
from raftlog.storage.segments.scan import scan_segment
from raftlog.storage.segments.sealed_index import same_end
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, Segment, decode_header
from raftlog.storage.segments.segment_index import SegmentIndex, encode_index
from raftlog.types import LogTail


class LogTrimmer:
    """Trims the log and puts files back in front of it. Any thread may call it; `remove_files` and `prepend` wait for
    each other."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def trim(self, position: int) -> list[Path]:
        """Removes the segment files that end at or below `position` from the open log, but never the active one.
        Returns their paths, to be given to `remove_files`.

        The entry at `position` must be committed, because the first entry of a log is never replaced in a conflict. The
        call never waits: while a conflict is cut or a repair is put in place nothing is trimmed, and the list is empty.
        A reader of trimmed bytes, in any thread, gets all of them or OutOfRangeError.
        """
        state = self._state
        if not state.cutting.acquire(blocking=False):
            return []
        try:
            with state.publishing:
                segments = state.segments
                ends = [segment.base for segment in segments[1:]]
                # the active file has no entry yet: keep the file before it too
                if ends and state.tail.end_position == ends[-1]:
                    ends.pop()
                count = bisect_right(ends, position)
                state.segments = segments[count:]
            if count:
                state.damage.begin_at(state.previous)
        finally:
            state.cutting.release()
        return [segment.path for segment in segments[:count]]

    def remove_files(self, paths: Iterable[Path]) -> int:
        """Unlinks the files that `trim` returned, and their sidecars, durably. Returns the number of segment files that
        were removed.

        A file that does not exist any more, or is part of the log again, is skipped. Raises StorageError: the remaining
        files are harmless, and the next trim after a start returns them again.
        """
        state = self._state
        removed = 0
        with state.filing:
            try:
                self._save_first(lower=False)
                for path in sorted(paths):
                    removed += self._unlink(path)
                if removed:
                    state.fs.fsync_dir(state.log)
                state.forget_sealed()
            except OSError as error:
                raise storage_error(state.fs, "removing trimmed files from", state.log, error) from error
        return removed

    def _unlink(self, path: Path) -> bool:
        state = self._state
        if path.parent != state.log or path in [segment.path for segment in state.segments]:
            return False
        there = state.fs.exists(path)
        if there:
            if path.name == layout.segment_name(0):
                keep_copy(state.fs, path, state.group_id)
            state.fs.unlink(path)
        sidecar = path.with_suffix(layout.INDEX_SUFFIX)
        if state.fs.exists(sidecar):
            with suppress(FileNotFoundError):
                state.fs.unlink(sidecar)
        return there

    def _save_first(self, *, lower: bool) -> None:
        """Writes the log's present beginning into FIRST, if FIRST is damaged or names an earlier one. With `lower`,
        also if FIRST names a later one."""
        state = self._state
        previous = state.previous
        known = log_first.load(state.fs, state.log, state.group_id)
        if known is None or known.end_position < previous.end_position or (lower and known != previous):
            log_first.save(state.fs, state.log, previous, state.group_id)

    def prepend(self, path: Path) -> None:
        """Puts a complete segment file in front of the log, under its final name instead of `path`; returns when that
        is durable and the file is part of the log.

        The file's frames are checked one by one, payloads too. Raises FrameError if they are not the ones just before
        the log, CorruptLogError if the file belongs to another group; the log is then unchanged. Raises StorageError:
        then the log is unchanged, or has the file (`first_position` tells).
        """
        state = self._state
        with state.filing:
            try:
                self._prepend(path)
            except OSError as error:
                raise storage_error(state.fs, "putting a segment file in front of", state.log, error) from error

    def _prepend(self, path: Path) -> None:
        state = self._state
        file = state.fs.open(path)
        target, index, end = self._proved(path, file)
        file.fdatasync()  # the writer of the file may not have synced it
        file.close()
        sidecar = target.path.with_suffix(layout.INDEX_SUFFIX)
        write_file(state.fs, sidecar, b"".join(encode_index(index, end, state.group_id)))
        target.tell(index)
        with state.cutting:
            if state.previous != end:
                raise FrameError(f"{state.log} was trimmed while {path.name} was read: it is not needed any more")
            state.fs.rename(path, target.path)
            state.fs.fsync_dir(state.log)
            with state.publishing:
                state.segments = (target, *state.segments)
            state.damage.begin_at(state.previous)
        # if a crash prevents this, the next start still takes files that join the log below FIRST without a gap
        self._save_first(lower=True)

    def _proved(self, path: Path, file: File) -> tuple[Segment, SegmentIndex, LogTail]:
        """Returns the Segment for the file, its index and its end. Raises FrameError unless the file's frames are
        intact and end where the log begins, CorruptLogError as `decode_header` does."""
        state = self._state
        end = state.previous
        header = decode_header(file.pread(LOCAL_HEADER_SIZE, 0), path, state.group_id)
        segment = Segment(state.log / layout.segment_name(header.base_position), header)
        if header.base_position != end.segment_base or header.base_position >= end.end_position:
            raise FrameError(
                f"{path} begins at position {header.base_position}, the file before this log at {end.segment_base}"
            )
        scan, index = scan_segment(file, segment, check_payloads=True)
        if scan.damage is not None or not same_end(scan.tail, end):
            raise FrameError(
                f"the frames of {path} end at position {scan.tail.end_position} with index {scan.tail.index} "
                f"({scan.tail.header_crc:08x}): {scan.damage or 'no more frames'}; the log begins at "
                f"{end.end_position} after index {end.index} ({end.header_crc:08x})"
            )
        return segment, index, end
