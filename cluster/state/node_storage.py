"""Opens a node's directory, log, RocksDB and Raft core. It times each stage; each refusal names the command that
helps."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from uuid import UUID

from cluster.config.config import Config
from cluster.config.local_layout import node_object
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import SEND_BYTES, Environment
from cluster.runtime.failpoints.failpoint_fs import FailpointFileSystem
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.runtime.listeners import Signal
from cluster.state.checkpointer import Checkpointer
from cluster.state.recovery_views import CheckpointTimes, PreviousRun, RecoveryStatus, damage_views
from cluster.state.state_opening import OpenState, StateLostError, StateOpening
from cluster.state.suspect_state import mark_suspect
from raftlog.core.message_plausibility import TERM_MAX
from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.errors import IdentityError, StorageError
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.files.identity import Expected
from raftlog.storage.files.run_file import Run, RunFile, RunState, stopped_in_order
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import NodeDir, open_node_dir
from statemachine.cluster_wide.broker_groups import is_retired
from statemachine.rows.kv import KV, KVCorruptError
from statemachine.rows.running_digest import PROGRESS_ROWS, Sums, count


class Stages:
    """Measures the stages of a start: milliseconds of each, in order."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._started_s = monotonic_s()
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures one stage."""
        start = self._monotonic_s()
        yield
        self._note(name, start)

    def since_start(self, name: str) -> None:
        """Records the milliseconds from the start until now as `name`, unless it is recorded already."""
        if name not in self.milliseconds:
            self._note(name, self._started_s)

    def _note(self, name: str, start: float) -> None:
        self.milliseconds[name] = round((self._monotonic_s() - start) * 1000, 2)


class RecoveryAccount:
    """Records the findings and steps of one start. Replay of the log may go on while the node runs."""

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
        """Path of the state that this start replaced, "" if it replaced none."""

    def applied(self, index: int) -> None:
        """Records that everything up to `index` is applied."""
        if self.replaying and index >= self._target:
            self.replaying = False
            self._stages.since_start("replay")

    def status(self, run: Run) -> RecoveryStatus:
        """Returns what the start recovered, and what has been applied since. `run` is the present content of RUN."""
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


logger = logging.getLogger(__name__)


class NodeStorage:
    """The open storage of a node. `close` closes the parts in reverse order of opening."""

    def __init__(self, config: Config, failpoints: FailpointSet, environment: Environment, alarms: Alarms) -> None:
        """`alarms` are the node's. Raises IdentityError, StorageError or KVError, each with the command that helps."""
        clock = environment.clock
        self.stages = stages = Stages(clock.monotonic_s)
        self._fs = fs = environment.fs
        hard_state_fs: FileSystem | None = None
        if failpoints.enabled:
            hard_state_fs = FailpointFileSystem(fs, failpoints, sync_point="hardstate.fdatasync")
            fs = FailpointFileSystem(fs, failpoints, sync_point="append.fdatasync", write_point="append.write")
        expected = Expected(
            cluster_uuid=UUID(config.cluster.id) if config.cluster.id else None,
            group_id=config.cluster.group,
            node_id=config.node_id,
        )
        path = Path(config.node.data_dir)
        with stages.stage("log"):
            self.directory: NodeDir = open_node_dir(
                fs, path, expected, hard_state_fs=hard_state_fs, now_ms=environment.clock.wall_ms()
            )
        try:
            self._open_state(environment, path, alarms)
            log, identity = self.directory.log, self.directory.identity
            self.memberships = members_at_opening(
                path, identity, log.genesis, log, self.state.membership, self.state.applied.index
            )
        except BaseException as error:
            # Nothing was appended: the next opening, after a checkpoint was fetched, need not scan the log again.
            self.directory.close(clean=isinstance(error, StateLostError))
            raise

    def refuse_retired(self) -> None:
        """Closes, and raises IdentityError, if the node's group of brokers has retired, as far as this node knows."""
        groups = self.state.broker_groups
        if is_retired(groups.by_number, groups.own):
            self.close(clean=True)
            raise self.retired()

    def retired(self) -> IdentityError:
        """Returns the error with which a node ends whose group of brokers has retired."""
        groups = self.state.broker_groups
        row = groups.by_number.get(groups.own)
        name = f" ({row.name})" if row is not None else ""
        return IdentityError(
            f"group {groups.own} of brokers{name} has retired, and its nodes run no more.\n"
            f"the cluster has decided that, for ever; {self.directory.path} is left as it is\n"
            f"delete the directory when nobody needs what is in it (local: raftmq broker-group retire {groups.own})"
        )

    def _open_state(self, environment: Environment, path: Path, alarms: Alarms) -> None:
        fs, clock, log = environment.fs, environment.clock, self.directory.log
        group_id = self.directory.identity.group_id
        with self.stages.stage("run"):
            self._run_file = RunFile(fs, path, group_id=group_id)
        previous = self._run_file.previous
        installed = self.directory.installed is not None and self.directory.installed.done
        with self.stages.stage("state"):
            opened = StateOpening(
                fs,
                path,
                group_id,
                log,
                previous,
                open_kv=environment.open_kv,
                now_ms=clock.wall_ms(),
                installed=installed,
                count=Counting(self.stages, clock.monotonic_s),
                known_level=environment.level,
            ).run()
        self.kv, self.state = opened.kv, opened.state
        self._alarms = alarms
        self.findings = opened.alarms
        """(key of an alarm, text) for each finding of the start."""
        boot_id, mark = environment.boot_id(), opened.state.applied_mark
        run = Run(RunState.RUNNING, environment.pid(), boot_id, clock.wall_ms(), mark.index, mark.term, mark.header_crc)
        try:
            self.checkpointer = Checkpointer(
                fs,
                path,
                group_id,
                self.kv,
                self._run_file,
                run,
                alarms,
                wall_ms=clock.wall_ms,
                monotonic_ms=clock.monotonic_ms,
                checkpoint_bytes=environment.checkpoint_bytes,
                checkpoint_every_ms=environment.checkpoint_every_ms,
            )
        except BaseException:
            self.kv.close()
            raise
        self.recovery = RecoveryAccount(log, opened, self.stages, previous, boot_id)
        self.corrupted: Signal[[KVCorruptError]] = Signal()
        """Sent on any thread when the state is found damaged. The node must then stop, and its next start replaces the
        state."""
        for key, text in self.findings:
            alarms.raise_alarm(key, text)

        def found(error: KVCorruptError) -> None:
            mark_suspect(fs, path, str(error), clock.wall_ms())
            self.corrupted(error)

        self.kv.watch_corruption(found)

    def raw_node(self, config: Config, rng: random.Random, send_bytes: int = SEND_BYTES) -> RawNode:
        """Makes the Raft core over this directory. `send_bytes`: bytes of entries that it sends in one turn. Raises
        StorageError if the saved term is above TERM_MAX."""
        genesis = self.directory.log.genesis
        raft, hard_state = config.raft, self.directory.hard_state_store.load()
        if hard_state.term > TERM_MAX:
            own = node_object(config.cluster.group, config.node_id)
            raise StorageError(
                f"the terms of this cluster are exhausted: {own} has saved term {hard_state.term}.\n"
                "Terms end at 2^62: a peer that violates the protocol must have used them up.\n"
                f"With all nodes stopped: raftmq unsafe-recover {self.directory.path} --plan    (see the page "
                '"Back up and restore" of the docs, "When the terms ran away")'
            )
        withheld = vote_withheld.load(self._fs, self.directory.path, genesis.group_id)
        return RawNode(
            RaftConfig(
                node_id=config.node_id,
                group_id=genesis.group_id,
                election_ticks=raft.election_ticks,
                heartbeat_ticks=raft.heartbeat_ticks,
                inflight_bytes_max=raft.inflight_bytes_max,
                append_bytes_max=raft.append_bytes_max,
                turn_bytes_max=send_bytes,
                segment_size=genesis.segment_size,
            ),
            hard_state=hard_state,
            log=self.directory.log,
            members=self.memberships,
            applied_index=self.state.applied.index,
            rng=rng,
            vote_withheld_since=hard_state.term if withheld else None,
        )

    def close(self, clean: bool) -> None:
        """Closes RocksDB, then the directory. `clean` is True only if every lane finished without a failure."""
        if clean:
            try:
                self.checkpointer.stop()
            except StorageError as error:
                logger.critical("the state could not be closed in order: %s", error)
                clean = False
        self.kv.close()
        if clean:
            self.directory.log.close(clean)
            self.checkpointer.write_stopped()
        self._run_file.close()
        self.directory.close(clean)


