"""Decides which segments leave the tier for good: a pure function of the tier's rows and the configuration
(docs/adr/0066).

`[retention]` says how long the nodes keep messages, `[tier]` how long the tier keeps the segments that have left the
nodes. So only segments that were evicted can go, oldest first, as long as there is a reason for the next one:

- **age**: its last entry is older than `tier.retention_hours`, and than the time of every topic that keeps its messages
  longer and has any in the tier;
- **size**: the objects from this one on have more than `tier.bytes_max` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from statemachine.tier import TierSegment

if TYPE_CHECKING:
    from cluster.config.storage_sections import TierSection
    from statemachine.broker_state import BrokerState


class TierFacts(NamedTuple):
    """The input of `decide`, besides the configuration."""

    now_ms: int
    """Log time of the decision."""
    begins: int
    """The position at which the log of the nodes begins."""
    segments: Sequence[TierSegment]
    """Rows of the tier, lowest first, without those whose retention in the tier has ended."""
    keep_ms: int
    """Milliseconds after which a segment may go by its age: the retention time of the tier, or a longer one that a
    topic asks for. 0: segments never go by age."""
    unconsumed: str = ""
    """A sentence about a consumer group whose unconsumed messages must stay in the tier; "" if there is no such
    group."""


class TierDecision(NamedTuple):
    """A cut of the tier: the tier's log is to begin at `position`, with the entry `first_index`, and `count` segments
    go. If `count` is 0, there is a reason to remove segments, but `held` prevents it."""

    position: int
    first_index: int
    reason: str
    count: int  # type: ignore[assignment]
    held: str = ""
    """The obstacle to removing more; "" if there is no reason to remove more."""


def decide(facts: TierFacts, section: TierSection) -> TierDecision | None:
    """Returns which segments leave the tier now; None if there is no reason to remove any."""
    left = sum(row.stored_bytes for row in facts.segments)
    going: list[TierSegment] = []
    reasons: list[str] = []
    held = ""
    for row in facts.segments:
        reason = _reason(row, left, facts, section)
        if not reason:
            break
        if row.end > facts.begins:
            held = "the nodes still have it ([retention])"
            break
        if facts.unconsumed:
            held = facts.unconsumed
            break
        left -= row.stored_bytes
        going.append(row)
        if reason not in reasons:
            reasons.append(reason)
    if not going:
        return TierDecision(0, 0, "", 0, held) if held else None
    last = going[-1]
    return TierDecision(last.end, last.span.last_index + 1, f"{', '.join(reasons)} in the tier", len(going), held)


def _reason(row: TierSegment, left: int, facts: TierFacts, section: TierSection) -> str:
    if section.bytes_max and left > section.bytes_max:
        return "size"
    if section.keep_ms and facts.keep_ms and row.span.last_ms + facts.keep_ms <= facts.now_ms:
        return "age"
    return ""


def facts_of(state: BrokerState, section: TierSection, now_ms: int, *, protect_unconsumed: bool) -> TierFacts:
    """Returns the input of `decide` as this node knows it. Any thread. Without a limit in `section`, or without evicted
    messages, the input has no segments, and neither topics nor groups are read."""
    begins = state.trim_position
    rows = state.kept_segments
    if state.kept.position >= begins or not (section.keep_ms or section.bytes_max):
        return TierFacts(now_ms, begins, (), 0)
    unconsumed = _unconsumed(state) if protect_unconsumed else ""
    return TierFacts(now_ms, begins, rows, _keep_ms(state, section.keep_ms), unconsumed)


def _keep_ms(state: BrokerState, keep_ms: int) -> int:
    """Returns the longest retention time, in milliseconds, that the tier or a topic with messages there asks for; 0
    means without end."""
    for topic in state.topics.values():
        own = topic.retention_ms
        if own is None or 0 < own <= keep_ms:
            continue
        if any(
            state.kept_offset(topic.id, queue_id) < state.min_offset(topic.id, queue_id)
            for queue_id in range(state.stored_queues(topic))
        ):
            if own == 0:
                return 0
            keep_ms = own
    return keep_ms


def _unconsumed(state: BrokerState) -> str:
    """Returns a sentence about a consumer group that has not consumed messages that were evicted from the nodes; "" if
    there is none. The node does not know the positions of these messages, so no segment may leave the tier."""
    for group in state.groups:
        for topic_id, queue_id, offset in state.offsets_of_group(group):
            topic = state.topics_by_id.get(topic_id)
            if topic is not None and offset < state.min_offset(topic_id, queue_id):
                return f"group {group} has not consumed {topic.name} queue {queue_id} offset {offset}"
    return ""
