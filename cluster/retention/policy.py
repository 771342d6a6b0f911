"""Chooses the segments that retention removes: a pure function of the log, the disk and the configuration.

Whole segments are removed, oldest first, as long as there is a reason for the next one:

- **age**: all its messages have expired. This counts only at the hours of `delete_when`, unless the disk is fuller than
  `disk_max_used_percent` or an operator asks. A topic that keeps its messages longer keeps the log longer.
- **size**: there is more log than `bytes_max`.
- **disk**: the disk is fuller than `disk_force_clean_percent`; then neither age nor the settings of topics count.

Nothing above a `Floor` is removed, whatever the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cluster.config.storage_sections import RetentionSection
from statemachine.broker_state import BrokerState
from statemachine.topics.topics import TopicConfig
from statemachine.trim import QueueMin


class SegmentFact(NamedTuple):
    """A sealed segment of the log. `end` is the position where the next one begins."""

    base: int
    end: int
    end_index: int
    """Index of the first entry of the next segment."""
    last_ms: int
    """Log time of the segment's last entry."""


class Floor(NamedTuple):
    """A limit of removal: nothing at or above `position` may be removed; `why` names what needs it."""

    position: int
    why: str


class DiskFact(NamedTuple):
    """The disk of the data directory. `freed_bytes` belong to files that were given up but not removed yet."""

    total_bytes: int
    used_bytes: int
    freed_bytes: int = 0

    @property
    def percent_now(self) -> float:
        """Used share of the disk now, in per cent."""
        return self._replace(freed_bytes=0).percent()

    def percent(self, freed_bytes: int = 0) -> float:
        """Returns the used share of the disk in per cent, with `freed_bytes` more given up; 0 if the file system
        reports no size."""
        if self.total_bytes <= 0:
            return 0.0
        return 100 * max(0, self.used_bytes - self.freed_bytes - freed_bytes) / self.total_bytes


UNKNOWN_DISK = DiskFact(0, 0)


class TrimFacts(NamedTuple):
    """The input of `decide`, besides the rules."""

    now_ms: int
    """Log time of the decision."""
    hour: int
    """Hour of the day at the leader, 0 to 23."""
    end: int
    """The position at which the log ends."""
    segments: Sequence[SegmentFact]
    """The segments that are not trimmed yet, without the active one, ascending and without gaps."""
    disk: DiskFact = UNKNOWN_DISK
    floors: Sequence[Floor] = ()
    kept_longer: Floor | None = None
    """The position from which on a topic keeps messages longer than the others."""
    asked: bool = False
    """True if an operator wants the expired messages removed now, whatever the hour."""


class TrimDecision(NamedTuple):
    """The outcome of `decide`: the log is to begin at `position`, and `count` segments go."""

    position: int
    first_index: int
    reason: str
    count: int  # type: ignore[assignment]
    held: str = ""
    """The obstacle to giving up more; "" if there is no reason to give up more."""
    more: bool = False
    """True if there is a reason to remove further segments, but `delete_batch_files` was reached. The next run may
    follow at once."""


def decide(facts: TrimFacts, rules: RetentionSection) -> TrimDecision:
    """Returns which segments to give up now: none if `count` is 0."""
    position = facts.segments[0].base if facts.segments else facts.end
    going: list[SegmentFact] = []
    reasons: list[str] = []
    held = ""
    for segment in facts.segments:
        reason = _reason(segment, position, facts, rules)
        # Segments go oldest first and without a gap: the log has one beginning, on every node.
        if not reason:
            break
        floor = _in_the_way(segment, reason, facts)
        # Data above a floor is still needed (timers, half messages). It stays even if the disk is full.
        if floor is not None:
            held = floor.why
            break
        # A TRIM is limited, because applying it visits all that it removes, and reads wait meanwhile.
        if len(going) == rules.delete_batch_files:
            return _decision(going, reasons, "", more=True)
        going.append(segment)
        if reason not in reasons:
            reasons.append(reason)
    return _decision(going, reasons, held, more=False) if going else TrimDecision(position, 0, "", 0, held)


def _decision(going: list[SegmentFact], reasons: list[str], held: str, *, more: bool) -> TrimDecision:
    return TrimDecision(going[-1].end, going[-1].end_index, ", ".join(reasons), len(going), held, more)


def _reason(segment: SegmentFact, first: int, facts: TrimFacts, rules: RetentionSection) -> str:
    """Returns the reason to remove the segment, given that the log from `first` up to it is removed; "" if there is
    none."""
    gone = segment.base - first
    # Only removal by age waits for the hours of `delete_when`, so that it does not disturb a busy time of the day.
    if rules.bytes_max and facts.end - segment.base > rules.bytes_max:
        return "size"
    if facts.disk.percent(gone) > rules.disk_force_clean_percent:
        return "disk"
    if rules.keep_ms and segment.last_ms + rules.keep_ms <= facts.now_ms and _now_is_the_time(facts, rules):
        return "age"
    return ""


def _now_is_the_time(facts: TrimFacts, rules: RetentionSection) -> bool:
    hours = rules.delete_hours
    return facts.asked or not hours or facts.hour in hours or facts.disk.percent() > rules.disk_max_used_percent


