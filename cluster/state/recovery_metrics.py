"""The findings and actions of the last start, as gauges; they do not change after replay."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from cluster.state.recovery_views import RecoveryStatus


class RecoveryMetrics:
    """Fed right before a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Defines the gauges in `registry`."""

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"raftmq_recovery_{name}", text, labels, registry=registry)

        self._clean = gauge("clean", "1 if the stop before the last start was orderly")
        self._scanned = gauge("scanned_bytes", "Bytes of the log that the last start read")
        self._torn = gauge("torn_bytes", "Bytes of incomplete entries that the last start cut")
        self._replayed = gauge("replayed_entries", "Entries applied again since the last start")
        self._left = gauge(
            "replay_entries_left", "Entries that the log held at the start and that are still to be applied"
        )
        self._restored = gauge("state_restored", "1 if the last start replaced the state from a checkpoint or a peer")
        self._stage = gauge("stage_seconds", "Duration of a stage of the last start", "stage")
        self._damage = gauge("damaged_bytes", "Bytes of the log that this node cannot read intact")
        self._synced = gauge("synced_index", "Applied index up to which all derived rows are on disk")
        self._checkpoint = gauge("checkpoint_index", "Applied index of the newest checkpoint, -1 if there is none")

    def update(self, status: RecoveryStatus) -> None:
        """Takes over what the node says."""
        self._clean.set(status.clean)
        self._scanned.set(status.bytes_scanned)
        self._torn.set(status.torn_bytes_cut)
        self._replayed.set(status.entries_replayed)
        self._left.set(max(0, status.replay_target - status.replay_index))
        self._restored.set(status.state_source != "own")
        for stage, milliseconds in status.stages_ms.items():
            self._stage.labels(stage).set(milliseconds / 1000)
        self._damage.set(sum(one.end_position - one.first_position for one in status.damage))
        if status.checkpoints is not None:
            self._synced.set(status.checkpoints.synced_index)
            self._checkpoint.set(status.checkpoints.checkpoint_index)
