"""Figures about messages that are delivered later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from statemachine.timers import TimerCounts, Timers


class TimerMetrics:
    """All of them are read from the state before a scrape, on any node."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge("raftmq_delayed_messages", "Messages that wait until they are due", registry=registry)
        self._bytes = Gauge("raftmq_delayed_message_bytes", "Stored bytes of messages that wait", registry=registry)
        self._lag = Gauge(
            "raftmq_delayed_lag_seconds",
            "How long the earliest message that waits is due, in log time as of the last applied entry",
            registry=registry,
        )
        self._delivered = Counter("raftmq_delayed_messages_delivered", "Delayed messages delivered", registry=registry)
        self._dropped = Counter(
            "raftmq_delayed_messages_dropped", "Delayed messages whose topic or bytes were gone", registry=registry
        )
        self._recalled = Counter("raftmq_delayed_messages_recalled", "Delayed messages recalled", registry=registry)
        self._seen: TimerCounts | None = None

    def update(self, timers: Timers, applied_ms: int) -> None:
        """As the state is now; `applied_ms`: log time of the last applied entry. Counters begin with the first call."""
        counts, seen = timers.counts, self._seen
        self._waiting.set(counts.pending)
        self._bytes.set(counts.pending_bytes)
        self._lag.set(max(0, applied_ms - timers.earliest) / 1000)
        if seen is not None:
            self._delivered.inc(counts.delivered - seen.delivered)
            self._dropped.inc(counts.dropped - seen.dropped)
            self._recalled.inc(counts.recalled - seen.recalled)
        self._seen = counts
