"""Early warnings of a disk: that it fills up, and that it is slow.

`disk_filling` is raised above `retention.disk_max_used_percent`, or when the disk would reach
`retention.disk_refuse_writes_percent` within HORIZON_MS at the rate of the last hour (six times
`retention.disk_rate_ms`). It is raised while there is still time; `disk_full` replaces it when sends are refused.

`disk_slow` is raised when more than one in a hundred of this node's appends (write and fdatasync together) took longer
than `log.slow_append_ms` over the last minute: the 99th percentile is above it. A disk that has just become slow makes
few appends, which thousands of quick ones from before would hide for minutes; so it is also raised when most appends of
the last slice were slow. Every node measures itself, so disks that are slow everywhere show everywhere.

Both have hysteresis: a disk that stays close to a limit does not make them flap.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config.config import RetentionSection
    from cluster.runtime.alarms import Alarms

FILLING = "disk_filling"
SLOW = "disk_slow"
"""Keys of the alarms."""

SAMPLES_PER_RATE = 10
"""Samples in `retention.disk_rate_ms`, the shortest observation of a rate: a burst does not predict the next hours."""
SAMPLES = 6 * SAMPLES_PER_RATE + 1
"""Samples that are kept: by default one each minute, an hour of them."""
HORIZON_MS = 4 * 3_600_000
RELAX_POINTS = 2
"""Percentage points below the line at which a disk no longer counts as filling."""

SLICE_MS = 5_000
SLICES = 12
"""Slices in the window: they make a minute, which moves on by slices."""
SLOW_MIN = 3
"""Minimum of slow appends: a single slow one does not make a slow disk."""


class Filling:
    """Follows how full the disk is. Event loop only; told about each look (`cluster.retention.disk_space`)."""

    def __init__(self, directory: str, limits: RetentionSection, alarms: Alarms) -> None:
        self._directory = directory
        self._limits = limits
        self._alarms = alarms
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES)
        self._why = ""
        self.full_in_ms: int | None = None
        """Milliseconds until sends are refused, at the present rate; None while the disk is not filling up or that is
        not known."""

    def reload(self, limits: RetentionSection) -> None:
        """Other limits from now on."""
        self._limits = limits

    def look(self, now_ms: int, used: float, *, refusing: bool) -> None:
        """`used`: per cent of the disk; `refusing`: sends are refused already, which is another alarm."""
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
        """The same words as long as the reason is the same: an alarm with another text is news."""
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


class SlowAppends:
    """Counts slow appends over the last minute. Event loop only."""

    def __init__(self, bound_ms: int, alarms: Alarms) -> None:
        """`bound_ms`: `log.slow_append_ms`; 0: nothing is slow."""
        self._bound_s = bound_ms / 1000
        self._alarms = alarms
        self._slices: deque[list[int]] = deque(maxlen=SLICES)
        self.suspect_s = self._bound_s / 2 if bound_ms else math.inf
        """Appends that take longer are worth a `note`."""
        self._counted = 0
        """Appends until the last slice ended."""
        self._slow = self._slowish = 0
        """Appends since then: above the bound, and above half of it."""
        self._slice_ms = 0
        self._raised = False
        self.slow_total = 0
        """Appends above the bound since the start."""

    def note(self, seconds: float) -> bool:
        """An append took this long; returns whether that is slow. Needed only above `suspect_s`."""
        if seconds <= self.suspect_s:
            return False
        self._slowish += 1
        if seconds <= self._bound_s:
            return False
        self._slow += 1
        self.slow_total += 1
        return True

    def tick(self, now_ms: int, appends: int) -> None:
        """Moves the window on when it is time, and draws the conclusion. `appends`: all since the start."""
        if now_ms - self._slice_ms < SLICE_MS:
            return
        self._slice_ms = now_ms
        self._slices.append([appends - self._counted, self._slow, self._slowish])
        self._counted, self._slow, self._slowish = appends, 0, 0
        total, slow, slowish = (sum(column) for column in zip(*self._slices, strict=True))
        newest, newest_slow, _ = self._slices[-1]
        if self._raised:
            self._end_if_quick(total, slowish)
        elif slow >= SLOW_MIN and slow * 100 > total:
            self._raise(slow, total, "minute")
        elif newest_slow >= SLOW_MIN and newest_slow * 2 > newest:
            self._raise(newest_slow, newest, f"{SLICE_MS // 1000} s")

    def _raise(self, slow: int, total: int, span: str) -> None:
        self._raised = True
        self._alarms.raise_alarm(SLOW, self._text(slow, total, span))

    def _end_if_quick(self, total: int, slowish: int) -> None:
        """Not while a slice in which most were slow is in the window: many quick ones beside it prove nothing."""
        bad = any(some >= SLOW_MIN and some * 2 > appends for appends, _, some in self._slices)
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
