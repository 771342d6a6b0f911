"""Metrics of retention, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class RetentionMetrics:
    """Fed when something happens, and at each look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._trims = Counter("raftmq_trims", "TRIM entries applied, by reason", ["reason"], registry=registry)
        self._position = Gauge("raftmq_trim_position", "Position at which the log begins, in bytes", registry=registry)
        self._bytes = Gauge("raftmq_log_bytes", "Size of this node's log in bytes", registry=registry)
        self._left = Gauge(
            "raftmq_trimmed_files_left", "Segment files below the TRIM that this node still has", registry=registry
        )
        self._left_bytes = Gauge(
            "raftmq_trimmed_bytes_left",
            "Bytes of the segment files below the TRIM that this node still has",
            registry=registry,
        )
        self._removed = Counter("raftmq_segments_removed", "Segment files removed by retention", registry=registry)
        self._removals = Gauge(
            "raftmq_removals_pending",
            "Deletions of topics, groups, sessions and attempts whose rows are not all gone yet",
            registry=registry,
        )
        self._unread = Counter(
            "raftmq_trimmed_unconsumed",
            "Trimmed messages that some consumer group had not consumed (leader)",
            registry=registry,
        )

        self._pinned_position = Gauge(
            "raftmq_pinned_position",
            "Position of the lowest message that waits for its time or its transaction; the log's end if none does",
            registry=registry,
        )
        self._pinned_age = Gauge(
            "raftmq_pinned_age_seconds",
            "How long ago in log time the lowest message that waits was stored; 0 if none waits",
            registry=registry,
        )
        self._held = Gauge(
            "raftmq_pinned_log_bytes",
            "Bytes of log that retention would remove if no message waited in them (leader)",
            registry=registry,
        )
        self._carried = Counter(
            "raftmq_carried_messages", "Messages that wait stored again further on (leader)", registry=registry
        )
        self._carried_bytes = Counter("raftmq_carried_bytes", "Stored bytes of these messages", registry=registry)

    def pinned(self, position: int, age_ms: int, held_bytes: int) -> None:
        """Shows what pins the log, as of the last look."""
        self._pinned_position.set(position)
        self._pinned_age.set(age_ms / 1000)
        self._held.set(held_bytes)

    def carried(self, messages: int, size_bytes: int) -> None:
        """Counts waiting messages that were stored again further on."""
        self._carried.inc(messages)
        self._carried_bytes.inc(size_bytes)

    def trimmed(self, reason: str) -> None:
        """A TRIM was applied."""
        self._trims.labels(reason).inc()

    def log(self, position: int, size_bytes: int, files_left: int, bytes_left: int) -> None:
        """The log now."""
        self._position.set(position)
        self._bytes.set(size_bytes)
        self._left.set(files_left)
        self._left_bytes.set(bytes_left)

    def removals(self, pending: int) -> None:
        """So many deletions are being carried out, slice by slice."""
        self._removals.set(pending)

    def removed(self, files: int) -> None:
        """So many files are gone."""
        self._removed.inc(files)

    def unread(self, messages: int) -> None:
        """So many messages went without having been consumed."""
        self._unread.inc(messages)
