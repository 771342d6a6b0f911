"""Computes the lag of consumer groups, in the same way for the remoting protocol, the HTTP API, the command line and
the metrics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.request_limits import ANSWER_QUEUES_MAX
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.consuming.groups import GroupConfig
    from statemachine.topics.topics import TopicConfig

SERIES_MAX: Final = 1000
"""The most pairs of group and topic that the metrics show. There is a limit because Prometheus keeps every name for
weeks."""
LATENCY_QUEUES_MAX: Final = 500
"""The most queues of which a scrape reads a row: this takes some 10 ms of the event loop."""
ROWS_PER_STEP: Final = 16
"""The number of rows that are read in one step."""
QUEUES_PER_STEP: Final = 64
"""The number of queues whose bounds or offsets are looked up in one step."""


QUEUE_UNITS: Final = 3 * ITEM_UNITS
"""The units of work (`raftlog.work`) of computing a group's lag in one queue."""


class QueueLag(NamedTuple):
    """The lag of a group in one queue."""

    topic: str
    queue_id: int
    committed: int | None
    """The committed offset; None if the group never committed in this queue."""
    min_offset: int
    max_offset: int
    hidden: bool = False
    """True if consumers do not read this queue, because the number of the topic's read queues was reduced."""

    @property
    def stands_at(self) -> int:
        """The committed offset. It is the queue's first offset if that is higher, or if the group never committed. It
        may lie beyond the queue's end."""
        return max(self.min_offset, self.committed or 0)

    @property
    def lag(self) -> int:
        """The number of kept messages from the committed offset on; 0 if the offset lies beyond the end. If the group
        never committed, it is the number of all kept messages, no matter where its consumers would begin."""
        return max(0, self.max_offset - self.stands_at)

    @property
    def beyond_end(self) -> int:
        """The number of offsets by which the committed offset lies beyond the end of the queue; 0 if it does not. The
        group will miss that many of the next messages."""
        return max(0, (self.committed or 0) - self.max_offset)


def lag_steps(
    state: BrokerState, group: GroupConfig, count_max: int | None = None
) -> Generator[None, None, list[QueueLag]]:
    """Returns the results of `each_lag` as a list, at most `count_max` of them (None: all). Works in steps."""
    lags: list[QueueLag] = []
    for each in islice(each_lag(state, group), count_max):
        if len(lags) % QUEUES_PER_STEP == 0:
            yield
        lags.append(each)
    return lags


def each_lag(state: BrokerState, group: GroupConfig) -> Iterator[QueueLag]:
    """Yields the lag in every queue in which the group committed or to which it subscribes, ordered by topic and queue.
    A hidden queue without a committed offset is left out if it keeps no messages. There may be a million queues, so
    each one is computed when the caller asks for it. Topics that are being deleted are left out."""
    committed = state.offsets_by_topic(group.name)
    charge(ITEM_UNITS * len(committed))
    for name, topic in topics_of(state, group, committed):
        offsets = committed.get(topic.id, {})
        subscribed = state.stored_queues(topic) if name in group.subscriptions else 0
        for queue in chain(range(subscribed), sorted(queue for queue in offsets if queue >= subscribed)):
            charge(QUEUE_UNITS)
            each = queue_lag(state, topic, queue, offsets.get(queue))
            if not each.hidden or each.committed is not None or each.min_offset < each.max_offset:
                yield each


def topics_of(
    state: BrokerState, group: GroupConfig, committed: Mapping[int, Mapping[int, int]]
) -> list[tuple[str, TopicConfig]]:
    """Returns (name, topic), sorted by name, of the topics to which the group subscribes or in which it has committed.
    `committed`: topic id -> queue -> committed offset of the group. Topics that are being deleted are left out."""
    topics = {topic.name: topic for topic_id in committed if (topic := state.topics_by_id.get(topic_id))}
    topics |= {name: topic for name in group.subscriptions if (topic := state.topics.get(name))}
    return sorted(topics.items())


def queue_lag(state: BrokerState, topic: TopicConfig, queue: int, committed: int | None) -> QueueLag:
    """Returns the lag of a group in one queue. `committed` is the committed offset, looked up before the call, or None.
    An offset that is committed later might lie behind the end that is looked up here."""
    return QueueLag(topic.name, queue, committed, *bounds(state, topic.id, queue), hidden=queue >= topic.read_queues)


def bounds(state: BrokerState, topic_id: int, queue_id: int) -> tuple[int, int]:
    """Returns the first offset that the queue keeps, on this node or in the tier, and the offset behind its last
    message."""
    end = state.max_offset(topic_id, queue_id)  # read before the first offset, which retention may move past it
    return min(first_offset(state, topic_id, queue_id), end), end


