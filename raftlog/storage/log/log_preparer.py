"""Prepares in the background what the next roll (change to a new segment file) and the next start need: the next
segment's file at its full length, synced sidecars (index files of sealed segments), active.idx (the same for the active
segment), and free pages in the page cache."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from raftlog.errors import out_of_space
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, storage_error, zero_fill
from raftlog.storage.log.log_state import LogState
from raftlog.storage.log.page_cache import PageCacheLimit
from raftlog.storage.segments import active_index
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.storage.segments.segment_index import SegmentIndex

_STEP_BYTES, _STEP_BYTES_MAX = 256 * 1024, 8 << 20
"""The least and the most bytes of zeroes between two syncs."""
_STEP_S = 0.002
"""The seconds that the bytes between two syncs should take. An append that wants to sync waits that long at most on a
quick disk."""
_SLOW_AFTER_S, _SLOW_BYTES_S = 0.1, 16 << 20
"""Zero-filling may take _SLOW_AFTER_S seconds plus the time that its bytes take at _SLOW_BYTES_S bytes a second. If it
takes longer, the rest of the file stays sparse: on so slow a disk, appends need all of the bandwidth."""


class LogPreparer:
    """Prepares files for the log. `prepare_next` is for one background thread, everything else for the appending
    thread."""

    __slots__ = (
        "_kept_end",
        "_segment_size",
        "_state",
        "closed",
        "loose_sidecars",
        "page_cache",
        "prepared",
        "preparing",
    )

    def __init__(self, state: LogState, segment_size: int, kept_end: int) -> None:
        """`kept_end`: the position up to which active.idx covers the log already, or need not cover it."""
        self._state = state
        self._segment_size = segment_size
        self._kept_end = kept_end
        self.page_cache = PageCacheLimit(state)
        self.prepared: File | None = None
        """The next segment's file, if it is prepared: made by the background thread, taken by the appending thread at a
        roll."""
        self.loose_sidecars: deque[Path] = deque()
        """Sidecars that were written at a roll and are not synced yet. The appending thread adds to them, the
        background thread removes them."""
        self.preparing = threading.Lock()
        """A lock held while the next file is zero-filled. `close` waits for it; otherwise the file of a later owner
        could be zeroed."""
        self.closed = False

    def needs_next(self) -> bool:
        """Returns True if `prepare_next` has something to do."""
        state = self._state
        if state.failure is not None or self.closed:
            return False
        used = state.tail.end_position - state.segments[-1].base
        unprepared = self.prepared is None and used * 4 >= self._segment_size
        return unprepared or bool(self.loose_sidecars) or self.page_cache.is_due() or self._index_is_due()

    def _index_is_due(self) -> bool:
        tail, index = self._state.tail, self._state.segments[-1].index
        return index is not None and active_index.is_due(index, tail, self._kept_end)

    def prepare_next(self, *, zeroed: bool = True, clock: Callable[[], float] = lambda: 0.0) -> None:
        """Makes the next segment's file at its full length, writes to disk what the next start would otherwise scan
        for, and drops older bytes of the log from the page cache. One background thread calls it, in parallel with
        appends.

        `zeroed`: the file's blocks are written, as far as `clock` (seconds) says that the disk is fast enough, so that
        later syncs need no allocation; otherwise the file is sparse, which costs nothing now. Raises StorageError or
        DiskFullError; the log continues without the file, and makes it at the roll.
        """
        with self.preparing:
            self._keep_indexes()
            self._drop_pages()
            if self.prepared is None:
                self.prepared = self._full_length_file(self._state.log / layout.NEXT_SEGMENT, clock, zeroed=zeroed)

    def _keep_indexes(self) -> None:
        """Syncs sidecars of sealed segments and writes active.idx, if due."""
        state = self._state
        path = state.log
        try:
            while self.loose_sidecars:
                path = self.loose_sidecars[0]
                with suppress(FileNotFoundError):  # the sidecar was removed with its segment, by a cut or a trim
                    file = state.fs.open(path)
                    file.fdatasync()
                    file.close()
                    state.fs.fsync_dir(state.log)
                self.loose_sidecars.popleft()
            if self._index_is_due() and (kept := self._index_now()) is not None:
                path = state.log / layout.ACTIVE_INDEX
                active_index.write(state.fs, state.log, kept.segment_index, kept.tail, state.group_id)
                self._kept_end = kept.tail.end_position
        except OSError as error:
            raise storage_error(state.fs, "keeping", path, error) from error

    def _drop_pages(self) -> None:
        state = self._state
        if self.page_cache.is_due():
            try:
                self.page_cache.drop_older()
            except OSError as error:
                raise storage_error(state.fs, "dropping cached pages of", state.log, error) from error

    def _index_now(self) -> active_index.Point | None:
        """Returns a copy of the active segment's index up to the tail; None if the segment is empty or the position of
        an entry is unknown."""
        state = self._state
        with state.cutting:
            tail, active = state.tail, state.segments[-1]
            index = active.index
            count = 0 if index is None else tail.index + 1 - index.base_index
            if index is None or count <= 0 or not state.segment_index_known(active):
                return None
            segment_index = SegmentIndex(index.base, index.base_index)
            segment_index.offsets = index.offsets[:count]
            segment_index.terms = [run for run in tuple(index.terms) if run[0] <= tail.index]
            segment_index.members = [number for number in tuple(index.members) if number <= tail.index]
            return active_index.Point(tail, segment_index)

    def _full_length_file(self, path: Path, clock: Callable[[], float], *, zeroed: bool) -> File | None:
        """Returns a synced file of the segment's full length that reads as zeroes; None if the log was closed before it
        was ready."""
        fs = self._state.fs
        file: File | None = None
        try:
            file = fs.open(path, create=True)
            size = LOCAL_HEADER_SIZE + self._segment_size
            began = now = clock()
            at, step = 0, _STEP_BYTES
            while zeroed and at < size:
                if self.closed:
                    return None
                if now - began > _SLOW_AFTER_S + at / _SLOW_BYTES_S:
                    break
                stop = min(at + step, size)
                zero_fill(file, at, stop)
                file.fdatasync()
                at, before, now = stop, now, clock()
                if now - before < _STEP_S / 2:
                    step = min(2 * step, _STEP_BYTES_MAX)
                elif now - before > _STEP_S:
                    step = max(step // 2, _STEP_BYTES)
            file.truncate(size)
            file.fdatasync()
        except OSError as error:
            if file is not None and out_of_space(error):
                with suppress(OSError):  # the little space that is left is kept for appends
                    file.truncate(0)
            raise storage_error(fs, "preparing", path, error) from error
        return file

    def give_up(self) -> None:
        """Forgets the prepared file, because it became a file of the log, or the log is closed."""
        self.prepared = None

    def close(self) -> None:
        """Waits for the preparation in progress, which ends after at most one more chunk of zeroes."""
        self.closed = True
        with self.preparing:
            pass
