"""How long work that may wait for a disk may hold the event loop: a share of the time."""

from __future__ import annotations

STALL_SHARE = 0.02
"""Of the time, what stalls may take from the loop beyond the time that is not yet one."""
STALL_BURST_S = 0.010
"""And at once, before the thread has all the work."""


class StallBudget:
    """What stalls take is paid from a budget of STALL_SHARE of the time and at most STALL_BURST_S.

    While it is overdrawn, the work belongs on a thread. So a disk that hangs for a second holds the loop once, and then
    not again for 50 s; no rule could cut that one short. Work that waited some milliseconds for a core, as all does on
    a busy machine, stays on the loop.
    """

    __slots__ = ("_left_s", "_paid_s", "_slow_s")

    def __init__(self, slow_s: float) -> None:
        """`slow_s`: what takes longer is a stall, and costs what it takes beyond that."""
        self._slow_s = slow_s
        self._left_s = STALL_BURST_S
        self._paid_s = 0.0
        """When the budget was brought up to date last."""

    def overdrawn(self, now_s: float) -> bool:
        """Whether the next piece of work belongs on the thread."""
        return self._left_s < 0 and self._saved(now_s) < 0

    def pay(self, seconds: float, now_s: float) -> bool:
        """Work on the loop took so long, and ended now; True if it was a stall."""
        if seconds <= self._slow_s:
            return False
        self._left_s = min(STALL_BURST_S, self._saved(now_s)) - (seconds - self._slow_s)
        self._paid_s = now_s
        return True

    def _saved(self, now_s: float) -> float:
        return self._left_s + (now_s - self._paid_s) * STALL_SHARE