class LagMetrics(ServiceMetrics):
    """The metrics of the lag of consumer groups. The leader computes them at a scrape."""

    def __init__(
        self,
        state: BrokerState,
        leads: Callable[[], bool],
        wall_ms: Callable[[], int],
        series_max: int = SERIES_MAX,
    ) -> None:
        """`leads` returns True if this node leads. `wall_ms` returns the wall-clock time. `series_max`: the most pairs
        of group and topic that are shown."""
        super().__init__()
        self._series_max = series_max
        self._state, self._leads, self._wall_ms = state, leads, wall_ms
        gauge = self.gauge
        self._by_topic = gauge(
            "rocketmq_consumer_lag_messages",
            "Available messages that the group has not committed",
            ["consumer_group", "topic"],
        )
        self._by_group = gauge(
            "raftmq_group_lag_messages", "Lag of the group over all its topics, in messages", ["group"]
        )
        self._by_queue = gauge(
            "raftmq_group_queue_lag_messages",
            "Lag of the group in one queue, in messages (the queues with the greatest lag)",
            ["group", "topic", "queue"],
        )
        self._latency = gauge(
            "rocketmq_consumer_lag_latency",
            "Milliseconds since the oldest message was stored that the group has not committed; 0 without lag",
            ["consumer_group", "topic"],
        )
        self._left_out = gauge(
            "raftmq_group_lag_left_out", "Groups left out of the lag metrics because there are too many"
        )

    def look_in_steps(self) -> Generator[None, None, None]:
        """Computes the lag of all groups in steps, in the order of their names, up to `series_max` pairs and
        ANSWER_QUEUES_MAX queues. Shows nothing unless this node leads."""
        state, leads, now_ms = self._state, self._leads(), self._wall_ms()
        counted: dict[tuple[str, str], int] = {}
        behind: list[tuple[str, QueueLag]] = []
        queues = left = 0
        for at, (name, config) in enumerate(state.groups.items() if leads else ()):
            yield
            charge(ITEM_UNITS)
            lags = yield from lag_steps(state, config, ANSWER_QUEUES_MAX + 1)
            topics = {each.topic for each in lags}
            queues += len(lags)
            if len(counted) + len(topics) > self._series_max or queues > ANSWER_QUEUES_MAX:
                left = len(state.groups) - at
                break
            for each in lags:
                counted[name, each.topic] = counted.get((name, each.topic), 0) + each.lag
                if each.lag:
                    behind.append((name, each))
        latest = yield from _latest_ms(state, counted, behind, now_ms)
        charge(10 * ITEM_UNITS * len(counted))
        self.show(counted, left, behind, latest)

    def show(
        self,
        lags: Mapping[tuple[str, str], int],
        left_out: int = 0,
        behind: Sequence[tuple[str, QueueLag]] = (),
        latency_ms: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """Updates the metrics. `lags`: (group, topic) -> number of messages. `left_out`: the number of groups that are
        not shown. `behind`: (group, lag in one queue) for the queues with a lag. `latency_ms`: (group, topic) ->
        milliseconds."""
        for gauge in (self._by_topic, self._by_group, self._by_queue, self._latency):
            gauge.clear()
        for (group, topic), lag in lags.items():
            self._by_topic.labels(group, topic).set(lag)
            self._by_group.labels(group).inc(lag)
        for group, each in nlargest(self._series_max, behind, key=lambda row: row[1].lag):
            self._by_queue.labels(group, each.topic, str(each.queue_id)).set(each.lag)
        for (group, topic), age_ms in (latency_ms or {}).items():
            self._latency.labels(group, topic).set(age_ms)
        self._left_out.set(left_out)


def _latest_ms(
    state: BrokerState, pairs: Iterable[tuple[str, str]], behind: list[tuple[str, QueueLag]], now_ms: int
) -> Generator[None, None, dict[tuple[str, str], int]]:
    """Returns (group, topic) -> milliseconds since the store time of the oldest message that the group has not
    committed; 0 if there is no lag. One row is read for each queue with a lag, at most LATENCY_QUEUES_MAX in all. A
    pair with a queue beyond this limit is left out."""
    unseen = {(group, each.topic) for group, each in behind[LATENCY_QUEUES_MAX:]}
    latest = {pair: 0 for pair in pairs if pair not in unseen}
    for at, (group, each) in enumerate(behind[:LATENCY_QUEUES_MAX]):
        if at % ROWS_PER_STEP == 0:
            yield
        pair, topic = (group, each.topic), state.topics.get(each.topic)
        if pair in latest and topic is not None:
            first = state.fetch(topic.id, each.queue_id, each.stands_at, 1)
            latest[pair] = max(latest[pair], now_ms - first[0].store_time_ms if first else 0)
    return latest
