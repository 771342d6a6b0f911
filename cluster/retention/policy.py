"""The segments that retention removes: a pure function of the log, the disk and the configuration.

Whole segments are removed, oldest first, as long as there is a reason for the next one:

- **age**: all its messages have expired; only at the hours of `delete_when`, unless the disk is fuller than
  `disk_max_used_percent` or an operator asks. A topic that keeps its messages longer keeps the log longer.
- **size**: there is more log than `bytes_max`.
- **disk**: the disk is fuller than `disk_force_clean_percent`; then neither age nor the settings of topics count.

Never above a `Floor`, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster.config.config import RetentionSection


class SegmentFact(NamedTuple):
    """A sealed segment; `end` is where the next one begins."""

    base: int
    end: int
    end_index: int
    """Index of the first entry of the next one."""
    last_ms: int
    """Log time of its last entry."""


class Floor(NamedTuple):
    """Nothing at or above `position` may be removed; `why` says what needs it."""

    position: int
    why: str


class DiskFact(NamedTuple):
    """The disk of the data directory. `freed_bytes` are given up already, but their files are still there."""

    total_bytes: int
    used_bytes: int
    freed_bytes: int = 0

    @property
    def percent_now(self) -> float:
        """How full it is."""
        return self._replace(freed_bytes=0).percent()

    def percent(self, freed_bytes: int = 0) -> float:
        """How full it will be, with `freed_bytes` more given up; 0 for a disk that says nothing of itself."""
        if self.total_bytes <= 0:
            return 0.0
        return 100 * max(0, self.used_bytes - self.freed_bytes - freed_bytes) / self.total_bytes


UNKNOWN_DISK = DiskFact(0, 0)


class Facts(NamedTuple):
    """What is decided from."""

    now_ms: int
    """Log time."""
    hour: int
    """Of the day, where the leader is."""
    end: int
    """Position where the log ends."""
    segments: Sequence[SegmentFact]
    """Those that are not trimmed yet, without the active one, ascending and without gaps."""
    disk: DiskFact = UNKNOWN_DISK
    floors: Sequence[Floor] = ()
    kept_longer: Floor | None = None
    """From where on a topic keeps messages longer than the others."""
    asked: bool = False
    """A person wants what has expired gone now."""


class Decision(NamedTuple):
    """Where the log is to begin; `count` segments go."""

    position: int
    first_index: int
    reason: str
    count: int  # type: ignore[assignment]
    held: str = ""
    """What stands in the way of more; "" if there is no reason for more."""
    more: bool = False
    """There is more to give up, at once."""


def decide(facts: Facts, rules: RetentionSection) -> Decision:
    """What to give up now: nothing if `count` is 0."""
    position = facts.segments[0].base if facts.segments else facts.end
    going: list[SegmentFact] = []
    reasons: list[str] = []
    held = ""
    for segment in facts.segments:
        reason = _reason(segment, position, facts, rules)
        if not reason:
            break
        floor = _in_the_way(segment, reason, facts)
        if floor is not None:
            held = floor.why
            break
        if len(going) == rules.delete_batch_files:
            return _decision(going, reasons, "", more=True)
        going.append(segment)
        if reason not in reasons:
            reasons.append(reason)
    return _decision(going, reasons, held, more=False) if going else Decision(position, 0, "", 0, held)


def _decision(going: list[SegmentFact], reasons: list[str], held: str, *, more: bool) -> Decision:
    return Decision(going[-1].end, going[-1].end_index, ", ".join(reasons), len(going), held, more)


def _reason(segment: SegmentFact, first: int, facts: Facts, rules: RetentionSection) -> str:
    """Why the segment should go, given that all below it, down to `first`, do."""
    gone = segment.base - first
    if rules.bytes_max and facts.end - segment.base > rules.bytes_max:
        return "size"
    if facts.disk.percent(gone) > rules.disk_force_clean_percent:
        return "disk"
    if rules.keep_ms and segment.last_ms + rules.keep_ms <= facts.now_ms and _now_is_the_time(facts, rules):
        return "age"
    return ""


def _now_is_the_time(facts: Facts, rules: RetentionSection) -> bool:
    hours = rules.delete_hours
    return facts.asked or not hours or facts.hour in hours or facts.disk.percent() > rules.disk_max_used_percent


def _in_the_way(segment: SegmentFact, reason: str, facts: Facts) -> Floor | None:
    floors = list(facts.floors)
    if reason == "age" and facts.kept_longer is not None:
        floors.append(facts.kept_longer)
    lowest = min(floors, default=None)
    return lowest if lowest is not None and segment.end > lowest.position else None
