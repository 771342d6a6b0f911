"""Metrics of retention and of the disk (docs/metrics.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from cluster.runtime.figures.service_metrics import ServiceMetrics

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

IO_TICKS: Final = 9
"""Number of the field in /sys/dev/block/*/stat that counts the milliseconds in which the device had requests."""


class RetentionMetrics(ServiceMetrics):
    """The metrics of retention, updated when something happens and at each run."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__()
        self._state = state
        gauge, counter = self.gauge, self.counter
        self.trimmed = counter("raftmq_trims", "TRIM entries applied, by reason", ["reason"])
        self._position = gauge("raftmq_trim_position", "Position at which the log begins, in bytes")
        self._bytes = gauge("raftmq_log_bytes", "Size of this node's log in bytes")
        self._left = gauge("raftmq_trimmed_files_left", "Segment files below the TRIM that this node still has")
        self._left_bytes = gauge(
            "raftmq_trimmed_bytes_left", "Bytes of the segment files below the TRIM that this node still has"
        )
        self.removed = counter("raftmq_segments_removed", "Segment files removed by retention")
        self._removals = gauge(
            "raftmq_removals_pending",
            "Deletions of topics, groups, sessions and attempts whose rows are not all gone yet",
        )
        self.unread = counter(
            "raftmq_trimmed_unconsumed", "Trimmed messages that some consumer group had not consumed (leader)"
        )

        self._pinned_position = gauge(
            "raftmq_pinned_position",
            "Position of the lowest message that waits for its time or its transaction; the log's end if none does",
        )
        self._pinned_age = gauge(
            "raftmq_pinned_age_seconds",
            "How long ago in log time the lowest message that waits was stored; 0 if none waits",
        )
        self._held = gauge(
            "raftmq_pinned_log_bytes", "Bytes of log that retention would remove if no message waited in them (leader)"
        )
        self._carried = counter("raftmq_carried_messages", "Messages that wait stored again further on (leader)")
        self._carried_bytes = counter("raftmq_carried_bytes", "Stored bytes of these messages")

    def look(self) -> None:
        """Updates the metric of deletions in progress."""
        self._removals.set(self._state.removing)

    def pinned(self, position: int, age_ms: int, held_bytes: int) -> None:
        """Sets the metrics of the lowest waiting message, as found by the last run: its position, its age, and the
        bytes of log that waiting messages hold."""
        self._pinned_position.set(position)
        self._pinned_age.set(age_ms / 1000)
        self._held.set(held_bytes)

    def carried(self, messages: int, size_bytes: int) -> None:
        """Counts waiting messages that were appended again further on in the log."""
        self._carried.inc(messages)
        self._carried_bytes.inc(size_bytes)

    def log(self, position: int, size_bytes: int, files_left: int, bytes_left: int) -> None:
        """Sets the metrics of the log: the position at which it begins, its size, and the files below the TRIM that are
        left, with their bytes."""
        self._position.set(position)
        self._bytes.set(size_bytes)
        self._left.set(files_left)
        self._left_bytes.set(bytes_left)


class DiskMetrics(ServiceMetrics):
    """The metrics of the data directory's disk, set at each check of it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._used = self.gauge("rocketmq_disk_ratio", "Share of the data directory's file system that is used, 0 to 1")
        self._refusing = self.gauge("raftmq_disk_refusing", "1 while sends are refused because the disk is full")
        self._log_waits = self.gauge(
            "raftmq_log_waits_for_space", "1 while the log cannot be written for lack of space"
        )
        self._full_in = self.gauge(
            "raftmq_disk_full_in_seconds",
            "Time until sends will be refused at the growth rate of the last hour; +Inf if that is not expected",
        )
        self._full_in.set(float("inf"))
        self.slow_append = self.counter("raftmq_slow_appends", "Appends that took longer than log.slow_append_ms")

    def disk(self, used: float, *, refusing: bool, parked: bool) -> None:
        """Sets the figures of the disk to those of the last check. `used` is a share, 0 to 1."""
        self._used.set(used)
        self._refusing.set(refusing)
        self._log_waits.set(parked)

    def outlook(self, full_in_ms: int | None) -> None:
        """Sets the time until sends will be refused, as estimated by the last check; None: no such time is expected."""
        self._full_in.set(float("inf") if full_in_ms is None else full_in_ms / 1000)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
        yield from super().collect()
        busy_s = disk_busy_s(self._directory)
        if busy_s is not None:
            text = "Time in which the block device of the data directory had requests"
            yield CounterMetricFamily("raftmq_disk_busy_seconds", text, busy_s)


def disk_busy_s(path: Path) -> float | None:
    """Returns the seconds in which the device that holds `path` was busy; None where the kernel does not tell, as for a
    file system without a device."""
    try:
        device = path.stat().st_dev
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
        return int(stat.split()[IO_TICKS]) / 1000
    except (OSError, IndexError, ValueError):
        return None
