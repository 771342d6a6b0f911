"""RocketMQ's counter of dead letters: what was stored in the topics of dead letters, by whichever way it came there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from cluster.broker.names import DEAD_LETTER_PREFIX


class DeadLetterMetrics:
    """Derived at a scrape from the messages stored by topic: nothing is counted for it."""

    def __init__(self, registry: CollectorRegistry, stored: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """`stored`: (topic, messages acknowledged since the start)."""
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
