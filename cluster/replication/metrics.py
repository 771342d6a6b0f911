"""Counts and exports the metrics of replication: those of RocketMQ's HA service by its names, writes to the log,
applied entries and early answers. docs/metrics.md has names and meanings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from cluster.runtime.figures.counters import buckets
from cluster.runtime.figures.service_metrics import ServiceMetrics

TRANSFER = "rocketmq_ha_transfer_byte_total"
SLAVE_OFFSET = "rocketmq_ha_slave_max_offset"
MASTER_OFFSET = "rocketmq_ha_master_max_offset"
CONNECTIONS = "rocketmq_ha_connection_count"
SEND_TIMEOUTS = "ha_send_timeout_count"
PEER_LAG = "raftmq_peer_lag_bytes"
PEER_LAG_TEXT = "Bytes by which the peer's disk is behind the leader's log"
PEER_DELAYS = (
    ("raftmq_peer_lag_seconds", "Age of the oldest entry of the leader's log that is not on the peer's disk"),
    ("raftmq_peer_sync_seconds", "Mean time of a sync of the peer's log in the last 10 s, as the peer reports it"),
    (
        "raftmq_peer_snapshot_in_seconds",
        "Time until the leader may delete what the peer lacks, at the rate of the last minute; +Inf if not expected",
    ),
)


class PeerDelays(NamedTuple):
    """The values of PEER_DELAYS for one peer, in seconds; None if unknown."""

    lag_s: float
    sync_s: float | None
    snapshot_in_s: float


STORAGE = (
    "rocketmq_storage_size",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_dispatch_behind_bytes",
)
STORAGE_TEXTS = (
    "Bytes of log that are kept",
    "Bytes at the end of the log that are not durable on this node",
    "Bytes at the end of the log whose rows are not applied yet",
)


class HaMetrics(ServiceMetrics):
    """Metrics of replication. Those of RocketMQ's HA service have exactly the names that its dashboards use, although
    prometheus_client would add `_total` to the names of counters."""

    def __init__(self, read: Callable[[HaMetrics], object]) -> None:
        """`read` is called before each scrape, and must call `show` with the present values."""
        super().__init__()
        self._read = read
        self._sent_bytes = self._received_bytes = self._send_timeouts = 0
        self._storage: tuple[int, int, int] = (0, 0, 0)
        self._master_offset = 0
        self._slaves: dict[str, int] = {}
        self._delays: dict[str, PeerDelays] = {}
        self._connections = 0

    def look(self) -> None:
        """Updates the values by calling `read`."""
        self._read(self)

    def received(self, size_bytes: int) -> None:
        """Counts bytes of a leader's entries that have become durable on this node."""
        self._received_bytes += size_bytes

    def timed_out(self, sends: int) -> None:
        """Counts sends that were not decided at their deadline."""
        self._send_timeouts += sends

    def show(
        self,
        *,
        end_position: int,
        slaves: Mapping[int, int],
        delays: Mapping[int, PeerDelays],
        connections: int,
        sent_bytes: int,
        storage: tuple[int, int, int],
    ) -> None:
        """Sets the present values. `end_position`: the position at which this node's log ends. `slaves`: follower ->
        the position up to which it has the log on disk; `delays`: follower -> the values of PEER_DELAYS; both are empty
        unless this node leads. `connections`: the number of connected members. `sent_bytes`: bytes of entries sent
        since the start. `storage`: the values of STORAGE, in bytes."""
        self._sent_bytes = sent_bytes
        self._storage = storage
        self._master_offset = end_position
        self._slaves = {str(node): offset for node, offset in slaves.items()}
        self._delays = {str(node): values for node, values in delays.items()}
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
        transfer = CounterMetricFamily(
            TRANSFER, "Bytes of the log sent to followers (master) or received from leaders (slave)", labels=["role"]
        )
        transfer.add_metric(["master"], self._sent_bytes)
        transfer.add_metric(["slave"], self._received_bytes)
        yield transfer
        slaves = GaugeMetricFamily(
            SLAVE_OFFSET, "Position in bytes up to which a follower has the leader's log on disk", labels=["slaveId"]
        )
        for node, offset in self._slaves.items():
            slaves.add_metric([node], offset)
        yield slaves
        behind = GaugeMetricFamily(PEER_LAG, PEER_LAG_TEXT, labels=["peer"])
        for node, offset in self._slaves.items():
            behind.add_metric([node], max(0, self._master_offset - offset))
        yield behind
        for place, (name, what) in enumerate(PEER_DELAYS):
            family = GaugeMetricFamily(name, what, labels=["peer"])
            for node, told in self._delays.items():
                value = (told.lag_s, told.sync_s, told.snapshot_in_s)[place]
                if value is not None:
                    family.add_metric([node], value)
            yield family
        yield GaugeMetricFamily(MASTER_OFFSET, "Position in bytes at which this node's log ends", self._master_offset)
        yield GaugeMetricFamily(CONNECTIONS, "Other members that are connected", self._connections)
        text = "Sends that were undecided at their deadline; counts since the start"
        # A gauge, because prometheus_client would add `_total` to the name of a counter.
        timeouts = Metric(SEND_TIMEOUTS, text, "unknown")
        timeouts.add_sample(SEND_TIMEOUTS, {}, self._send_timeouts)
        yield timeouts
        for name, what, value in zip(STORAGE, STORAGE_TEXTS, self._storage, strict=True):
            yield GaugeMetricFamily(name, what, value)


