"""Metrics of retention, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class RetentionMetrics:
    """The metrics of retention, updated when something happens and at each look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self.trimmed = counter("raftmq_trims", "TRIM entries applied, by reason", ["reason"])
        self._position = gauge("raftmq_trim_position", "Position at which the log begins, in bytes")
        self._bytes = gauge("raftmq_log_bytes", "Size of this node's log in bytes")
        self._left = gauge("raftmq_trimmed_files_left", "Segment files below the TRIM that this node still has")
        self._left_bytes = gauge(
            "raftmq_trimmed_bytes_left", "Bytes of the segment files below the TRIM that this node still has"
        )
        self.removed = counter("raftmq_segments_removed", "Segment files removed by retention")
        self.removals = gauge(
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

    def pinned(self, position: int, age_ms: int, held_bytes: int) -> None:
        """Shows what pins the log, as found by the last look."""
        self._pinned_position.set(position)
        self._pinned_age.set(age_ms / 1000)
        self._held.set(held_bytes)

    def carried(self, messages: int, size_bytes: int) -> None:
        """Counts waiting messages that were appended again further on in the log."""
        self._carried.inc(messages)
        self._carried_bytes.inc(size_bytes)

    def log(self, position: int, size_bytes: int, files_left: int, bytes_left: int) -> None:
        """Shows where the log begins, how long it is, and how many files below the TRIM are left."""
        self._position.set(position)
        self._bytes.set(size_bytes)
        self._left.set(files_left)
        self._left_bytes.set(bytes_left)
