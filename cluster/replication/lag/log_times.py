"""Remembers when the log had reached which index, to tell how old an entry is without reading it.

A node notes the end of its log once a second, so this costs nothing per entry. Followers note the ends of their logs
too, so a new leader also knows the age of entries from before it led.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

SAMPLES_MAX: Final = 600
"""The most samples. When there are more, every second sample of the older half is removed, so old times become
coarser."""


class LogTime(NamedTuple):
    """The end of the log at a moment."""

    at_ms: int
    """Monotonic milliseconds."""
    last_index: int


_index = attrgetter("last_index")


class LogTimes:
    """Samples of the end of one node's log. Event loop only."""

    def __init__(self) -> None:
        self._samples: list[LogTime] = []
        """Invariant: time and index ascend, and at most two neighbours have the same index. Two such samples are the
        beginning and the end of a time without entries."""

    def note(self, now_ms: int, last_index: int) -> None:
        """Records that the log ends at `last_index` now. A shorter log than before was cut because of a conflict."""
        samples = self._samples
        while samples and samples[-1].last_index > last_index:
            samples.pop()
        if len(samples) >= 2 and samples[-2].last_index == last_index:
            samples.pop()
        samples.append(LogTime(now_ms, last_index))
        if len(samples) > SAMPLES_MAX:
            half = SAMPLES_MAX // 2
            samples[:half] = samples[:half:2]

    def age_ms(self, index: int, last_index: int, now_ms: int) -> int:
        """Returns for how many milliseconds the entry `index` has been in the log, which ends at `last_index`; 0 if it
        is beyond that end. Between two samples the log is taken to have grown evenly. For an entry that is older than
        the first sample, returns the age of the first sample, a lower bound."""
        if index > last_index:
            return 0
        at = bisect_right(self._samples, index - 1, key=_index)
        if at == 0:
            return now_ms - self._samples[0].at_ms if self._samples else 0
        before = self._samples[at - 1]
        after = self._samples[at] if at < len(self._samples) else LogTime(now_ms, last_index)
        share = (index - before.last_index) / max(1, after.last_index - before.last_index)
        return max(0, now_ms - before.at_ms - int(share * (after.at_ms - before.at_ms)))
