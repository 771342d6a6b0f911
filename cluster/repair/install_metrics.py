"""Metrics of installs and backfills, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from raftlog.types import NodeId


class InstallMetrics:
    """Fed once per piece that came."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._offers = Counter(
            "raftmq_install_offers",
            "Snapshot offers received because the leader has trimmed entries that this node needs",
            registry=registry,
        )
        self._bytes = Counter(
            "raftmq_install_bytes",
            "Bytes fetched for a snapshot (state, log) or its backfill",
            ["part"],
            registry=registry,
        )
        self._remaining = Gauge(
            "raftmq_install_remaining_bytes",
            "Bytes that an install or a backfill still has to fetch",
            registry=registry,
        )
        self._failures = Counter(
            "raftmq_install_failures",
            "Failed attempts to fetch a snapshot or a segment",
            ["peer"],
            registry=registry,
        )
        self._installed = Counter("raftmq_installs", "Snapshots installed at this start of the node", registry=registry)
        self._segments = Counter(
            "raftmq_backfilled_segments", "Older segments fetched after an install", registry=registry
        )

    def offered(self) -> None:
        """A leader offered a snapshot."""
        self._offers.inc()

    def received(self, part: str, size_bytes: int) -> None:
        """A piece came; `part`: `state`, `log` or `backfill`."""
        self._bytes.labels(part).inc(size_bytes)

    def remaining(self, size_bytes: int) -> None:
        """So much is still to come."""
        self._remaining.set(max(0, size_bytes))

    def failed(self, peer: NodeId) -> None:
        """A peer did not give what it had, or it was not sound."""
        self._failures.labels(str(peer)).inc()

    def installed(self) -> None:
        """This start put a snapshot in place."""
        self._installed.inc()

    def backfilled(self) -> None:
        """One older segment is here."""
        self._segments.inc()
