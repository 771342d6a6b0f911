"""Metrics of a broker under RocketMQ 5's names: dead letters, deliveries and connections.

docs/metrics.md has the table of RocketMQ's names: the ones that exist here, and what replaces the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.broker.name_rules import DEAD_LETTER_PREFIX
from cluster.runtime.figures.counters import TopicTallies
from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.runtime.turns.work import Turns
    from statemachine.broker_state import BrokerState


class DeadLetterMetrics(ServiceMetrics):
    """Yields RocketMQ's counter of dead letters: all messages stored in dead-letter topics, whoever stored them. It is
    computed at a scrape from the number of messages stored per topic, so dead letters are not counted separately.
    """

    def __init__(self, stored: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """`stored` returns (topic, messages acknowledged since the start) for each topic."""
        super().__init__()
        self._stored = stored

    def collect(self) -> Iterator[Metric]:
        """Yields the counter for the exporter."""
        family = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages", "Dead letters stored", labels=("consumer_group", "topic")
        )
        for topic, messages in self._stored():
            if topic.startswith(DEAD_LETTER_PREFIX):
                family.add_metric((topic.removeprefix(DEAD_LETTER_PREFIX), topic), messages)
        yield family


class DeliveryMetrics(ServiceMetrics):
    """Counts pulls, and the messages that they returned. Updated once per pull. Event loop only."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__()
        self._state = state
        self.messages_given = self.bytes_given = 0
        """The number of delivered messages, and their bytes, of all topics including deleted ones."""
        self._pulls = self.tallies("raftmq_pulls", "Pulls answered", "outcome")
        self._given = TopicTallies(
            self.tallies("rocketmq_messages_out", "Messages delivered to consumers", "topic"),
            self.tallies("rocketmq_throughput_out", "Bytes of messages delivered to consumers", "topic"),
        )

    def pulled(self, outcome: str) -> None:
        """Counts an answered pull by its outcome: "found" (also if all messages that were looked at did not match),
        "empty" (no message came), "moved" or "refused"."""
        counts = self._pulls.values
        counts[outcome] = counts.get(outcome, 0) + 1

    def messages_out(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts the messages that a pull returned."""
        self.messages_given += messages
        self.bytes_given += size_bytes
        self._given.add(topic, messages, size_bytes)

    def look(self) -> None:
        """Removes the series of deleted topics. Called at a scrape, because any node may have been asked to delete a
        topic."""
        self._given.forget_all_but(self._state.topics)


SERIES_MAX: Final = 1000
"""The most series of the metric of consumers' connections that name a group. If there would be more, the largest are
shown, and one further series with empty labels counts the remaining connections."""
CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}

Producers = Mapping[tuple[str, str], int]
"""(language, version) -> number of connections."""
Consumers = Mapping[tuple[str, str, str, str], int]
"""(consumer_group, language, version, consume_mode) -> number of connections."""


class ConnectionMetrics(ServiceMetrics):
    """Yields the metrics of connected clients. A scrape shows the last finished count, and begins the next one."""

    def __init__(self, counts: ConnectionCounts) -> None:
        super().__init__()
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
        counted = self._counts.count()
        producers = GaugeMetricFamily(
            "rocketmq_producer_connections", "Connected producers, by heartbeat", labels=("language", "version")
        )
        for labels, count in counted.producers.items():
            producers.add_metric(labels, count)
        yield producers
        consumers = GaugeMetricFamily(
            "rocketmq_consumer_connections",
            "Connected consumers, by heartbeat",
            labels=("consumer_group", "language", "version", "consume_mode"),
        )
        for row, count in counted.consumers.items():
            consumers.add_metric(row, count)
        yield consumers


class ConnectionCounts:
    """Counts the connected clients in steps, at each scrape. The figures are those of the last finished count. With few
    clients a count finishes at once. Event loop only."""

    def __init__(self, members: Members, turns: Turns) -> None:
        self._members = members
        self._turns = turns
        self._counting = False
        self.producers: Producers = {}
        self.consumers: Consumers = {}

    def count(self) -> ConnectionCounts:
        """Begins a count unless one is in progress. Returns this object, with the figures of the last finished
        count."""
        if not self._counting:
            self._counting = True
            self._turns.begin(self, self._count())
        return self

    def _count(self) -> Generator[None]:
        self.producers = yield from producers_of(self._members)
        self.consumers = yield from consumers_of(self._members)
        self._counting = False


def producers_of(members: Members) -> Generator[None, None, Producers]:
    """Returns the number of producers' connections for each language and version, counted in steps. A connection counts
    once, however many groups it produces in."""
    counted = Counter[tuple[str, str]]()
    known: set[object] = set()
    for group in members.producers.values():
        for member in group.values():
            charge(ITEM_UNITS)
            if member.connection not in known:
                known.add(member.connection)
                counted[member.language, str(member.version)] += 1
            yield
    return counted


def consumers_of(members: Members, series_max: int = SERIES_MAX) -> Generator[None, None, Consumers]:
    """Counts the consumers' connections in steps. Returns the `series_max` largest entries, and one more with empty
    labels for the remaining connections, if there are any."""
    counted = Counter[tuple[str, str, str, str]]()
    for name, group in members.consumers.items():
        mode = CONSUME_MODES.get(group.consume_type, group.consume_type)
        for member in group.members.values():
            charge(ITEM_UNITS)
            counted[name, member.language, str(member.version), mode] += 1
            yield
    shown = dict(counted.most_common(series_max))
    if left := counted.total() - sum(shown.values()):
        shown["", "", "", ""] = left
    return shown
