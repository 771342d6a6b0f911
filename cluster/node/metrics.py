"""Collects a node's metrics for Prometheus from its parts.

docs/metrics.md lists their names and meanings, and a test compares the two. A metric that RocketMQ has keeps RocketMQ's
name and meaning.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

from prometheus_client import ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric

from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.types import FIRST_GROUP
from raftlog.work import charge

GROUP_LABEL: Final = "broker_group"
"""Name of the label with the group of brokers. All series of nodes of further groups have it. Those of the first group
do not, so that they continue when the cluster gets a second group. The label `group` means consumer groups."""
SAMPLE_UNITS: Final = 5
"""Units of work (raftlog.work) that are charged for one line of the metrics' text."""


class Exporter:
    """Makes the text of one node's metrics. Event loop only."""

    def __init__(self, metrics: Iterable[ServiceMetrics], group: int = FIRST_GROUP) -> None:
        """`group`: the node's group of brokers."""
        self._constant: Final = {} if group == FIRST_GROUP else {GROUP_LABEL: str(group)}
        # Creation times would double the number of series; process_start_time_seconds says the same.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.metrics: Final = tuple(metrics)
        self._process: Final = ProcessCollector(registry=None)

    def scraped(self, *more: ServiceMetrics) -> Generator[None, None, list[bytes]]:
        """Lets all services update their metrics, and returns the metrics in Prometheus's text format, in parts. Yields
        after each metric. Only one scrape may be in progress. `more` has further metrics, of services of the HTTP
        API."""
        for service in (*self.metrics, *more):
            yield
            yield from service.look_in_steps()
        parts = []
        for metric in self._collect(more):
            yield
            charge(SAMPLE_UNITS * len(metric.samples))
            parts.append(generate_latest(_Alone(self._labelled(metric))))
        return parts

    def _collect(self, more: Iterable[ServiceMetrics]) -> Iterator[Metric]:
        yield from self._process.collect()
        for service in (*self.metrics, *more):
            yield from service.collect()

    def _labelled(self, metric: Metric) -> Metric:
        """Returns the metric with the labels that all series of this node have: none in the first group."""
        if self._constant:
            labelled = Metric(metric.name, metric.documentation, metric.type)
            labelled.samples += [each._replace(labels={**each.labels, **self._constant}) for each in metric.samples]
            return labelled
        return metric


class _Alone:
    """A registry that contains one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
