"""Metrics of the tier's uploads, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from cluster.runtime.figures.service_metrics import ServiceMetrics
from statemachine.tier import TierState


class TierMetrics(ServiceMetrics):
    """Metrics of uploads, set at each step, and once a second while a tier is configured."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self._moved = counter(
            "raftmq_tier_transitions", "Steps of segments that this leader recorded, by state", ["state"]
        )
        self.written = counter("raftmq_tier_written_bytes", "Bytes written to the tier, by kind of part", ["kind"])
        self.read_back = counter("raftmq_tier_read_back_bytes", "Bytes read back to verify them")
        self.rewritten = counter("raftmq_tier_rewritten_parts", "Parts that read back wrong and were written again")
        self.failed = counter(
            "raftmq_tier_retries", "Uploads that failed and are tried again, by kind of error", ["error"]
        )
        self.published = counter("raftmq_tier_manifests", "Manifests published")
        self._pending = gauge("raftmq_tier_pending_bytes", "Bytes of sealed segments that are not verified in the tier")
        self._age = gauge(
            "raftmq_tier_pending_age_seconds",
            "How long ago in log time the oldest of them was sealed; 0 if there is none",
        )
        self._window = gauge(
            "raftmq_tier_window_seconds",
            "On the leader, age in log time of the oldest message that is not verified in the tier; 0 if there is none",
        )
        self._segments = gauge("raftmq_tier_segments", "Segments that have a row in the state, by state", ["state"])
        self._verified = gauge("raftmq_tier_verified_position", "The tier holds the log up to this position")

        self.state_copy = gauge(
            "raftmq_tier_state_index",
            "Applied index of the newest copy of the state that this leader knows of; -1 if it knows of none",
        )
        self.state_copy.set(-1)

    def moved(self, state: TierState) -> None:
        """Counts a segment whose new state was recorded in the log."""
        self._moved.labels(state.name.lower()).inc()

    def pending(self, size: int, age_ms: int, verified: int) -> None:
        """Sets the metrics of the log that waits for its upload."""
        self._pending.set(size)
        self._age.set(age_ms / 1000)
        self._verified.set(verified)

    def window(self, age_ms: int) -> None:
        """Sets the age of the oldest message that would be lost if all nodes were lost now."""
        self._window.set(age_ms / 1000)

    def segments(self, counts: dict[TierState, int]) -> None:
        """Sets the number of rows by state."""
        for state in TierState:
            if state is not TierState.DELETED:
                self._segments.labels(state.name.lower()).set(counts.get(state, 0))