# Counts the rows of a state without stored sums, during a start, and logs its progress.
#
# Counting is rare: it happens after an update that computes the sums in another way
# (`statemachine.rows.running_digest.VERSION`), or with a state from a version without sums. It takes a minute for 30
# million rows. The node serves no client yet, so no peer and no client waits for its event loop.

SAY_EVERY_S = 5.0


class Counting:
    """Computes the sums of a state. The time that it takes is shown as the stage `sums`, which is part of `state`."""

    def __init__(self, stages: Stages, monotonic_s: Callable[[], float], progress_rows: int = PROGRESS_ROWS) -> None:
        """Progress is logged every SAY_EVERY_S seconds. The clock `monotonic_s` is read after every `progress_rows`
        rows."""
        self._stages = stages
        self._monotonic_s, self._progress_rows = monotonic_s, progress_rows
        self._said_s = 0.0
        self._said = False

    def __call__(self, kv: KV) -> Sums:
        """Returns the sums of all rows."""
        self._said_s, self._said = self._monotonic_s(), False
        with self._stages.stage("sums"):
            counted = count(kv, self._progress, self._progress_rows)
        if self._said:
            logger.info("all rows of the state are counted")
        return counted

    def _progress(self, family: str, rows: int) -> None:
        now_s = self._monotonic_s()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s, self._said = now_s, True
            logger.info(
                "the state does not know its sums, so its rows are counted before the node serves: %d so far, in %s",
                rows,
                family,
            )
