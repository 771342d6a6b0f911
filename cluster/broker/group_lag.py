"""How far consumer groups are behind: one way of counting for HTTP, the command line and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from cluster.broker.old_pulls import first_offset

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState
    from statemachine.groups import GroupConfig

SERIES_MAX: Final = 1000
"""Pairs of group and topic that the metrics name: Prometheus keeps every name for weeks."""
QUEUES_MAX: Final = 10_000
"""Queues that one scrape looks at, some 20 ms of the event loop."""


class QueueLag(NamedTuple):
    """A group in one queue."""

    topic: str
    queue_id: int
    committed: int | None
    """None if the group never committed here."""
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        """Messages that are kept and not committed: from the committed offset on, or all of them if there is none,
        whatever the group's consumers would begin with. 0 if the offset was set beyond the end."""
        return max(0, self.max_offset - max(self.min_offset, self.committed or 0))


def queue_lags(state: BrokerState, group: GroupConfig) -> list[QueueLag]:
    """Every queue that the group committed or subscribes to, by topic and queue; none of topics deleted meanwhile."""
    committed = {(topic_id, queue): offset for topic_id, queue, offset in state.offsets_of_group(group.name)}
    queues = dict.fromkeys(committed)
    for name in group.subscriptions:
        if config := state.topics.get(name):
            queues.update(dict.fromkeys((config.id, queue) for queue in range(config.read_queues)))
    lags = []
    for topic_id, queue in queues:
        topic = state.topics_by_id.get(topic_id)
        if topic is None:  # deleted by the apply lane since `committed` was read
            continue
        end = state.max_offset(topic_id, queue)  # before the first one: retention may move that past it
        first = min(first_offset(state, topic_id, queue), end)
        lags.append(QueueLag(topic.name, queue, committed.get((topic_id, queue)), first, end))
    return sorted(lags)


class LagMetrics:
    """The lag of groups, counted when somebody asks for the figures of the node that leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._by_topic = Gauge(
            "rocketmq_consumer_lag_messages",
            "Available messages that the group has not committed",
            ["consumer_group", "topic"],
            registry=registry,
        )
        self._by_group = Gauge(
            "raftmq_group_lag_messages",
            "Lag of the group over all its topics, in messages",
            ["group"],
            registry=registry,
        )
        self._left_out = Gauge(
            "raftmq_group_lag_left_out",
            "Groups left out of the lag metrics because there are too many",
            registry=registry,
        )

    def update(self, state: BrokerState, *, leads: bool) -> None:
        """Groups by name, up to SERIES_MAX pairs and QUEUES_MAX queues; none unless this node leads."""
        counted: dict[tuple[str, str], int] = {}
        groups = sorted(state.groups.items()) if leads else []
        queues = left = 0
        for at, (name, config) in enumerate(groups):
            lags = queue_lags(state, config)
            topics = {each.topic for each in lags}
            queues += len(lags)
            if len(counted) + len(topics) > SERIES_MAX or queues > QUEUES_MAX:
                left = len(groups) - at
                break
            for each in lags:
                counted[name, each.topic] = counted.get((name, each.topic), 0) + each.lag
        self.show(counted, left)

    def show(self, lags: Mapping[tuple[str, str], int], left_out: int = 0) -> None:
        """(group, topic) -> messages."""
        self._by_topic.clear()
        self._by_group.clear()
        for (group, topic), lag in lags.items():
            self._by_topic.labels(group, topic).set(lag)
            self._by_group.labels(group).inc(lag)
        self._left_out.set(left_out)
