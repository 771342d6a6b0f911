"""Replaces the state of a stopped node at an operator's request: chooses the source, puts it in place, and moves the
old files to trash/. The next start of the node applies the log above the source again.

A start never does this on its own if it would have to read more of the log than the part above an intact checkpoint, or
if log and state contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cluster.state import suspect_state
from cluster.state.checkpoints import Checkpoint, Checkpoints
from cluster.state.state_opening import doubtful, set_aside_doubtful, unusable
from raftlog.errors import RaftLogError
from raftlog.storage.files import layout, vote_withheld
from raftlog.storage.files.fs import FileSystem, storage_error
from raftlog.storage.files.run_file import RunFile, stopped_in_order
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.node_dir import NodeDir, open_node_dir
from statemachine.rows.kv import KV
from statemachine.rows.rocksdb_store import RocksKV

CHECKPOINT, SEGMENT, START = "checkpoint", "segment", "start"
"""The place from which the log is applied again after a rebuild. CHECKPOINT: the newest sound checkpoint. SEGMENT: the
newest sound checkpoint at or below the third-last segment, or, if the last stop was not orderly, at or below the newest
segment that can be read completely. START: GENESIS; if the log is trimmed, the oldest sound checkpoint, because no log
holds the entries below it any more."""
SEGMENTS_BACK = 3


class RebuildPlan(NamedTuple):
    """The steps of a rebuild. Positions are byte offsets in the log."""

    directory: Path
    checkpoint: str
    """Name of the checkpoint from which the state is made; "" for an empty state and a replay of the whole log."""
    replay_from: int
    """The first index that is applied again."""
    replay_to: int
    position: int
    entries: int
    bytes: int
    set_aside: tuple[str, ...]
    """Names of files and directories that are moved to trash/."""
    withholds_vote: bool
    """True if the log ends below the last applied entry. The node then does not vote at first, because it may have
    acknowledged entries that it no longer has."""
    applied: int
    """The applied index that RUN recorded; -1 if none."""
    because: tuple[str, ...]
    """The reasons for the choice of the source."""


class RebuildError(RaftLogError):
    """Raised if there is no source for a rebuild. The message states the reason and the command that helps."""


class Rebuild:
    """A rebuild of a stopped node's directory, which is locked from construction to `close`."""

    def __init__(self, fs: FileSystem, directory: Path, now_ms: int, open_kv: Callable[[str], KV] = RocksKV) -> None:
        """Opens directory and log as a start does. Raises IdentityError (in use, or no node), CorruptLogError.

        To make only a plan, pass an OverlayFileSystem as `fs`; then nothing is changed.
        """
        self._open_kv = open_kv
        self._fs = fs
        self._directory = directory
        self._now_ms = now_ms
        self._opened: NodeDir = open_node_dir(fs, directory)
        self._group_id = self._opened.identity.group_id
        self._run_file = RunFile(fs, directory, group_id=self._group_id)
        self._checkpoints = Checkpoints(fs, directory, self._group_id)

    def plan(self, back: str = CHECKPOINT) -> RebuildPlan:
        """Chooses the steps. `back` is CHECKPOINT, SEGMENT or START. Reads the checkpoints among which it chooses.
        Raises RebuildError if the log is trimmed and no checkpoint reaches it."""
        log = self._opened.log
        because: list[str] = []
        limit = self._limit(back, because)
        chosen = self._choose(limit, because) if back != START else None
        if chosen is None and log.first_index > 0:
            chosen = self._oldest(because)
        first = chosen.manifest.mark.index + 1 if chosen else 0
        if first == 0 and log.first_index > 0:
            raise RebuildError(
                f"{self._directory}: the log begins at {log.first_index}, and no checkpoint reaches it.\n"
                f"{'; '.join(because)}\n"
                "Restore a backup into an empty directory (raftmq restore), or replace this node."
            )
        position = chosen.manifest.mark.end_position if chosen else log.first_position
        run = self._run_file.previous
        applied = run.synced_index if run else -1
        state = self._directory / layout.STATE
        return RebuildPlan(
            directory=self._directory,
            checkpoint=chosen.path.name if chosen else "",
            replay_from=first,
            replay_to=log.tail.index,
            position=position,
            entries=log.tail.index + 1 - first,
            bytes=log.tail.end_position - position,
            set_aside=(str(state),) if self._fs.exists(state) else (),
            withholds_vote=max(applied, self._newest_checkpoint()) > log.tail.index,
            applied=applied,
            because=tuple(because),
        )

    def carry_out(self, plan: RebuildPlan) -> str:
        """Carries out the plan; returns the place of the old state, "" if there was none. Raises StorageError."""
        log = self._opened.log
        if plan.withholds_vote:
            reason = f"the log ended at {log.tail.index} when the state was rebuilt, {plan.applied} had been applied"
            withheld = VoteWithheld(reason, max(plan.applied, self._newest_checkpoint()), log.tail.term, self._now_ms)
            vote_withheld.withhold(self._fs, self._directory, withheld, self._group_id)
        where = ""
        state = self._directory / layout.STATE
        if self._fs.exists(state):
            why = f"raftmq rebuild: {'; '.join(plan.because)}"
            where = str(suspect_state.set_aside(self._fs, self._directory, state, why, self._now_ms, plan.applied))
        try:
            if plan.checkpoint:
                chosen = self._checkpoints.load(plan.checkpoint)
                assert chosen is not None, plan.checkpoint
                self._checkpoints.install(chosen, state)
            else:
                self._open_kv(str(state)).close()
            self._set_aside_newer(plan.replay_to)
            why = "raftmq rebuild: its rows may be wrong"
            set_aside_doubtful(self._fs, self._directory, self._checkpoints, self._suspicion(), why, self._now_ms)
            run = self._run_file.previous
            if run is not None:
                self._run_file.write(run._replace(synced_index=plan.replay_from - 1, checkpoint_index=-1))
            suspect_state.clear_suspicion(self._fs, self._directory)
        except OSError as error:
            raise storage_error(self._fs, "rebuilding", state, error) from error
        return where

    def close(self) -> None:
        """Unlocks the directory. The log is closed as after an orderly stop, because nothing was written to it."""
        self._run_file.close()
        self._opened.close(clean=True)

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _limit(self, back: str, because: list[str]) -> int:
        """Returns the position at or below which the checkpoint must end. Adds the reason to `because`."""
        log = self._opened.log
        if back != SEGMENT:
            return log.tail.end_position
        bases = layout.segment_bases(self._fs.listdir(self._directory / layout.LOG))
        if stopped_in_order(self._run_file.previous):
            number = max(0, len(bases) - SEGMENTS_BACK)
            because.append(f"the last stop was orderly: back to the third-last segment, at position {bases[number]}")
        else:
            number = self._newest_sound(log, bases)
            because.append(
                f"the last stop was not orderly: back to the newest segment that reads soundly, at {bases[number]}"
            )
        return bases[number]

    def _newest_sound(self, log: SegmentedLog, bases: list[int]) -> int:
        """Returns the index in `bases` of the newest segment whose frames can all be read; 0 if only the oldest is
        left, which is not read."""
        ends = [*bases[1:], log.tail.end_position]
        for number in range(len(bases) - 1, 0, -1):
            try:
                at = bases[number]
                while at < ends[number]:
                    at += len(log.read_raw(at, 1 << 20))
            except RaftLogError:
                continue
            return number
        return 0

    def _choose(self, limit: int, because: list[str]) -> Checkpoint | None:
        suspicion = self._suspicion()
        for name in self._checkpoints.names():
            wrong = doubtful(suspicion, name) or unusable(self._checkpoints, name, self._opened.log)
            checkpoint = None if wrong else self._checkpoints.load(name)
            if checkpoint is None:
                because.append(f"checkpoint {name} {wrong}")
            elif checkpoint.manifest.mark.end_position > limit:
                because.append(f"checkpoint {name} lies above position {limit}")
            else:
                because.append(f"checkpoint {name}: every file has the CRC of its manifest, its entry is in the log")
                return checkpoint
        if self._opened.log.first_index == 0:
            because.append("no checkpoint is left: everything is applied again, from GENESIS")
        return None

    def _oldest(self, because: list[str]) -> Checkpoint | None:
        """Returns the oldest sound checkpoint, from which the most entries are applied again; None if there is none.
        Adds the reason to `because`."""
        suspicion, log = self._suspicion(), self._opened.log
        for name in reversed(self._checkpoints.names()):
            if not (doubtful(suspicion, name) or unusable(self._checkpoints, name, log)):
                because.append(
                    f"the log is trimmed and begins at index {log.first_index}, position {log.first_position}: back to "
                    f"the oldest checkpoint, {name}"
                )
                return self._checkpoints.load(name)
        return None

    def _suspicion(self) -> suspect_state.Suspicion | None:
        """Returns the content of STATE_SUSPECT; None if there is none. If the peers have not answered yet, they count
        as having no checkpoint, because a rebuild does not wait for them."""
        known = suspect_state.suspicion_of(self._fs, self._directory)
        return known._replace(peer_checkpoint=known.peer_checkpoint or "") if known else None

    def _newest_checkpoint(self) -> int:
        return max((one.manifest.mark.index for one in self._checkpoints.all()), default=-1)

    def _set_aside_newer(self, last: int) -> None:
        """Sets aside checkpoints above the end of the log: they belong to a history that this log does not share."""
        for one in self._checkpoints.all():
            if one.manifest.mark.index > last:
                why = f"raftmq rebuild: newer than the log, which ends at {last}"
                suspect_state.set_aside(self._fs, self._directory, one.path, why, self._now_ms, one.manifest.mark.index)
