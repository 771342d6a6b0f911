"""Metrics of a broker under RocketMQ 5's names, and the digest. They are read from the node at each scrape.

docs/metrics.md has the table of RocketMQ's names: the ones that exist here, and what replaces the others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.broker.name_rules import DEAD_LETTER_PREFIX
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.runtime.turns.work import Turns


class DeadLetterMetrics:
    """RocketMQ's counter of dead letters: the messages stored in dead-letter topics, in whatever way they got there.

    It is derived at a scrape from the messages stored per topic, so nothing is counted for it.
    """

    def __init__(self, registry: CollectorRegistry, stored: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """`stored` returns (topic, messages acknowledged since the start) for each topic."""
        self._stored = stored
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields the counter for the registry."""
        family = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages", "Dead letters stored", labels=("consumer_group", "topic")
        )
        for topic, messages in self._stored():
            if topic.startswith(DEAD_LETTER_PREFIX):
                family.add_metric((topic.removeprefix(DEAD_LETTER_PREFIX), topic), messages)
        yield family


SERIES_MAX: Final = 1000
"""The most series of the metric of consumers' connections. The last series, without a group, has the sum of the
rest."""
CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
IO_TICKS: Final = 9
"""Number of the field in /sys/dev/block/*/stat that counts the milliseconds in which the device had requests."""

Producers = Mapping[tuple[str, str], int]
"""(language, version) -> connections."""
Consumers = Mapping[tuple[str, str, str, str], int]
"""(consumer_group, language, version, consume_mode) -> connections."""
Counts = TypeVar("Counts")


class BrokerLook(NamedTuple):
    """The figures of a node at one moment."""

    permission: int
    producers: Producers
    consumers: Consumers
    compared_index: int
    uncompared_s: float
    disk_busy_s: float | None


class BrokerMetrics:
    """The metrics of a broker. Event loop only."""

    def __init__(self, registry: CollectorRegistry, look: Callable[[], BrokerLook]) -> None:
        """Shows at each scrape what `look` returns."""
        self._look = look
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the registry."""
        seen = self._look()
        yield GaugeMetricFamily(
            "rocketmq_broker_permission", "RocketMQ's bits: 4 reads, 2 sends that this node would take", seen.permission
        )
        producers = GaugeMetricFamily(
            "rocketmq_producer_connections", "Connected producers, by heartbeat", labels=("language", "version")
        )
        for labels, count in seen.producers.items():
            producers.add_metric(labels, count)
        yield producers
        consumers = GaugeMetricFamily(
            "rocketmq_consumer_connections",
            "Connected consumers, by heartbeat",
            labels=("consumer_group", "language", "version", "consume_mode"),
        )
        for row, count in seen.consumers.items():
            consumers.add_metric(row, count)
        yield consumers
        yield GaugeMetricFamily(
            "raftmq_digest_compared_index",
            "Newest index at which this node's rows were compared with the leader's and equal; -1 before the first",
            seen.compared_index,
        )
        yield GaugeMetricFamily(
            "raftmq_digest_uncompared_seconds",
            "For how long rows have changed here that were not compared; 0 if there are none",
            seen.uncompared_s,
        )
        if seen.disk_busy_s is not None:
            yield CounterMetricFamily(
                "raftmq_disk_busy_seconds",
                "Time in which the block device of the data directory had requests",
                seen.disk_busy_s,
            )


class ConnectionCounts:
    """Counts the connected clients in steps when somebody scrapes. The figures are those of the last finished count;
    with few clients a count finishes at once. Event loop only."""

    def __init__(self, members: Members, turns: Turns) -> None:
        self._members = members
        self._turns = turns
        self._counting = False
        self.producers: Producers = {}
        self.consumers: Consumers = {}

    def count(self) -> ConnectionCounts:
        """Begins a count unless one is under way, and returns this object."""
        if not self._counting:
            self._counting = True
            self._turns.begin(self, self._count())
        return self

    def _count(self) -> Generator[None]:
        self.producers = yield from producers_of(self._members)
        self.consumers = yield from consumers_of(self._members)
        self._counting = False


def producers_of(members: Members) -> Generator[None, None, Producers]:
    """Counts producers' connections. A connection counts once, whatever the number of groups in which it produces."""
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


def consumers_of(members: Members) -> Generator[None, None, Consumers]:
    """Counts consumers' connections, largest first, up to SERIES_MAX series."""
    counted = Counter[tuple[str, str, str, str]]()
    for name, group in members.consumers.items():
        mode = CONSUME_MODES.get(group.consume_type, group.consume_type)
        for member in group.members.values():
            charge(ITEM_UNITS)
            counted[name, member.language, str(member.version), mode] += 1
            yield
    shown = dict(counted.most_common(SERIES_MAX))
    if left := counted.total() - sum(shown.values()):
        shown["", "", "", ""] = left
    return shown


def disk_busy_s(path: Path) -> float | None:
    """Returns the seconds in which the device that holds `path` was busy; None where the kernel does not tell, as for a
    file system without a device."""
    try:
        device = path.stat().st_dev
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
        return int(stat.split()[IO_TICKS]) / 1000
    except (OSError, IndexError, ValueError):
        return None
