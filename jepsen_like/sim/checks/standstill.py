"""Decides whether work that a leader does in slices stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.node.node import Node

ENTRIES_MAX = 64
"""Number of entries. A leader that has applied more than this many entries beyond the end that its log had at the last
progress has no slice left in its log that was proposed before.
"""


class _Progress(NamedTuple):
    """The last progress under one leader: the leader's term with the progress, the time in seconds, and the last index
    of the leader's log at that time."""

    place: tuple[object, ...]
    since_s: float
    tail: int


class Standstill:
    """Remembers the last progress of a leader's work. `patience_s` is the longest virtual time in seconds that may pass
    until the next progress."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._last: _Progress | None = None

    def is_reached(self, node: Node, progress: tuple[object, ...], now_s: float) -> bool:
        """Returns True, once, if the leader `node` has made no progress in time. The caller repeats the call.
        `progress` is any value that changes with each slice.
        """
        place, tail = (node.raw.term, *progress), node.storage.directory.log.tail.index
        if self._last is None or self._last.place != place:
            self._last = _Progress(place, now_s, tail)
        applied = node.state.applied.index
        is_late = now_s - self._last.since_s > self._patience_s
        if not is_late or (applied != tail and applied <= self._last.tail + ENTRIES_MAX):
            return False
        self._last = None
        return True
