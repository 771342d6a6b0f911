"""Chooses the messages that are removed from topics above their quota, if these topics have `backlog.policy` = evict.

The oldest messages of a topic go, in whichever queue they are. The size of a topic is estimated from some of its rows,
like the size that operators see. The number of messages above the quota is therefore an estimate too, which the next
run corrects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.topic_sizes import TOPIC_BLOCKS_MAX, QueueSpan, measure, queue_spans
from cluster.flow.quota_limits import BACKLOG_BYTES
from cluster.flow.quota_rules import QuotaRules
from cluster.retention.policy import PAGE_TOPICS, STEP_OFFSETS, names_from

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.topics.topics import TopicConfig
    from statemachine.trim import QueueMin

MEASURED_MAX: Final = 64
"""The most topics that one look measures."""
TIME_PARTS: Final = 4_096
"""The search for the oldest messages stops when it has narrowed the time down to 1/TIME_PARTS of the topic's time span,
because each step of the search reads some rows of each queue. Messages stored within the remaining span may go in any
order.
"""


class Grown(NamedTuple):
    """The result of one run of the search for topics above their quota."""

    queues: list[QueueMin]
    at: str
    """The topic at which the next look begins; "" for the first one."""


def grown(
    state: BrokerState, at: str = "", *, measured_max: int = MEASURED_MAX, page_topics: int = PAGE_TOPICS
) -> Grown:
    """Returns the queues of topics that keep too much, each with its new first offset. Begins at the topic `at`, and
    measures at most `measured_max` topics. Any thread."""
    if BACKLOG_BYTES not in state.quotas.limited:
        return Grown([], "")
    rules = QuotaRules(state.quotas, state.access)
    found: list[QueueMin] = []
    measured = 0
    for name in names_from(state, at, page_topics):
        topic = state.topics.get(name)
        rule = rules.of_topic(BACKLOG_BYTES, name) if topic is not None and topic.evicts_backlog else None
        if topic is None or rule is None:
            continue
        if measured == measured_max:
            return Grown(found, name)
        measured += 1
        size = measure(state, [topic], TOPIC_BLOCKS_MAX).get(topic.id)
        if size is not None and size.bytes > rule.value:
            found += _oldest(state, topic, 1 - rule.value / size.bytes)
    return Grown(found, "")


def _oldest(state: BrokerState, topic: TopicConfig, share: float) -> list[QueueMin]:
    """Returns (topic id, queue id, new first offset) for each queue that loses messages, if `share` (0 to 1) of the
    topic's messages go, the oldest first. A queue loses at most STEP_OFFSETS messages."""
    spans = list(queue_spans(state, topic))
    wanted = max(1, int(share * sum(span.messages for span in spans) + 0.999))

    def before(span: QueueSpan, time_ms: int) -> int:
        return min(max(state.offset_by_time(topic.id, span.queue_id, time_ms, False), span.first), span.end)

    # All messages stored before `low` go. Of the messages stored from `low` on and before `high`, only some go.
    low, high = _first_ms(state, topic, spans), _last_ms(state, topic, spans) + 1
    if sum(span.messages for span in spans) <= wanted:
        low = high
    enough = (high - low) // TIME_PARTS
    while high - low > max(1, enough):
        middle = (low + high) // 2
        if sum(before(span, middle) - span.first for span in spans) <= wanted:
            low = middle
        else:
            high = middle
    firsts = {span: before(span, low) for span in spans}
    left = wanted - sum(firsts[span] - span.first for span in spans)
    for span in spans:  # Messages stored between `low` and `high` go until `wanted` is reached.
        more = min(left, before(span, high) - firsts[span])
        firsts[span] += more
        left -= more
    return [
        (topic.id, span.queue_id, min(first, span.first + STEP_OFFSETS))
        for span, first in firsts.items()
        if first > span.first
    ]


def _first_ms(state: BrokerState, topic: TopicConfig, spans: Iterable[QueueSpan]) -> int:
    first = (state.fetch(topic.id, span.queue_id, span.first, 1) for span in spans)
    return min((items[0].store_time_ms for items in first if items), default=0)


def _last_ms(state: BrokerState, topic: TopicConfig, spans: Iterable[QueueSpan]) -> int:
    last = (state.fetch(topic.id, span.queue_id, span.end - 1, 1) for span in spans)
    return max((items[0].store_time_ms for items in last if items), default=0)


def together(one: list[QueueMin], other: list[QueueMin]) -> list[QueueMin]:
    """Returns the queues of both lists, each once. A queue that is in both gets the higher of its two first offsets."""
    if not other:
        return one
    highest: dict[tuple[int, int], int] = {}
    for topic_id, queue_id, first in (*one, *other):
        key = topic_id, queue_id
        highest[key] = max(first, highest.get(key, first))
    return [(*key, first) for key, first in highest.items()]
