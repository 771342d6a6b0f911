"""Finds messages that consumer groups have not consumed, and those of them that retention removes or is about to
remove."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from cluster.config.storage_sections import RetentionSection, TierSection
from cluster.retention.policy import Floor
from statemachine.broker_state import BrokerState
from statemachine.tier import TierSegment
from statemachine.trim import QueueMin, highest

WARN_SHARE = 0.8
"""Share of a message's retention time (or of `bytes_max`). A message that a group has not consumed raises an alarm when
this share is used up."""


class Behind(NamedTuple):
    """A queue in which a group has not consumed all kept messages."""

    group: str
    topic: str
    topic_id: int
    queue_id: int
    offset: int
    """The first offset that is not consumed."""
    end: int
    position: int
    """Position of the message at `offset`."""
    store_ms: int


def behind(state: BrokerState) -> list[Behind]:
    """Returns every queue of every group that has committed an offset there and has not consumed everything. Costs one
    seek for each of them. Any thread."""
    found = []
    for group in state.groups:
        for topic_id, queue_id, committed in state.offsets_of_group(group):
            topic, end = state.topics_by_id.get(topic_id), state.max_offset(topic_id, queue_id)
            offset = max(committed, state.min_offset(topic_id, queue_id))
            if topic is None or offset >= end:
                continue
            items = state.fetch(topic_id, queue_id, offset, 1)
            if items:
                item = items[0]
                found.append(
                    Behind(group, topic.name, topic_id, queue_id, offset, end, item.position, item.store_time_ms)
                )
    return found


def floor(rows: list[Behind]) -> Floor | None:
    """Returns the position of the oldest message that some group has not consumed, and the reason; None if there is
    none."""
    oldest = min(rows, key=lambda row: row.position, default=None)
    if oldest is None:
        return None
    why = f"group {oldest.group} has not consumed {oldest.topic} queue {oldest.queue_id} offset {oldest.offset}"
    return Floor(oldest.position, why)


def within(queues: list[QueueMin], rows: list[Behind]) -> list[QueueMin]:
    """Returns `queues` with each new first offset lowered to the first offset that some group has not consumed. The
    result may have cuts that move no queue's beginning: the state machine ignores them."""
    unread: dict[tuple[int, int], int] = {}
    for row in rows:
        queue = row.topic_id, row.queue_id
        unread[queue] = min(row.offset, unread.get(queue, row.offset))
    return [(topic, queue, min(offset, unread.get((topic, queue), offset))) for topic, queue, offset in queues]


def lost(
    state: BrokerState, rows: list[Behind], position: int, queues: Sequence[QueueMin] = ()
) -> dict[tuple[str, str], int]:
    """Returns (group, topic) -> the number of unconsumed messages that lie below `position` of the log or below the
    offsets of `queues`."""
    named = highest(queues)
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        end = _first_at(state, row, position) if row.position < position else row.offset
        end = max(end, named.get((row.topic_id, row.queue_id), 0))
        if end > row.offset:
            counts[row.group, row.topic] = counts.get((row.group, row.topic), 0) + end - row.offset
    return counts


def _first_at(state: BrokerState, row: Behind, position: int) -> int:
    def lies_at(offset: int) -> int:
        items = state.fetch(row.topic_id, row.queue_id, offset, 1)
        return items[0].position if items else -1  # trimmed meanwhile

    return row.offset + bisect_left(range(row.offset, row.end), position, key=lies_at)


def warning(rows: list[Behind], rules: RetentionSection, now_ms: int, log_end: int) -> str:
    """Returns the text of the alarm that unconsumed messages are about to be removed; "" if there is no reason for
    one."""
    soon = [row for row in rows if _goes_soon(row, rules, now_ms, log_end)]
    if not soon:
        return ""
    worst = min(soon, key=lambda row: row.position)
    count = sum(row.end - row.offset for row in rows if (row.group, row.topic) == (worst.group, worst.topic))
    others = len({(row.group, row.topic) for row in soon}) - 1
    more = f" (and {others} more)" if others else ""
    return (
        f"group {worst.group} is {count} messages of topic {worst.topic} behind, and retention will soon remove the "
        f"oldest of them unread{more}: consume faster, or raise retention.hours or retention.bytes_max, or set "
        f"retention.protect_unconsumed. See: raftmq group describe {worst.group}"
    )


def warning_in_tier(state: BrokerState, section: TierSection, rules: RetentionSection, now_ms: int) -> str:
    """Returns the text of the alarm of `warning` for a cluster that evicts; "" if there is no reason for one. Evicted
    messages stay in the tier, so a message is only lost when it leaves the tier. If the tier's first segment goes soon,
    the text names a group that has not consumed the first message of some queue in the tier."""
    segments = state.kept_segments
    evicted = bool(segments) and state.kept.position < state.trim_position
    if not evicted or rules.protect_unconsumed or not _tier_goes_soon(segments, section, now_ms):
        return ""
    for group in state.groups:
        for topic_id, queue_id, committed in state.offsets_of_group(group):
            topic = state.topics_by_id.get(topic_id)
            if topic is None or committed >= state.min_offset(topic_id, queue_id):
                continue
            first = state.kept_offset(topic_id, queue_id)
            if committed <= first:
                return (
                    f"group {group} is {state.max_offset(topic_id, queue_id) - first} messages of topic {topic.name} "
                    f"queue {queue_id} behind, and the tier will soon give up its oldest messages unread: consume "
                    f"faster, or raise tier.retention_hours or tier.bytes_max, or set retention.protect_unconsumed. "
                    f"See: raftmq group describe {group}"
                )
    return ""


def _tier_goes_soon(segments: Sequence[TierSegment], section: TierSection, now_ms: int) -> bool:
    if section.keep_ms and now_ms - segments[0].span.last_ms >= section.keep_ms * WARN_SHARE:
        return True
    return bool(section.bytes_max) and sum(row.stored_bytes for row in segments) >= section.bytes_max * WARN_SHARE


def _goes_soon(row: Behind, rules: RetentionSection, now_ms: int, log_end: int) -> bool:
    if rules.protect_unconsumed:
        return False
    by_age = rules.keep_ms and now_ms - row.store_ms >= rules.keep_ms * WARN_SHARE
    return bool(by_age or (rules.bytes_max and log_end - row.position >= rules.bytes_max * WARN_SHARE))
