"""Figures about staged writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

if TYPE_CHECKING:
    from statemachine.staged_writes import StagedWrites


class StagedMetrics:
    """Gauges, fed before a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._messages = Gauge(
            "raftmq_staged_messages", "Messages staged for a write, not copied yet", registry=registry
        )
        self._bytes = Gauge("raftmq_staged_bytes", "Stored bytes of staged messages", registry=registry)

    def update(self, writes: StagedWrites) -> None:
        """The gauges, as the state is now."""
        self._messages.set(writes.left)
        self._bytes.set(writes.left_bytes)
