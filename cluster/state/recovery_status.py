"""The record of a start, for `GET /v1/recovery`, `raftmq recovery` and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from cluster.state.opening import OpenState
from cluster.state.recovery_views import CheckpointTimes, PreviousRun, RecoveryStatus, damage_views
from raftlog.storage.files.run_file import Run, stopped_in_order
from raftlog.storage.log.segmented_log import SegmentedLog


class Stages:
    """Milliseconds per stage of the start, in order."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._started_s = monotonic_s()
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times one stage."""
        start = self._monotonic_s()
        yield
        self._note(name, start)

    def since_start(self, name: str) -> None:
        """Notes a moment, once."""
        if name not in self.milliseconds:
            self._note(name, self._started_s)

    def _note(self, name: str, start: float) -> None:
        self.milliseconds[name] = round((self._monotonic_s() - start) * 1000, 2)


class RecoveryAccount:
    """An account of what one start found and did; replay goes on while the node runs."""

    def __init__(
        self, log: SegmentedLog, opened: OpenState, stages: Stages, previous: Run | None, boot_id: bytes
    ) -> None:
        self._log = log
        self._opened = opened
        self._stages = stages
        self._previous = previous
        self._boot_id = boot_id
        self._from = opened.state.applied.index
        self._target = log.tail.index
        self.replaying = self._target > self._from
        self.state_set_aside = opened.set_aside
        """Place of the state that this start replaced, "" if it did not."""

    def applied(self, index: int) -> None:
        """Everything up to `index` is applied."""
        if self.replaying and index >= self._target:
            self.replaying = False
            self._stages.since_start("replay")

    def status(self, run: Run) -> RecoveryStatus:
        """Returns the account as it stands; `run` is what RUN says now."""
        report, opened = self._log.report, self._opened
        index = opened.state.applied.index
        self.applied(index)
        return RecoveryStatus(
            clean=report.clean,
            bytes_scanned=report.bytes_scanned,
            bytes_zeroed=report.bytes_zeroed,
            torn_bytes_cut=report.torn_bytes_cut,
            entries_replayed=max(0, min(index, self._target) - self._from),
            stages_ms=dict(self._stages.milliseconds),
            reasons=[*report.reasons, *opened.reasons],
            replaying=self.replaying,
            replay_index=index,
            replay_target=self._target,
            state_found=opened.found.name.lower(),
            state_source=opened.source,
            state_checkpoint=opened.checkpoint,
            state_set_aside=opened.set_aside,
            previous=self._previous_run(),
            checkpoints=CheckpointTimes(
                log_flushed_ms=run.log_flushed_ms,
                queues_flushed_ms=run.queues_flushed_ms,
                index_flushed_ms=run.index_flushed_ms,
                synced_index=run.synced_index,
                checkpoint_index=run.checkpoint_index,
            ),
            damage=damage_views(self._log.damage.ranges),
            alarms=[text for _, text in opened.alarms],
        )

    def _previous_run(self) -> PreviousRun | None:
        run = self._previous
        if run is None:
            return None
        return PreviousRun(
            ended=self._ended(run),
            pid=run.pid,
            boot_id=run.boot_id.hex(),
            started_ms=run.started_ms,
            synced_index=run.synced_index,
        )

    def _ended(self, run: Run) -> Literal["orderly", "process_died", "machine_restarted"]:
        if stopped_in_order(run):
            return "orderly"
        return "process_died" if run.boot_id == self._boot_id else "machine_restarted"
