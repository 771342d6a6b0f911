"""Opens the state beside its log: applies the table of cases in opening_cases.py and records what was done.

Nothing is deleted or moved before its replacement was read and found intact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from cluster.runtime.findings import Code
from cluster.state import suspect_state
from cluster.state.checkpoints import Checkpoint, Checkpoints
from cluster.state.manifest import index_of
from cluster.state.opening_cases import ALARMING, OpeningAction, OpeningFacts, StateCase, classify
from raftlog.errors import CorruptLogError, DamagedLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, storage_error
from raftlog.storage.files.run_file import Run
from raftlog.storage.log.segmented_log import SegmentedLog
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark, BrokerState
from statemachine.levels import LEVEL
from statemachine.rows.kv import KV, KVCorruptError, KVError
from statemachine.rows.running_digest import Count
from statemachine.rows.running_digest import count as count_rows

logger = logging.getLogger(__name__)

REPLACED = Code("state_replaced", "warning", "raftmq recovery --node {n}")
"""The code of all alarms about what a start did with the state."""

StateSource = Literal["own", "checkpoint", "peer"]
"""The origin of an opened state."""


class StateLostError(KVError):
    """Raised if the state cannot be used, and no checkpoint here can replace it. A peer may have a checkpoint."""


class OpenState(NamedTuple):
    """An open state, and its origin."""

    kv: KV
    state: BrokerState
    found: StateCase
    """The case that applied when opening began."""
    source: StateSource
    checkpoint: str
    """Name of the checkpoint that the state was made from, "" if none."""
    set_aside: str
    """Place to which the former state was moved, "" if there was none."""
    reasons: list[str]
    alarms: list[tuple[Code, str]]
    """(key, text) of the alarms to raise for an operator."""


def is_of_log(log: SegmentedLog, mark: AppliedMark) -> bool | None:
    """Returns True if the log has the entry `mark` at its index, False if it has another entry there. Returns None if
    the log cannot tell: nothing is applied, or the entry is trimmed, beyond the end of the log, or damaged."""
    if not max(log.first_index, 0) <= mark.index <= log.tail.index:
        return None
    try:
        (entry,) = log.read_entries(mark.index, mark.index + 1, 1)
    except DamagedLogError:
        return None
    return entry.header_crc == mark.header_crc


def unusable(checkpoints: Checkpoints, name: str, log: SegmentedLog, above: int = -1) -> str:
    """Returns the reason why a checkpoint cannot be used as the state for this log, "" if it can. It must be newer than
    index `above`. Reads all of the checkpoint."""
    try:
        checkpoint = checkpoints.load(name)
        if checkpoint is None:
            return "has no sound manifest"
        mark = checkpoint.manifest.mark
        if mark.index > log.tail.index:
            return f"is newer than the log, which ends at {log.tail.index}"
        if mark.index <= above:
            return "is not newer than the state"
        if mark.index + 1 < log.first_index:
            return f"is older than the log, which begins at {log.first_index}"
        if is_of_log(log, mark) is False:
            return "belongs to another log"
        wrong = next(checkpoints.problems(checkpoint), None)
    except OSError as error:
        return f"cannot be read: {error}"
    return f"is damaged: {wrong[0].name} {wrong[1]}" if wrong else ""


def doubtful(suspicion: suspect_state.Suspicion | None, name: str) -> str:
    """Returns the reason why the rows of a checkpoint are not trusted, even if the CRCs of its files match; "" if they
    are trusted."""
    if suspicion is None or suspicion.sound_index is None or name == suspicion.peer_checkpoint:
        return ""
    if index_of(name) > suspicion.sound_index:
        return f"may hold the same wrong rows: other nodes agreed with it only up to entry {suspicion.sound_index}"
    return "is not used before the peers have been asked for theirs" if suspicion.peer_checkpoint is None else ""


def set_aside_doubtful(
    fs: FileSystem,
    directory: Path,
    checkpoints: Checkpoints,
    suspicion: suspect_state.Suspicion | None,
    why: str,
    now_ms: int,
) -> list[str]:
    """Sets aside the checkpoints that are not trusted (`doubtful`). This must happen before STATE_SUSPECT is removed,
    because later starts would trust them. Returns their names. Raises StorageError."""
    moved = [name for name in checkpoints.names() if doubtful(suspicion, name)]
    for name in moved:
        suspect_state.set_aside(fs, directory, checkpoints.path / name, why, now_ms, index_of(name))
    return moved


class StateOpening:
    """One opening of DATA/state. The log is open already, and the directory is locked."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        group_id: int,
        log: SegmentedLog,
        run: Run | None,
        *,
        open_kv: Callable[[str], KV],
        now_ms: int,
        installed: bool = False,
        count: Count = count_rows,
        known_level: int = LEVEL,
    ) -> None:
        """`run` is the record of the previous run in RUN. `installed`: True if a snapshot's log has just replaced the
        former log. `count` counts the rows of a state that does not know its sums. A state of a higher level than
        `known_level` is refused."""
        self._fs = fs
        self._directory = directory
        self._group_id = group_id
        self._log = log
        self._synced = run.synced_index if run else -1
        self._open_kv = open_kv
        self._now_ms = now_ms
        self._installed = installed
        self._count = count
        self._known_level = known_level
        self._state = directory / layout.STATE
        self._checkpoints = Checkpoints(fs, directory, group_id)
        self._suspicion = suspect_state.suspicion_of(fs, directory)
        self._reasons: list[str] = []
        self._alarms: list[tuple[Code, str]] = []
        self._applied = -1
        self._existed = False
        self._moved_to = ""
        """The place to which the state that was found first was moved, "" if it was not."""

    def run(self) -> OpenState:
        """Opens the state, and replaces or replays it as the table demands.

        Raises CorruptLogError where an operator must decide, StateLostError if nothing here can replace it, KVError if
        it cannot be opened for another reason than damage, StorageError.
        """
        kv, state, damage = self._try_open()
        try:
            found = self._found(state, damage)
            self._note(found, state, damage)
            if found.done is OpeningAction.REFUSE:
                raise CorruptLogError(self._refusal(found, state))
            if self._keeps(found, state):
                assert kv is not None
                assert state is not None
                return OpenState(kv, state, found, "own", "", "", self._reasons, self._alarms)
        except BaseException:
            if kv is not None:
                kv.close()
            raise
        if kv is not None:
            kv.close()
        return self._restore(found, damage)

    # --- what is there -----------------------------------------------------------------------------------------------

    def _try_open(self) -> tuple[KV | None, BrokerState | None, str]:
        """Returns (store, state, "") or (None, None, the damage found). The damage is "" if there is no state at
        all."""
        self._existed = self._fs.exists(self._state / "CURRENT")
        if not self._existed and not self._is_new():
            return None, None, ""
        kv: KV | None = None
        try:
            kv = self._open_kv(str(self._state))
            return kv, BrokerState(kv, self._count, self._known_level, self._group_id), ""
        except BaseException as error:
            if kv is not None:
                kv.close()
            if isinstance(error, KVCorruptError):
                return None, None, str(error)
            raise

    def _is_new(self) -> bool:
        """Returns True for a directory that has never run. Its state is created rather than missing."""
        return self._log.tail.index <= 0 and self._synced <= 0

    def _found(self, state: BrokerState | None, damage: str) -> StateCase:
        mark = state.applied_mark if state else NOTHING_APPLIED
        self._applied = mark.index
        return classify(
            OpeningFacts(
                log_first=self._log.first_index,
                log_last=self._log.tail.index,
                synced=self._synced,
                suspect=self._suspicion is not None,
                wrong_rows=self._suspicion is not None and self._suspicion.sound_index is not None,
                exists=self._existed,
                damaged=bool(damage),
                mark=mark,
                installed=self._installed,
                of_this_log=self._is_of_log(mark),
            )
        )

    def _is_of_log(self, mark: AppliedMark) -> bool | None:
        """Returns the value of `OpeningFacts.of_this_log`. If the log cannot tell because of damage, adds that to the
        reasons."""
        same = is_of_log(self._log, mark)
        if same is None and self._log.first_index <= mark.index <= self._log.tail.index:
            self._reasons.append(
                f"entry {mark.index}, the last one applied, is damaged in the log: the two could not be compared"
            )
        return same

    # --- what is done ------------------------------------------------------------------------------------------------

    def _keeps(self, found: StateCase, state: BrokerState | None) -> bool:
        if found.done in (OpeningAction.RESTORE, OpeningAction.RESTORE_FROM_PEER) or state is None:
            return False
        if found.done is not OpeningAction.REPLAY_OR_RESTORE:
            return True
        newest = next(self._usable(above=state.applied.index), None)
        return newest is None

    def _usable(self, above: int = -1) -> Iterator[Checkpoint]:
        """Yields the checkpoints that can be used as the state for the log, a peer's first, then the newest. Each is
        read completely before it is yielded. Adds to `_reasons` why each other checkpoint cannot be used."""
        suspicion = self._suspicion
        names = self._checkpoints.names()
        for name in sorted(names, key=lambda name: suspicion is None or name != suspicion.peer_checkpoint):
            wrong = doubtful(suspicion, name) or unusable(self._checkpoints, name, self._log, above)
            checkpoint = None if wrong else self._checkpoints.load(name)
            if checkpoint is None:
                self._reasons.append(f"checkpoint {name} {wrong}")
            else:
                yield checkpoint

    def _restore(self, found: StateCase, damage: str) -> OpenState:
        for checkpoint in self._usable():
            trash = self._set_aside(found, damage)
            self._checkpoints.install(checkpoint, self._state)
            kv, state, again = self._try_open()
            if kv is None or state is None or state.applied_mark != checkpoint.manifest.mark:
                if kv is not None:
                    kv.close()
                self._reasons.append(f"checkpoint {checkpoint.path.name} did not open as it was made: {again}")
                damage = again
                continue
            try:
                self._end_suspicion(found)
            except BaseException:
                kv.close()
                raise
            name = checkpoint.path.name
            self._note_source(checkpoint)
            source: StateSource = "peer" if checkpoint.manifest.peer else "checkpoint"
            return OpenState(kv, state, found, source, name, trash, self._reasons, self._alarms)
        raise StateLostError(self._lost(found, damage))

    def _set_aside(self, found: StateCase, damage: str) -> str:
        if not self._fs.exists(self._state):
            return ""
        detail = damage or (self._suspicion.why if self._suspicion else "")
        why = f"{found.what}; according to RUN, entries up to {self._synced} were synced. {detail}".rstrip()
        where = suspect_state.set_aside(self._fs, self._directory, self._state, why, self._now_ms, self._applied)
        self._reasons.append(f"the state was set aside as {where.parent.name}/{where.name}")
        self._moved_to = self._moved_to or f"{where.parent.name}/{where.name}"
        return f"{where.parent.name}/{where.name}"

    def _end_suspicion(self, found: StateCase) -> None:
        moved = set_aside_doubtful(
            self._fs, self._directory, self._checkpoints, self._suspicion, found.what, self._now_ms
        )
        self._reasons += [f"checkpoint {name} was set aside" for name in moved]
        try:
            suspect_state.clear_suspicion(self._fs, self._directory)
        except OSError as error:
            raise storage_error(self._fs, "removing", self._directory / suspect_state.SUSPECT, error) from error

    # --- what is said ------------------------------------------------------------------------------------------------

    def _note(self, found: StateCase, state: BrokerState | None, damage: str) -> None:
        where = f"applied up to {state.applied.index}, " if state else ""
        detail = damage.splitlines()[1] if damage.count("\n") else damage
        if self._suspicion and found in (StateCase.SUSPECT, StateCase.WRONG_ROWS):
            detail = detail or self._suspicion.why
        text = f"{found.what} ({where}log {self._log.first_index}..{self._log.tail.index})"
        self._reasons.append(f"{text}: {found.done.value}, because {found.why}" + (f" [{detail}]" if detail else ""))
        if found in ALARMING:
            self._alarms.append(
                (REPLACED.alarm(f"state_{found.name.lower()}"), f"{text}: {found.done.value} {detail}".rstrip())
            )
            logger.warning("%s", self._reasons[-1])

    def _note_source(self, checkpoint: Checkpoint) -> None:
        manifest, suspicion = checkpoint.manifest, self._suspicion
        self._reasons.append(
            f"made from checkpoint {checkpoint.path.name}: every file has the CRC of its manifest, and entry "
            f"{manifest.mark.index} is the one in the log"
        )
        if manifest.note:
            self._reasons.append(manifest.note)
        if suspicion is None or suspicion.sound_index is None:
            return
        if checkpoint.path.name != suspicion.peer_checkpoint:
            self._reasons.append(
                f"it is this node's own, because no peer provided one ({suspicion.said}); others had the same rows at "
                f"entry {suspicion.sound_index}"
            )

    def _refusal(self, found: StateCase, state: BrokerState | None) -> str:
        applied = state.applied.index if state else -1
        first, last = self._log.first_index, self._log.tail.index
        return (
            f"{self._directory}: {found.what} (applied {applied}, log {first}..{last}).\n"
            f"It is not repaired automatically: {found.why}.\n"
            f"To see the options: raftmq rebuild {self._directory} --plan"
        )

    def _said(self) -> str:
        said = self._suspicion.said if self._suspicion else ""
        return f"The peers were asked: {said}.\n" if said else ""

    def _lost(self, found: StateCase, damage: str) -> str:
        moved = f"The state was moved to {self._moved_to}" if self._moved_to else "Nothing was moved"
        tried = [reason for reason in self._reasons if reason.startswith("checkpoint ")]
        return (
            f"{self._directory}: {found.what}, and no checkpoint can replace it "
            f"({'; '.join(tried) or 'there is none'}).\n{damage}\n"
            f"{self._said()}{moved}. Start the node while its peers are running: it then fetches a "
            f"checkpoint from one of them; or replay its whole log: raftmq rebuild {self._directory} --plan"
        )
