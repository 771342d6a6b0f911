"""Metrics of the tier's uploads, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from statemachine.tier import TierState


class TierMetrics:
    """Fed at each step, and once a second while a tier is configured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._moved = Counter(
            "raftmq_tier_transitions",
            "Steps of segments that this leader recorded, by state",
            ["state"],
            registry=registry,
        )
        self._written = Counter(
            "raftmq_tier_written_bytes", "Bytes written to the tier, by kind of part", ["kind"], registry=registry
        )
        self._read_back = Counter("raftmq_tier_read_back_bytes", "Bytes read back to verify them", registry=registry)
        self._rewritten = Counter(
            "raftmq_tier_rewritten_parts", "Parts that read back wrong and were written again", registry=registry
        )
        self._retries = Counter(
            "raftmq_tier_retries",
            "Uploads that failed and are tried again, by kind of error",
            ["error"],
            registry=registry,
        )
        self._published = Counter("raftmq_tier_manifests", "Manifests published", registry=registry)
        self._pending = Gauge(
            "raftmq_tier_pending_bytes", "Bytes of sealed segments that are not verified in the tier", registry=registry
        )
        self._age = Gauge(
            "raftmq_tier_pending_age_seconds",
            "How long ago in log time the oldest of them was sealed; 0 if there is none",
            registry=registry,
        )
        self._window = Gauge(
            "raftmq_tier_window_seconds",
            "On the leader, age in log time of the oldest message that is not verified in the tier; 0 if there is none",
            registry=registry,
        )
        self._segments = Gauge(
            "raftmq_tier_segments", "Segments that have a row in the state, by state", ["state"], registry=registry
        )
        self._verified = Gauge(
            "raftmq_tier_verified_position", "The tier holds the log up to this position", registry=registry
        )

        self._state_index = Gauge(
            "raftmq_tier_state_index",
            "Applied index of the newest copy of the state that this leader knows of; -1 if it knows of none",
            registry=registry,
        )
        self._state_index.set(-1)

    def state_copy(self, index: int) -> None:
        """The newest copy; -1: none is known."""
        self._state_index.set(index)

    def moved(self, state: TierState) -> None:
        """A step is in the log."""
        self._moved.labels(state.name.lower()).inc()

    def written(self, kind: str, size: int) -> None:
        """An object was written."""
        self._written.labels(kind).inc(size)

    def read_back(self, size: int) -> None:
        """So many bytes were read to verify them."""
        self._read_back.inc(size)

    def rewritten(self, parts: int) -> None:
        """Parts were wrong."""
        self._rewritten.inc(parts)

    def failed(self, error: str) -> None:
        """An attempt failed."""
        self._retries.labels(error).inc()

    def published(self) -> None:
        """A manifest is out."""
        self._published.inc()

    def pending(self, size: int, age_ms: int, verified: int) -> None:
        """Shows what waits for its upload now."""
        self._pending.set(size)
        self._age.set(age_ms / 1000)
        self._verified.set(verified)

    def window(self, age_ms: int) -> None:
        """Shows what the loss of all nodes would cost now."""
        self._window.set(age_ms / 1000)

    def segments(self, counts: dict[TierState, int]) -> None:
        """Rows by state."""
        for state in TierState:
            if state is not TierState.DELETED:
                self._segments.labels(state.name.lower()).set(counts.get(state, 0))
