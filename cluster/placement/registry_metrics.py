"""Exports the metrics of the registry: what its processes report to this node. They are computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.runtime.figures.service_metrics import ServiceMetrics

if TYPE_CHECKING:
    from cluster.placement.registry_state import RegistryProcess


class RegistryMetrics(ServiceMetrics):
    """Yields one series for each process that `cluster.registry` names; none without a registry. Event loop only."""

    def __init__(self, read: Callable[[], list[RegistryProcess]]) -> None:
        super().__init__()
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics. A process that is not reached has a series in the first metric only."""

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=("process",))

        def counter(name: str, text: str) -> CounterMetricFamily:
            return CounterMetricFamily(name, text, labels=("process",))

        reached = gauge(
            "raftmq_registry_reached",
            "1 if this node is connected to the process of the registry; the others are there only then",
        )
        ready = gauge("raftmq_registry_ready", "1 if the process answers clients with all groups that were named")
        living = gauge("raftmq_registry_members_living", "Nodes of all groups that are connected to the process")
        leads = gauge("raftmq_registry_leader", "1 if the process leads the registry, as it says itself")
        entries = gauge("raftmq_registry_journal_operations", "Operations in the journal of the process")
        age = gauge("raftmq_registry_accepted_age_seconds", "Time since the process had an operation accepted")
        operations = counter("raftmq_registry_operations", "Operations that were accepted since the process started")
        restarts = counter("raftmq_registry_child_restarts", "Times that the process has started its child again")
        for process in self._read():
            labels, state = (str(process.id),), process.state
            reached.add_metric(labels, process.reached)
            if state is None:
                continue
            ready.add_metric(labels, state.ready and not state.missing)
            living.add_metric(labels, state.living)
            leads.add_metric(labels, state.leader == process.id)
            entries.add_metric(labels, state.entries)
            operations.add_metric(labels, state.operations)
            restarts.add_metric(labels, max(0, state.child_starts - 1))
            if state.accepted_ms >= 0:
                age.add_metric(labels, state.accepted_ms / 1000)
        yield from (reached, ready, living, leads, entries, age, operations, restarts)
