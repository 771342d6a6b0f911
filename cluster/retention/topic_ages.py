"""Topics with a time of their own (attribute `retention.ms`): what they hold back, what of them goes earlier."""

from __future__ import annotations

from cluster.retention.policy import Floor
from statemachine.broker_state import BrokerState
from statemachine.topics import TopicConfig
from statemachine.trim import QueueMin

STEP_OFFSETS = 65_536
"""The most that one TRIM takes of a queue by its topic's own time: applying it reads those rows."""
LEAST_OFFSETS = 256
"""Fewer than a chunk of rows are not worth an entry of the log, unless they are all that is left."""


def kept_longer(state: BrokerState, keep_ms: int, now_ms: int) -> Floor | None:
    """The first message that a topic keeps although others of its age go; None if there is none."""
    floors = [
        Floor(position, f"topic {topic.name} (retention.ms {topic.retention_ms})")
        for topic in state.topics.values()
        if _longer(topic, keep_ms)
        for queue_id in range(topic.queues)
        if (position := _first_kept(state, topic, queue_id, now_ms)) is not None
    ]
    return min(floors, default=None)


def _longer(topic: TopicConfig, keep_ms: int) -> bool:
    own = topic.retention_ms
    return own is not None and bool(keep_ms) and (own == 0 or own > keep_ms)


def _first_kept(state: BrokerState, topic: TopicConfig, queue_id: int, now_ms: int) -> int | None:
    """Position of the queue's first message that is younger than its topic's time."""
    offset = state.min_offset(topic.id, queue_id)
    if topic.retention_ms:
        offset = max(offset, state.offset_by_time(topic.id, queue_id, now_ms - topic.retention_ms + 1, False))
    items = state.fetch(topic.id, queue_id, offset, 1)
    return items[0].position if items else None


def gone_earlier(state: BrokerState, keep_ms: int, now_ms: int) -> list[QueueMin]:
    """Queues of topics that keep less than the others, and where they are to begin."""
    found = []
    for topic in state.topics.values():
        own = topic.retention_ms
        if own and (not keep_ms or own < keep_ms):
            for queue_id in range(topic.queues):
                first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
                expired = state.offset_by_time(topic.id, queue_id, now_ms - own + 1, False) if first < end else first
                if expired - first >= LEAST_OFFSETS or first < expired == end:
                    found.append((topic.id, queue_id, min(expired, first + STEP_OFFSETS)))
    return found
