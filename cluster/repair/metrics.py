"""Metrics of damage and repair, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from raftlog.types import NodeId


class RepairMetrics:
    """Fed once per range."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._damaged = Gauge(
            "raftmq_log_damaged_bytes", "Damaged bytes of the log that wait for repair", registry=registry
        )
        self._repaired_bytes = Counter(
            "raftmq_log_repaired_bytes",
            "Bytes of the log repaired with a peer's copy",
            registry=registry,
        )
        self._repairs = Counter("raftmq_log_repairs", "Damaged ranges of the log repaired", registry=registry)
        self._failures = Counter(
            "raftmq_log_repair_failures", "Damaged ranges that a peer could not supply", ["peer"], registry=registry
        )

        self._scrub_seconds = Gauge("raftmq_scrub_seconds", "Duration of the last scrub", registry=registry)
        self._scrub_findings = Gauge("raftmq_scrub_findings", "Number of findings of the last scrub", registry=registry)
        self._scrub_share = Gauge(
            "raftmq_scrub_percent_per_day", "Share of this node's log that scrubs read per day", registry=registry
        )

    def scrubbed(self, findings: int, seconds: float, percent_per_day: float) -> None:
        """A scrub ended."""
        self._scrub_findings.set(findings)
        self._scrub_seconds.set(seconds)
        self._scrub_share.set(percent_per_day)

    def damaged(self, size_bytes: int) -> None:
        """How much is damaged now."""
        self._damaged.set(size_bytes)

    def repaired(self, size_bytes: int) -> None:
        """One range is whole again."""
        self._repairs.inc()
        self._repaired_bytes.inc(size_bytes)

    def failed(self, peer: NodeId) -> None:
        """A peer did not have a range, or something else in its place."""
        self._failures.labels(str(peer)).inc()
