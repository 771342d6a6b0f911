"""Decides whether the majority is slow while the leader is not. This is the condition of `replication.degrade`.

An entry is on the leader's disk at one time and on those of a majority at another. The time between is the *wait*. Once
a second the leader looks at the median of the waits that have ended since the last look. If none has ended, it looks at
the present one. The majority is slow at a look if the wait is at least the bound (`replication.degrade_ms`), and at
least OWN_FACTOR times as long as a sync of the leader's own disk. If the leader's own disk is slow, an earlier answer
would help nobody.

The condition begins when the majority was slow at all of the last BEGIN_LOOKS looks, or at all but STRAYS of them. It
ends when the majority was slow at no more than STRAYS of the last END_LOOKS looks. A slow disk has a quick second now
and then, and a quick disk a slow one. A look without an entry finds nothing slow, so a cluster with one send a minute
never degrades.

Nothing here has a clock or does I/O: the caller gives the time in milliseconds.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cluster.runtime.figures.stage_times import StageTimes

EVERY_MS: Final = 1_000
GAP_MS: Final = 3 * EVERY_MS
"""The most milliseconds between two looks that count as consecutive. If more have passed, the node stood still."""
BEGIN_LOOKS: Final = 6
END_LOOKS: Final = 10
STRAYS: Final = 1
OWN_FACTOR: Final = 4


def wait_of(
    stages: StageTimes, since_ms: float, now_ms: float, *, persisted_index: int, commit_index: int
) -> float | None:
    """Returns the median wait, in milliseconds, of the entries that were committed after `since_ms`: the time from the
    leader's disk to a majority's disks. If none was committed, returns how long the oldest entry on the leader's disk
    has waited; None if none waits. An entry that a majority had before the leader counts as 0."""
    synced = iter(stages.synced)
    own = next(synced, None)
    waits: list[float] = []
    for index, at_ms in stages.committed:
        if at_ms <= since_ms:
            continue
        while own is not None and own[0] < index:
            own = next(synced, None)
        waits.append(0.0 if own is None else max(0.0, at_ms - own[1]))
    if waits:
        return median(waits)
    if persisted_index <= commit_index:
        return None
    synced_ms, _ = stages.of(commit_index + 1)
    return None if synced_ms is None else now_ms - synced_ms


class SlowQuorum:
    """The condition on one leader, updated with each look."""

    __slots__ = ("_last_ms", "_looks", "holds", "own_ms", "wait_ms")

    def __init__(self) -> None:
        self._looks: deque[bool] = deque(maxlen=END_LOOKS)
        """The last looks, oldest first: True if the majority was slow."""
        self.forget()

    def forget(self) -> None:
        """Forgets what was measured, for example when a term of leadership begins."""
        self.holds = False
        self.wait_ms = self.own_ms = 0.0
        """The wait, and a sync of the leader's disk, at the last look at which the majority was slow."""
        self._looks.clear()
        self._last_ms = 0

    @property
    def suspected(self) -> bool:
        """True if the condition holds or may begin soon."""
        return self.holds or True in self._looks

    def look(self, now_ms: int, wait_ms: float | None, own_ms: float | None, bound_ms: int) -> None:
        """Records one look: the wait, and the mean time of a sync on the leader, both in milliseconds; None if there
        was none. `bound_ms`: `replication.degrade_ms`."""
        if now_ms - self._last_ms > GAP_MS:
            self._looks.clear()
        self._last_ms = now_ms
        slow = wait_ms is not None and own_ms is not None and wait_ms >= max(bound_ms, OWN_FACTOR * own_ms)
        self._looks.append(slow)
        if slow:
            assert wait_ms is not None
            assert own_ms is not None
            self.wait_ms, self.own_ms = wait_ms, own_ms
            recent = list(self._looks)[-BEGIN_LOOKS:]
            self.holds = self.holds or (len(recent) == BEGIN_LOOKS and sum(recent) >= BEGIN_LOOKS - STRAYS)
        elif self.holds:
            self.holds = sum(self._looks) > STRAYS or len(self._looks) < END_LOOKS
