"""Damage of the log below its durable point: ranges of whole frames, each with the header CRCs around it.

A damaged range is never served, truncated or skipped: it waits for a peer's copy (`SegmentedLog.repair`). The chain
proves a copy: its first frame must name `before` as its parent, and its last must be the one that `after` names.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from raftlog.errors import DamagedLogError
from raftlog.types import EMPTY_TAIL, LogTail


class DamagedRange(NamedTuple):
    """A range of frames that cannot be read intact. Positions are log positions, `end_position` exclusive; indexes
    inclusive."""

    first_position: int
    end_position: int
    first_index: int
    last_index: int
    before: int | None
    """The header_crc of the frame before the range (0 before GENESIS); None if it is unknown."""
    after: int | None
    """The header_crc that the frame after the range names as its parent, which is that of the range's last frame; None
    if it is unknown."""
    why: str
    located: bool = True
    """True if the position of each frame in the range is known. False where headers were lost, or the whole file."""

    @property
    def size(self) -> int:
        """Size of the range in bytes."""
        return self.end_position - self.first_position

    def error(self, position: int | None = None) -> DamagedLogError:
        """Returns the error for a read at `position` (default: the start of the range)."""
        return DamagedLogError(
            f"log damaged at positions {self.first_position}..{self.end_position}, entries {self.first_index}.."
            f"{self.last_index}: {self.why}. They are fetched from a peer; nothing was cut.",
            position=self.first_position if position is None else position,
            first_index=self.first_index,
            last_index=self.last_index,
        )


def joined(first: DamagedRange, second: DamagedRange) -> DamagedRange:
    """Returns one range for two that overlap or touch. `first` is the one that begins first."""
    located = first.located and second.located
    if second.end_position <= first.end_position:
        return first._replace(located=located)
    why = first.why if first.why == second.why else f"{first.why}; {second.why}"
    return DamagedRange(
        first.first_position,
        second.end_position,
        first.first_index,
        second.last_index,
        first.before,
        second.after,
        why[:300],
        located,
    )


def above(damaged: DamagedRange, previous: LogTail) -> DamagedRange | None:
    """Returns the part of the range that lies in a log which begins after `previous`; None if there is none."""
    if damaged.end_position <= previous.end_position:
        return None
    if damaged.first_position >= previous.end_position:
        return damaged
    return damaged._replace(
        first_position=previous.end_position, first_index=previous.index + 1, before=previous.header_crc
    )


class DamageMap:
    """The damaged ranges of one log, disjoint and ascending. Any thread may use it. In an intact log a look-up costs
    one attribute access."""

    __slots__ = ("_changed", "_floor", "_lock", "ranges")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor = EMPTY_TAIL
        """The log's tail before its first entry: damage below it does not count."""
        self.ranges: tuple[DamagedRange, ...] = ()
        """All damaged ranges, ascending. The tuple is replaced as a whole, so that readers need no lock."""
        self._changed: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def bytes(self) -> int:
        """The total size of all ranges in bytes."""
        return sum(damaged.size for damaged in self.ranges)

    def on_change(self, call: Callable[[], None]) -> None:
        """Registers `call`, which is called whenever a range was found or dropped. The call may come on any thread and
        while the log holds a lock, so `call` may only signal another thread or task."""
        self._changed.append(call)

    def add(self, damaged: DamagedRange) -> DamagedRange:
        """Records the range, joined with those that it overlaps or touches. Returns the range that now covers it.

        Damage below the log's first entry, which a trim may have moved in the meantime, is not recorded. For a range
        that lies below it as a whole, returns `damaged`.
        """
        with self._lock:
            kept = []
            found = above(damaged, self._floor)
            if found is None:
                return damaged
            for known in self.ranges:
                if known.end_position < found.first_position or found.end_position < known.first_position:
                    kept.append(known)
                else:
                    found = joined(*sorted((known, found)))
            changed = found not in self.ranges
            self.ranges = tuple(sorted((*kept, found)))
        if changed:
            self._tell()
        return found

    def drop(self, damaged: DamagedRange) -> None:
        """Removes a range that was repaired."""
        with self._lock:
            before = self.ranges
            self.ranges = tuple(known for known in before if known != damaged)
        if before != self.ranges:
            self._tell()

    def cut(self, position: int, last_index: int, header_crc: int) -> None:
        """Shortens the ranges, because a conflict cut the log at `position`. The log now ends with entry `last_index`,
        whose frame has `header_crc`."""
        with self._lock:
            before = self.ranges
            self.ranges = tuple(
                known
                if known.end_position <= position
                else known._replace(end_position=position, last_index=last_index, after=header_crc)
                for known in before
                if known.first_position < position
            )
        if before != self.ranges:
            self._tell()

    def begin_at(self, previous: LogTail) -> None:
        """Removes damage below the log's new beginning, which is after `previous`."""
        with self._lock:
            before, self._floor = self.ranges, previous
            clipped = (above(known, previous) for known in before)
            self.ranges = tuple(known for known in clipped if known is not None)
        if before != self.ranges:
            self._tell()

    def at_index(self, index: int) -> DamagedRange | None:
        """Returns the range that contains the entry at `index`; None if there is none."""
        return self.first_in(index, index + 1)

    def first_in(self, low: int, high: int) -> DamagedRange | None:
        """Returns the lowest range with an entry of [low, high); None if there is none."""
        for damaged in self.ranges:
            if damaged.last_index >= low:
                return damaged if damaged.first_index < high else None
        return None

    def touching(self, position: int, size: int) -> DamagedRange | None:
        """Returns the lowest range with a byte of [position, position + size); None if there is none."""
        ranges = self.ranges
        at = bisect_right(ranges, position, key=_end)
        if at < len(ranges) and ranges[at].first_position < position + size:
            return ranges[at]
        return None

    def _tell(self) -> None:
        for call in self._changed:
            call()


def _end(damaged: DamagedRange) -> int:
    return damaged.end_position
