"""Metrics of disk space, early answers and reads from followers; names and meanings in docs/metrics.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ModeMetrics:
    """Fed once per look at the disk, per entry or per pull. Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._disk_used = gauge("rocketmq_disk_ratio", "Share of the data directory's file system that is used, 0 to 1")
        self._disk_refusing = gauge("raftmq_disk_refusing", "1 while sends are refused because the disk is full")
        self._log_waits = gauge("raftmq_log_waits_for_space", "1 while the log cannot be written for lack of space")

        self._full_in = gauge(
            "raftmq_disk_full_in_seconds",
            "Time until sends will be refused at the growth rate of the last hour; +Inf if that is not expected",
        )
        self._full_in.set(float("inf"))
        self._slow_appends = counter("raftmq_slow_appends", "Appends that took longer than log.slow_append_ms")

        self._early = counter("raftmq_early_answers", "Messages acknowledged before they were committed")
        self._window = gauge("raftmq_loss_window_messages", "Messages acknowledged and not yet committed")
        self._lost = counter("raftmq_early_lost_messages", "Messages acknowledged early whose entry was replaced")

    def answered_early(self, messages: int, window: int) -> None:
        """An answer was sent before the commit; `window`: all messages answered early and undecided."""
        self._early.inc(messages)
        self._window.set(window)

    def window(self, messages: int) -> None:
        """Sets the acknowledged messages that may be lost now."""
        self._window.set(messages)

    def lost_early(self, messages: int) -> None:
        """Early answers whose entry was replaced."""
        self._lost.inc(messages)

    def disk(self, used: float, *, refusing: bool, parked: bool) -> None:
        """Sets the figures of the disk as the last look found them."""
        self._disk_used.set(used)
        self._disk_refusing.set(refusing)
        self._log_waits.set(parked)

    def outlook(self, full_in_ms: int | None) -> None:
        """Sets when the disk will be full, by the last look; None: it does not fill up."""
        self._full_in.set(float("inf") if full_in_ms is None else full_in_ms / 1000)

    def slow_append(self) -> None:
        """Write and fdatasync took longer than the bound."""
        self._slow_appends.inc()
