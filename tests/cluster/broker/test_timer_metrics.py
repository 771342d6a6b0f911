"""Figures about delayed messages: gauges are the state's, counters begin when the process does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.broker.timers.timer_delivery import TimerMetrics
from statemachine.delivery.timers import NEVER, TimerCounts
from tests.support.samples import sample


def test_gauges_and_counters() -> None:
    timers = SimpleNamespace(counts=TimerCounts(3, 300, 10, 1), earliest=4_000)
    state: Any = SimpleNamespace(timers=timers, applied_mark=SimpleNamespace(timestamp_ms=5_500))
    metrics = TimerMetrics(state)
    metrics.look()

    def read(name: str) -> float | None:
        return sample(metrics, f"raftmq_delayed_{name}")

    assert (read("messages"), read("message_bytes"), read("lag_seconds")) == (3, 300, 1.5)
    assert (read("messages_delivered_total"), read("messages_dropped_total")) == (0, 0), "those of before"
    timers.counts, timers.earliest = TimerCounts(0, 0, 12, 2, 3), NEVER
    state.applied_mark.timestamp_ms = 6_000
    metrics.look()
    assert (read("messages"), read("lag_seconds")) == (0, 0)
    assert (read("messages_delivered_total"), read("messages_dropped_total")) == (2, 1)
    assert read("messages_recalled_total") == 3
