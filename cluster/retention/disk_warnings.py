"""Early warnings about a disk: it fills up, or it is slow.

`disk_filling` is raised above `retention.disk_max_used_percent`, or when the disk would reach
`retention.disk_refuse_writes_percent` within HORIZON_MS at the rate of the last hour (six times
`retention.disk_rate_ms`). It is raised while there is still time; `disk_full` replaces it when sends are refused.

`disk_slow` is raised when more than one in a hundred of this node's appends (write and fdatasync together), and at
least SLOW_MIN, took longer than `log.slow_append_ms` over the last minute. A disk that has just become slow makes few
appends, and thousands of quick ones from before would hide them. The alarm is therefore also raised when most appends
of the last slice of SLICE_MS were slow, or most appends of the present slice once half of it has passed. Every node
measures its own disk: if all disks are slow, all nodes show it.

Both alarms have hysteresis: a disk that stays close to a limit does not make them flap.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.findings import Code

if TYPE_CHECKING:
    from cluster.config.storage_sections import RetentionSection
    from cluster.runtime.alarms import Alarms

FILLING = Code("disk_filling", "warning", "raftmq retention")
SLOW = Code("disk_slow", "warning", "raftmq doctor")
"""Keys of the alarms of this module."""

SAMPLES_PER_RATE = 10
"""Samples within `retention.disk_rate_ms`. This is the shortest time over which a rate is measured, because a burst
does not predict the next hours."""
SAMPLES = 6 * SAMPLES_PER_RATE + 1
"""The number of samples that are kept. By default there is one each minute, so they cover an hour."""
HORIZON_MS = 4 * 3_600_000
RELAX_POINTS = 2
"""Percentage points below `retention.disk_max_used_percent` at which a disk no longer counts as filling."""

SLICE_MS = 5_000
SLICES = 12
"""Slices in the window of one minute; the window moves on by one slice."""
SLOW_MIN = 3
"""The least number of slow appends, in a slice or in the window, for which the disk counts as slow."""
SLOW_LONG_MIN = 2
"""The least number of slow appends in a slice if they took half of the slice together. It is lower than SLOW_MIN
because only two syncs of 2 s fit into a slice."""


class Filling:
    """Follows the fill level of the disk. Event loop only; `cluster.retention.disk_space` calls it after each check."""

    def __init__(self, directory: str, limits: RetentionSection, alarms: Alarms) -> None:
        self._directory = directory
        self._limits = limits
        self._alarms = alarms
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES)
        self._why = ""
        self.full_in_ms: int | None = None
        """Milliseconds until sends are refused, at the rate of the kept samples; None if the usage does not grow, sends
        are already refused, or the rate is not known yet."""

    def reload(self, limits: RetentionSection) -> None:
        """Applies new limits."""
        self._limits = limits

    def look(self, now_ms: int, used: float, *, refusing: bool) -> None:
        """Records the result of one check of the disk, and raises or clears the alarm. `used` is the used share in per
        cent. `refusing` is True if sends are already refused: then another alarm (`disk_full`) replaces this one."""
        if not self._samples or SAMPLES_PER_RATE * (now_ms - self._samples[-1][0]) >= self._limits.disk_rate_ms:
            self._samples.append((now_ms, used))
        self.full_in_ms = self._full_in(now_ms, used)
        why = "" if refusing else self._reason(used)
        if why and not self._why:
            self._alarms.raise_alarm(FILLING, self._text(why))
        elif self._why and not why:
            self._alarms.clear(FILLING)
        elif self._why != why:
            self._alarms.raise_alarm(FILLING, self._text(why))
        self._why = why

    def _full_in(self, now_ms: int, used: float) -> int | None:
        then_ms, then = self._samples[0]
        grown, elapsed = used - then, now_ms - then_ms
        left = self._limits.disk_refuse_writes_percent - used
        if elapsed < self._limits.disk_rate_ms or grown <= 0 or left <= 0:
            return None
        return int(left / grown * elapsed)

    def _reason(self, used: float) -> str:
        """Returns the reason for the alarm; "" if there is none. It contains no measured number: an alarm that is
        raised again with another text counts as news."""
        line = self._limits.disk_max_used_percent
        if used > line - (RELAX_POINTS if self._why else 0):
            return f"it is above retention.disk_max_used_percent = {line}"
        horizon = HORIZON_MS * (2 if self._why else 1)
        if self.full_in_ms is not None and self.full_in_ms < horizon:
            return "at the rate of the last hour, sends will be refused within hours"
        return ""

    def _text(self, why: str) -> str:
        return (
            f"the disk of {self._directory} is filling up: {why}. Above retention.disk_refuse_writes_percent = "
            f"{self._limits.disk_refuse_writes_percent}, this node refuses sends while it leads. Free space, shorten "
            f"retention.hours, or use a larger disk. To see the usage: raftmq status --json"
        )


class _Slice(NamedTuple):
    """The appends of one slice of the window."""

    appends: int
    slow: int
    """Appends that took longer than the bound."""
    slow_ms: int
    """Milliseconds that these took together."""
    slowish: int
    """Appends that took longer than half of the bound."""
    slowish_ms: int


class SlowAppends:
    """Counts slow appends over the last minute. Event loop only."""

    def __init__(self, bound_ms: int, alarms: Alarms) -> None:
        """`bound_ms` is `log.slow_append_ms`; with 0, no append counts as slow."""
        self._bound_s = bound_ms / 1000
        self._alarms = alarms
        self._slices: deque[_Slice] = deque(maxlen=SLICES)
        self.suspect_s = self._bound_s / 2 if bound_ms else math.inf
        """Half of the bound, in seconds. Only appends that took longer need a call of `note`."""
        self._counted = 0
        """The number of all appends from the start to the end of the last slice."""
        self._slow = self._slowish = 0
        """The numbers of appends since the end of the last slice that took longer than the bound, and longer than half
        of the bound."""
        self._slow_ms = self._slowish_ms = 0
        """Milliseconds that the appends counted in `_slow` took together, and those counted in `_slowish`."""
        self._slice_ms = 0
        self._raised = False
        self.slow_total = 0
        """Appends since the start that took longer than the bound."""

    def note(self, seconds: float) -> bool:
        """Counts an append that took `seconds`; returns True if that is slow. Only appends above `suspect_s` need this
        call."""
        if seconds <= self.suspect_s:
            return False
        self._slowish += 1
        self._slowish_ms += int(1000 * seconds)
        if seconds <= self._bound_s:
            return False
        self._slow += 1
        self._slow_ms += int(1000 * seconds)
        self.slow_total += 1
        return True

    def tick(self, now_ms: int, appends: int) -> None:
        """Moves the window on when a slice is over, and raises or clears the alarm. `appends` is the number of all
        appends since the start."""
        passed_ms = now_ms - self._slice_ms
        if passed_ms < SLICE_MS:
            if self._slow >= SLOW_LONG_MIN and passed_ms >= SLICE_MS // 2 and not self._raised:
                self._raise_early(appends - self._counted, passed_ms)
            return
        self._slice_ms = now_ms
        newest = _Slice(appends - self._counted, self._slow, self._slow_ms, self._slowish, self._slowish_ms)
        self._slices.append(newest)
        self._counted = appends
        self._slow = self._slow_ms = self._slowish = self._slowish_ms = 0
        total = sum(each.appends for each in self._slices)
        slow = sum(each.slow for each in self._slices)
        if self._raised:
            self._end_if_quick(total)
        elif slow >= SLOW_MIN and slow * 100 > total:
            self._raise(slow, total, "minute")
        elif _is_slow(newest.appends, newest.slow, newest.slow_ms):
            self._raise(newest.slow, newest.appends, f"{SLICE_MS // 1000} s")

    def _raise_early(self, appends: int, passed_ms: int) -> None:
        """Raises the alarm before the slice is over, if most of its appends were slow. Other nodes ask for findings
        every few seconds, and an operator should see a slow disk within 15 s."""
        if _is_slow(appends, self._slow, self._slow_ms):
            self._raise(self._slow, appends, f"{passed_ms / 1000:.1f} s")

    def _raise(self, slow: int, total: int, span: str) -> None:
        self._raised = True
        self._alarms.raise_alarm(SLOW, self._text(slow, total, span))

    def _end_if_quick(self, total: int) -> None:
        """Clears the alarm if at most one in a hundred of the window's appends (`total`) took longer than half of the
        bound, and if there is no slice in which most appends did. Many quick appends in other slices do not make up for
        such a slice."""
        bad = any(_is_slow(each.appends, each.slowish, each.slowish_ms) for each in self._slices)
        slowish = sum(each.slowish for each in self._slices)
        if not bad and slowish * 100 <= total:
            self._raised = False
            self._alarms.clear(SLOW)

    def _text(self, slow: int, total: int, span: str) -> str:
        bound_ms = round(self._bound_s * 1000)
        return (
            f"the disk of this node is slow: {slow} of {total} appends to the log in the last {span} took longer than "
            f"log.slow_append_ms = {bound_ms}, and acknowledgements wait for them. Check what else uses the disk "
            f"(iostat -x 1), or move the data directory; the alarm ends when 99 of 100 take at most {bound_ms // 2} ms"
        )


def _is_slow(appends: int, slow: int, slow_ms: int) -> bool:
    """Returns True if most appends of a slice were slow, and at least SLOW_MIN of them (SLOW_LONG_MIN if the slow ones
    took half of the slice together). `slow_ms`: milliseconds that the slow ones took."""
    least = SLOW_LONG_MIN if slow_ms * 2 >= SLICE_MS else SLOW_MIN
    return slow >= least and slow * 2 > appends
