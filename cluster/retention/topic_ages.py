"""Topics with a time of their own (attribute `retention.ms`): what they hold back, what of them goes earlier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cluster.retention.policy import Floor
from statemachine.broker_state import BrokerState
from statemachine.topics import TopicConfig
from statemachine.trim import QueueMin

STEP_OFFSETS = 65_536
"""The most that one TRIM takes of a queue by its topic's own time: applying it reads those rows."""
LEAST_OFFSETS = 256
"""Fewer than a chunk of rows are not worth an entry of the log, unless they are all that is left."""
LOOKS_MAX = 4_096
"""Queues of such topics that one look asks for: a TRIM names each of those it takes from."""
PAGE_TOPICS = 512


class Place(NamedTuple):
    """Where a look begins."""

    topic: str
    queue_id: int


class Earlier(NamedTuple):
    """What one look found."""

    queues: list[QueueMin]
    at: Place | None
    """Where the next look begins; None: at the first topic."""


class KeptLonger:
    """What topics with a longer time hold back. One lane.

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
