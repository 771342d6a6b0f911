"""Drops older bytes of the log from the page cache, so that new bytes use pages that the machine already has.

A log that only grows takes a new page for every 4 KiB. Where a hypervisor hands out memory as it is touched, such a
page costs several times as much as copying data into it (docs/adr/0076).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress

from raftlog.storage.log.log_state import LogState, base_position_of

STEP_BYTES = 8 << 20
"""The bytes that are dropped at once. With so many, a drop is rare, and takes about a millisecond."""


class PageCacheLimit:
    """Keeps only the newest bytes of the log in the page cache. `begin` is called before the first append; `drop_older`
    is for one thread only."""

    __slots__ = ("_bytes_max", "_dropped_to", "_state")

    def __init__(self, state: LogState) -> None:
        """Nothing is dropped before `begin` is called."""
        self._state = state
        self._bytes_max: int | None = None
        self._dropped_to = 0

    def begin(self, bytes_max: int) -> None:
        """Begins to keep only `bytes_max` bytes in the page cache. Bytes that were in the page cache before are left to
        the operating system."""
        self._dropped_to = max(0, self._state.tail.end_position - bytes_max)
        self._bytes_max = bytes_max

    def is_due(self) -> bool:
        """Returns True if `drop_older` has something to do."""
        bytes_max = self._bytes_max
        return bytes_max is not None and self._state.tail.end_position - bytes_max - self._dropped_to >= STEP_BYTES

    def drop_older(self) -> None:
        """Drops all but the newest bytes of the log from the page cache. The dropped ones are below the tail, hence on
        disk. Raises OSError."""
        assert self._bytes_max is not None
        state, low = self._state, self._dropped_to
        tail, segments = state.tail, state.segments  # `tail` before `segments`, as LogState prescribes
        self._dropped_to = high = tail.end_position - self._bytes_max
        for number in range(max(0, bisect_right(segments, low, key=base_position_of) - 1), len(segments)):
            segment = segments[number]
            if segment.base >= high:
                return
            is_old = number + 1 < len(segments) and segments[number + 1].base <= high
            with suppress(FileNotFoundError):  # the file was trimmed meanwhile
                file = segment.file or state.open_sealed(segment)
                # The range begins at the file's first byte, because Linux keeps a large folio that lies only partly in
                # the range.
                file.drop_cached(None if is_old else segment.file_offset(high))