def _in_the_way(segment: SegmentFact, reason: str, facts: TrimFacts) -> Floor | None:
    floors = list(facts.floors)
    # A topic's longer retention time prevents removal by age only, so that the topic cannot fill the disk.
    if reason == "age" and facts.kept_longer is not None:
        floors.append(facts.kept_longer)
    lowest = min(floors, default=None)
    return lowest if lowest is not None and segment.end > lowest.position else None


STEP_OFFSETS = 65_536
"""The most offsets of one queue that a TRIM removes by the topic's own retention time, because applying the TRIM reads
those rows."""
LEAST_OFFSETS = 256
"""The fewest offsets that are worth an entry of the log (one chunk of rows), unless they are all that is left."""
LOOKS_MAX = 4_096
"""The most queues that one search checks, of topics with a retention time of their own. It is limited because a TRIM
names each queue that it cuts."""
PAGE_TOPICS = 512


class QueuePlace(NamedTuple):
    """The queue at which the next search of `gone_earlier` begins."""

    topic: str
    queue_id: int


class Earlier(NamedTuple):
    """The result of `gone_earlier`: queues with expired messages, of topics with a shorter retention time."""

    queues: list[QueueMin]
    at: QueuePlace | None
    """The queue at which the next look begins; None to begin again with the first topic."""


class KeptLonger:
    """Finds the log that topics with a longer retention time hold back. Used by one lane.

    A look reads one or two rows of each queue of such topics. To save reads, it remembers the topic that held the log
    last: as long as that topic still holds it, no other is asked.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._holder = ""

    def floor(self, keep_ms: int, now_ms: int, first_end: int, end: int) -> Floor | None:
        """Returns the position of the lowest message below `end` that a topic keeps although other messages of its age
        go, as a Floor that names the topic; None if there is none. The search stops at the first such message below
        `first_end`, the end of the first segment that would go, because then no segment goes."""
        lowest: Floor | None = None
        for topic in self._topics():
            if not _longer(topic, keep_ms):
                continue
            for queue_id in range(self._state.stored_queues(topic)):
                position = _first_kept(self._state, topic, queue_id, now_ms, end)
                if position is None or (lowest is not None and lowest.position <= position):
                    continue
                self._holder = topic.name
                lowest = Floor(position, f"topic {topic.name} (retention.ms {topic.retention_ms})")
                if position < first_end:
                    return lowest
        return lowest

    def _topics(self) -> Iterator[TopicConfig]:
        """Yields the topic that held the log last, then all topics, including that one again."""
        topics = self._state.topics
        holder = topics.get(self._holder)
        if holder is not None:
            yield holder
        yield from topics.values()


def _longer(topic: TopicConfig, keep_ms: int) -> bool:
    own = topic.retention_ms
    return own is not None and bool(keep_ms) and (own == 0 or own > keep_ms)


def _first_kept(state: BrokerState, topic: TopicConfig, queue_id: int, now_ms: int, end: int) -> int | None:
    """Returns the position of the queue's first message that is younger than its topic's retention time; of its first
    message if that time is 0 (for ever). Returns None if there is no such message below `end`."""
    offset = state.min_offset(topic.id, queue_id)
    items = state.fetch(topic.id, queue_id, offset, 1)
    if topic.retention_ms and not (items and items[0].position >= end):
        young = state.offset_by_time(topic.id, queue_id, now_ms - topic.retention_ms + 1, False)
        if young > offset:
            items = state.fetch(topic.id, queue_id, young, 1)
    return items[0].position if items and items[0].position < end else None


def gone_earlier(
    state: BrokerState,
    keep_ms: int,
    now_ms: int,
    at: QueuePlace | None = None,
    *,
    looks_max: int = LOOKS_MAX,
    page_topics: int = PAGE_TOPICS,
) -> Earlier:
    """Returns the queues of topics that keep messages for a shorter time than the others, each with its new first
    offset. Begins at the queue `at` and checks at most `looks_max` queues."""
    found: list[QueueMin] = []
    looks = 0
    for name in names_from(state, "" if at is None else at.topic, page_topics):
        topic = state.topics.get(name)
        own = None if topic is None else topic.retention_ms
        if topic is None or not own or (keep_ms and own >= keep_ms):
            continue
        for queue_id in range(at.queue_id if at is not None and name == at.topic else 0, state.stored_queues(topic)):
            if looks == looks_max:
                return Earlier(found, QueuePlace(name, queue_id))
            looks += 1
            found += _expired(state, topic, queue_id, now_ms - own + 1)
    return Earlier(found, None)


def names_from(state: BrokerState, at: str, page_topics: int = PAGE_TOPICS) -> Iterator[str]:
    """Yields the names of topics in ascending order, beginning with `at` itself, even if that topic no longer exists.
    With `at` = "", yields all. Looks up `page_topics` names at a time."""
    after = at or None
    if after is not None:
        yield after
    while names := state.topics.keys_from(after, page_topics):
        yield from names
        after = names[-1]


def _expired(state: BrokerState, topic: TopicConfig, queue_id: int, since_ms: int) -> list[QueueMin]:
    first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
    expired = state.offset_by_time(topic.id, queue_id, since_ms, False) if first < end else first
    if expired - first >= LEAST_OFFSETS or first < expired == end:
        return [(topic.id, queue_id, min(expired, first + STEP_OFFSETS))]
    return []
