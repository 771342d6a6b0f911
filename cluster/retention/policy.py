"""The segments that retention removes: a pure function of the log, the disk and the configuration.

Whole segments are removed, oldest first, as long as there is a reason for the next one:

- **age**: all its messages have expired; only at the hours of `delete_when`, unless the disk is fuller than
  `disk_max_used_percent` or an operator asks. A topic that keeps its messages longer keeps the log longer.
- **size**: there is more log than `bytes_max`.
- **disk**: the disk is fuller than `disk_force_clean_percent`; then neither age nor the settings of topics count.

Never above a `Floor`, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cluster.config.config import RetentionSection
from statemachine.broker_state import BrokerState
from statemachine.topics import TopicConfig
from statemachine.trim import QueueMin


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
        """Used share of the disk now, in per cent."""
        return self._replace(freed_bytes=0).percent()

    def percent(self, freed_bytes: int = 0) -> float:
        """Returns the used share of the disk in per cent with `freed_bytes` more given up; 0 for a disk that says
        nothing of itself."""
        if self.total_bytes <= 0:
            return 0.0
        return 100 * max(0, self.used_bytes - self.freed_bytes - freed_bytes) / self.total_bytes


UNKNOWN_DISK = DiskFact(0, 0)


class Facts(NamedTuple):
    """The input of `decide`, beside the rules."""

    now_ms: int
    """Log time."""
    hour: int
    """Hour of the day at the leader."""
    end: int
    """Position where the log ends."""
    segments: Sequence[SegmentFact]
    """Those that are not trimmed yet, without the active one, ascending and without gaps."""
    disk: DiskFact = UNKNOWN_DISK
    floors: Sequence[Floor] = ()
    kept_longer: Floor | None = None
    """Position from which on a topic keeps messages longer than the others."""
    asked: bool = False
    """A person wants what has expired gone now."""


class Decision(NamedTuple):
    """The position at which the log is to begin; `count` segments go."""

    position: int
    first_index: int
    reason: str
    count: int  # type: ignore[assignment]
    held: str = ""
    """The obstacle to giving up more; "" if there is no reason for more."""
    more: bool = False
    """There is more to give up, at once."""


def decide(facts: Facts, rules: RetentionSection) -> Decision:
    """Returns what to give up now: nothing if `count` is 0."""
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


STEP_OFFSETS = 65_536
"""The most that one TRIM takes of a queue by its topic's own time: applying it reads those rows."""
LEAST_OFFSETS = 256
"""Fewer than a chunk of rows are not worth an entry of the log, unless they are all that is left."""
LOOKS_MAX = 4_096
"""Queues of such topics that one look asks for: a TRIM names each of those it takes from."""
PAGE_TOPICS = 512


class Place(NamedTuple):
    """The queue at which a look begins."""

    topic: str
    queue_id: int


class Earlier(NamedTuple):
    """The findings of one look."""

    queues: list[QueueMin]
    at: Place | None
    """Place at which the next look begins; None: at the first topic."""


class KeptLonger:
    """Finds the messages that topics with a longer time hold back. One lane.

    A look asks for a row or two of each of their queues. So it remembers which topic held the log last: as long as that
    one does, no other is asked."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._holder = ""

    def floor(self, keep_ms: int, now_ms: int, first_end: int, end: int) -> Floor | None:
        """The first message below `end` that a topic keeps although others of its age go; None if there is none. The
        search ends at one below `first_end`, where the first segment ends that would go: then none goes."""
        lowest: Floor | None = None
        for topic in self._topics():
            if not _longer(topic, keep_ms):
                continue
            for queue_id in range(topic.queues):
                position = _first_kept(self._state, topic, queue_id, now_ms, end)
                if position is None or (lowest is not None and lowest.position <= position):
                    continue
                self._holder = topic.name
                lowest = Floor(position, f"topic {topic.name} (retention.ms {topic.retention_ms})")
                if position < first_end:
                    return lowest
        return lowest

    def _topics(self) -> Iterator[TopicConfig]:
        """The last holder first, and again in its place."""
        topics = self._state.topics
        holder = topics.get(self._holder)
        if holder is not None:
            yield holder
        yield from topics.values()


def _longer(topic: TopicConfig, keep_ms: int) -> bool:
    own = topic.retention_ms
    return own is not None and bool(keep_ms) and (own == 0 or own > keep_ms)


def _first_kept(state: BrokerState, topic: TopicConfig, queue_id: int, now_ms: int, end: int) -> int | None:
    """Position of the queue's first message that is younger than its topic's time; None if it is not below `end`."""
    offset = state.min_offset(topic.id, queue_id)
    items = state.fetch(topic.id, queue_id, offset, 1)
    if topic.retention_ms and not (items and items[0].position >= end):
        young = state.offset_by_time(topic.id, queue_id, now_ms - topic.retention_ms + 1, False)
        if young > offset:
            items = state.fetch(topic.id, queue_id, young, 1)
    return items[0].position if items and items[0].position < end else None


def gone_earlier(state: BrokerState, keep_ms: int, now_ms: int, at: Place | None = None) -> Earlier:
    """Queues of topics that keep less than the others, and where they are to begin: from the place `at` on, as far as a
    look goes."""
    found: list[QueueMin] = []
    looks = 0
    for name in _names_from(state, at):
        topic = state.topics.get(name)
        own = None if topic is None else topic.retention_ms
        if topic is None or not own or (keep_ms and own >= keep_ms):
            continue
        for queue_id in range(at.queue_id if at is not None and name == at.topic else 0, topic.queues):
            if looks == LOOKS_MAX:
                return Earlier(found, Place(name, queue_id))
            looks += 1
            found += _expired(state, topic, queue_id, now_ms - own + 1)
    return Earlier(found, None)


def _names_from(state: BrokerState, at: Place | None) -> Iterator[str]:
    after = None if at is None else at.topic
    if after is not None:
        yield after
    while names := state.topics.keys_from(after, PAGE_TOPICS):
        yield from names
        after = names[-1]


def _expired(state: BrokerState, topic: TopicConfig, queue_id: int, since_ms: int) -> list[QueueMin]:
    first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
    expired = state.offset_by_time(topic.id, queue_id, since_ms, False) if first < end else first
    if expired - first >= LEAST_OFFSETS or first < expired == end:
        return [(topic.id, queue_id, min(expired, first + STEP_OFFSETS))]
    return []