SYNC_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Bucket bounds in seconds of a disk write or an apply: from a fast NVMe flush to a failing disk."""
WHOLE = "raftmq_append_seconds", "Duration of one write to the log, fdatasync included"
SYNC = "raftmq_fdatasync_seconds", "Duration of fdatasync alone, of one write to the log"
BYTES = "raftmq_append_bytes", "Bytes made durable in the log"


class AppendMetrics(ServiceMetrics):
    """Metrics of writes to the log: how many bytes, how long, and how much of that was fdatasync. Called once per
    write. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = (*SYNC_BUCKETS, inf)
        self._whole, self._sync = [0] * len(self.bounds), [0] * len(self.bounds)
        self._whole_s = self._sync_s = 0.0
        self._bytes = 0
        self._inline = self.tally("raftmq_appends_inline", "Writes to the log done on the event loop")
        self._stalls = self.tally(
            "raftmq_append_stalls", "Writes to the log that held the event loop for more than 1 ms"
        )

    def inline(self, stalled: bool) -> None:
        """Counts a drain of the append lane that ran on the event loop. `stalled`: True if it took so long that the
        lane's thread gets the next ones."""
        self._inline.inc()
        if stalled:
            self._stalls.inc()

    def written(self, size_bytes: int, seconds: float, sync_seconds: float) -> None:
        """Counts one write to the log."""
        self._bytes += size_bytes
        self._whole[bisect_left(self.bounds, seconds)] += 1
        self._whole_s += seconds
        self._sync[bisect_left(self.bounds, sync_seconds)] += 1
        self._sync_s += sync_seconds

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of writes in each bucket by their time, fdatasync included."""
        return tuple(self._whole)

    def syncs(self) -> tuple[int, float]:
        """Returns the number of writes since the start, and the seconds of fdatasync in them."""
        return sum(self._sync), self._sync_s

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the exporter."""
        for (name, text), counts, total_s in (WHOLE, self._whole, self._whole_s), (SYNC, self._sync, self._sync_s):
            family = HistogramMetricFamily(name, text)
            family.add_metric([], buckets(self.bounds, counts), total_s)
            yield family
        yield CounterMetricFamily(*BYTES, self._bytes)
        yield from super().collect()


class ApplyMetrics(ServiceMetrics):
    """Metrics of applied entries, counted once per drain of the apply lane. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = self.spread("raftmq_apply_seconds", "Duration of applying one run of entries", SYNC_BUCKETS)
        self._entries = self.tally("raftmq_apply_entries", "Entries applied")

    def applied(self, entries: int, seconds: float) -> None:
        """Counts one drain of the apply lane."""
        self._seconds.observe(seconds)
        self._entries.inc(entries)


class ModeMetrics(ServiceMetrics):
    """Metrics of early answers, updated once per entry. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self._early = counter("raftmq_early_answers", "Messages acknowledged before they were committed")
        self.window = gauge("raftmq_loss_window_messages", "Messages acknowledged and not yet committed")
        self.degraded = gauge("raftmq_degraded", "1 while sends are acknowledged early because the majority is slow")
        self.lost_early = counter("raftmq_early_lost_messages", "Messages acknowledged early whose entry was replaced")

    def answered_early(self, messages: int, window: int) -> None:
        """Counts messages that were answered before the commit. `window`: the number of all messages answered early and
        undecided."""
        self._early.inc(messages)
        self.window.set(window)
