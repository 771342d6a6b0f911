"""Defines the views of the findings and steps of the last start, and of the known damage of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from prometheus_client import Gauge

from cluster.runtime.figures.service_metrics import ServiceMetrics

if TYPE_CHECKING:
    from raftlog.storage.segments.damage import DamagedRange


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """Frames of the log that this node cannot read intact. They are never served, and are fetched from a peer."""

    first_position: int
    end_position: int
    first_index: int
    last_index: int
    why: str


def damage_views(ranges: Sequence[DamagedRange]) -> list[DamageView]:
    """Converts the log's known damage for the HTTP API."""
    return [
        DamageView(
            first_position=one.first_position,
            end_position=one.end_position,
            first_index=one.first_index,
            last_index=one.last_index,
            why=one.why,
        )
        for one in ranges
    ]


class PreviousRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run before this one, as recorded in DATA/RUN. Times are milliseconds since the Unix epoch, 0 for never."""

    ended: Literal["orderly", "process_died", "machine_restarted", "unknown"]
    pid: int
    boot_id: str
    """Id of the boot, hexadecimal. If it differs from this run's, the machine was restarted between them."""
    started_ms: int
    synced_index: int
    """The last entry whose rows that run knew to be on disk; -1 if none."""


class CheckpointTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times and indexes of what is on disk by now. Times are milliseconds since the Unix epoch, 0 if not in this
    run."""

    log_flushed_ms: int
    queues_flushed_ms: int
    index_flushed_ms: int
    synced_index: int
    """The last entry whose rows are on disk."""
    checkpoint_index: int
    """Applied index of the newest checkpoint; -1 if there is none."""


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and steps of the last start, and why they are safe."""

    clean: bool
    """True if the stop before was orderly, so that nothing was scanned."""
    bytes_scanned: int
    bytes_zeroed: int = 0
    """The part of `bytes_scanned` that was zero-filled room behind the last entry. While the log is small, that is most
    of it."""
    torn_bytes_cut: int
    """Bytes of unacknowledged entries that a crash left incomplete."""
    entries_replayed: int
    """The number of entries above the durable applied index that were applied again so far."""
    stages_ms: dict[str, float]
    """Stage of the start -> milliseconds, in order. "replay" is added when replay is over."""
    reasons: list[str]
    """One sentence per finding or step."""
    replaying: bool = False
    """True while entries that the log held at the start are still being applied. Applied rows are served meanwhile."""
    replay_index: int = -1
    """The last entry that is applied and served."""
    replay_target: int = -1
    """The last entry of the log at the start."""
    state_found: str = ""
    """The case of the recovery table that applied."""
    state_source: Literal["own", "checkpoint", "peer"] = "own"
    """The origin of the state: the node's own, a checkpoint here, or one from a peer."""
    state_checkpoint: str = ""
    """Name of the checkpoint that the state was made from; "" for none."""
    state_set_aside: str = ""
    """Place of the former state, below the data directory."""
    previous: PreviousRun | None = None
    checkpoints: CheckpointTimes | None = None
    damage: list[DamageView] = []
    alarms: list[str] = []
    """The texts of the alarms that the start raised."""


class RecoveryMetrics(ServiceMetrics):
    """Gauges of the last start."""

    def __init__(self, read: Callable[[], RecoveryStatus]) -> None:
        super().__init__()
        self._read = read

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return self.gauge(f"raftmq_recovery_{name}", text, labels)

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

    def look(self) -> None:
        """Sets the gauges from the present status."""
        status = self._read()
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
