"""Metrics of index files, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class IndexMetrics:
    """Fed when something happens, and at each look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._files = Gauge("raftmq_index_files", "Index files of closed segments on this node", registry=registry)
        self._bytes = Gauge("raftmq_index_files_bytes", "Size of these files in bytes", registry=registry)
        self._pending = Gauge(
            "raftmq_index_files_pending_bytes",
            "Bytes of closed segments that have no index file yet",
            registry=registry,
        )
        self._built = Counter("raftmq_index_files_built", "Index files built", registry=registry)
        self._damaged = Counter(
            "raftmq_index_files_damaged", "Index files that were found damaged and removed", registry=registry
        )
        self._failed = Counter("raftmq_index_files_failed", "Attempts to build one that failed", registry=registry)

    def now(self, files: int, size_bytes: int, pending_bytes: int) -> None:
        """The files as of the last look."""
        self._files.set(files)
        self._bytes.set(size_bytes)
        self._pending.set(pending_bytes)

    def built(self) -> None:
        """One file more."""
        self._built.inc()

    def damaged(self) -> None:
        """One was removed."""
        self._damaged.inc()

    def failed(self) -> None:
        """One is to be tried again."""
        self._failed.inc()
