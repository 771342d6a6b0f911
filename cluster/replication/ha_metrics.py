"""Replication under names that dashboards of RocketMQ's HA service use, in bytes, exactly as they are spelt there.

A collector of its own: prometheus_client would add `_total` to the names of counters. Counted by the event loop, read
when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

TRANSFER = "rocketmq_ha_transfer_byte_total"
SLAVE_OFFSET = "rocketmq_ha_slave_max_offset"
MASTER_OFFSET = "rocketmq_ha_master_max_offset"
CONNECTIONS = "rocketmq_ha_connection_count"
SEND_TIMEOUTS = "ha_send_timeout_count"
PEER_LAG = "raftmq_peer_lag_bytes"
PEER_LAG_TEXT = "Bytes by which the peer's disk is behind the leader's log"
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


class HaMetrics:
    """Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent_bytes = self._received_bytes = self._send_timeouts = 0
        self._storage: tuple[int, int, int] = (0, 0, 0)
        self._master_offset = 0
        self._slaves: dict[str, int] = {}
        self._connections = 0
        registry.register(self)

    def received(self, size_bytes: int) -> None:
        """Entries of a leader are durable here."""
        self._received_bytes += size_bytes

    def timed_out(self, sends: int) -> None:
        """They were not decided at their deadline."""
        self._send_timeouts += sends

    def show(
        self,
        *,
        end_position: int,
        slaves: Mapping[int, int],
        connections: int,
        sent_bytes: int,
        storage: tuple[int, int, int],
    ) -> None:
        """Shows where this node's log ends, and where the followers' copies do if it leads; `sent_bytes`: of entries,
        since the start; `storage`: the values of STORAGE. All in bytes."""
        self._sent_bytes = sent_bytes
        self._storage = storage
        self._master_offset = end_position
        self._slaves = {str(node): offset for node, offset in slaves.items()}
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for the registry."""
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
        yield GaugeMetricFamily(MASTER_OFFSET, "Position in bytes at which this node's log ends", self._master_offset)
        yield GaugeMetricFamily(CONNECTIONS, "Other members that are connected", self._connections)
        text = "Sends that were undecided at their deadline; counts since the start"
        timeouts = Metric(SEND_TIMEOUTS, text, "unknown")  # of type counter its name would get `_total`
        timeouts.add_sample(SEND_TIMEOUTS, {}, self._send_timeouts)
        yield timeouts
        for name, what, value in zip(STORAGE, STORAGE_TEXTS, self._storage, strict=True):
            yield GaugeMetricFamily(name, what, value)
