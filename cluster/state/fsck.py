"""Checks a stopped node's directory for consistency: offline, read-only, with the code that starts a node.

It checks each file (raftlog.storage.verify.verify_directory, state_check) and the checkpoints. Then it rehearses the
start on a file system that keeps writes in memory (overlay_fs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.state import suspect_state
from cluster.state.checkpoints import Checkpoints
from cluster.state.opening_cases import OpeningAction, OpeningFacts, StateCase, classify
from cluster.state.overlay_fs import OverlayFileSystem
from cluster.state.state_check import StateCheck, StateFacts, checkpoint_findings, irrelevant_state_ranges
from cluster.state.state_opening import doubtful, is_of_log, unusable
from raftlog.errors import IdentityError, RaftLogError
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.run_file import Run, load_run
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.node_dir import NodeDir, open_node_dir
from raftlog.storage.verify.verify_directory import Finding, IrrelevantRange, Severity, irrelevant_ranges, verify_log
from statemachine.broker_state import NOTHING_APPLIED

_REPLACES = (OpeningAction.RESTORE, OpeningAction.RESTORE_FROM_PEER)


class Judged(NamedTuple):
    """A finding, and the command that helps."""

    finding: Finding
    cure: str


class FsckReport(NamedTuple):
    """The findings in one directory, and what its next start would do."""

    directory: Path
    judged: list[Judged]
    start: str
    """A sentence that says what the next start would do."""

    @property
    def sound(self) -> bool:
        """True if no finding is worse than a note."""
        return all(one.finding.severity is Severity.NOTE for one in self.judged)


class Fsck:
    """One check of a data directory. Raises IdentityError if a node runs on the directory, if the directory is not a
    node's, or if it has a format that this version does not read."""

    def __init__(self, directory: Path, *, deep: bool = False) -> None:
        """`deep`: True to also compare every message with the row that points to it."""
        self._fs = OsFileSystem()
        self._directory = directory
        self._deep = deep
        identities.refuse_unknown(self._fs, directory)
        self._overlay = OverlayFileSystem()
        self._group_id = _group_id(self._fs, directory)
        self._facts = StateFacts(False, "", NOTHING_APPLIED)
        self._found: StateCase | None = None
        self._usable = ""

    def run(self) -> FsckReport:
        """Checks the directory and returns the report. Reads every file, and once more what a start reads, because the
        start is rehearsed."""
        opened, refusal = self._rehearse_log()
        try:
            findings = list(self._findings(opened.log if opened else None))
            if opened is not None:
                start = self._rehearse_state(opened)
            else:
                findings.append(Finding(self._directory, 0, 0, "start", Severity.FATAL, refusal))
                start = f"refuse: {refusal}"
        finally:
            if opened is not None:
                opened.close(clean=False)
        return FsckReport(self._directory, [Judged(one, self._cure(one)) for one in findings], start)

    def irrelevant(self) -> Iterator[IrrelevantRange]:
        """Yields the bytes whose change `run` cannot detect, with the reason why no detection is needed."""
        yield from irrelevant_ranges(self._fs, self._directory, group_id=self._group_id)
        yield from irrelevant_state_ranges(self._fs, self._directory, self._group_id)

    def _rehearse_log(self) -> tuple[NodeDir | None, str]:
        check_is_of_a_node(self._directory)
        try:
            return open_node_dir(self._overlay, self._directory), ""
        except IdentityError as error:
            if "is in use by process" in str(error):
                raise
            return None, " ".join(str(error).split("\n"))
        except RaftLogError as error:
            return None, " ".join(str(error).split("\n"))

    def _findings(self, log: SegmentedLog | None) -> Iterator[Finding]:
        yield from verify_log(self._fs, self._directory, group_id=self._group_id)
        yield from self.state_findings(log)

    def state_findings(self, log: SegmentedLog | None = None) -> Iterator[Finding]:
        """Yields the findings about the data that is derived from the log: the state and the checkpoints. `log`: the
        open log, needed for a deep check; None: rows are not compared with messages."""
        run = self._run()
        check = StateCheck(self._fs, self._directory, self._group_id, run.synced_index if run else -1)
        yield from check.findings(log if self._deep else None)
        self._facts = check.facts
        yield from checkpoint_findings(self._fs, self._directory, self._group_id)

    def _run(self) -> Run | None:
        try:
            return load_run(self._fs, self._directory, self._group_id)
        except RaftLogError:
            return None

    def _rehearse_state(self, opened: NodeDir) -> str:
        """Returns a sentence that says what a start would do with the state, by the table of opening_cases.py."""
        log, facts, run = opened.log, self._facts, self._run()
        suspicion = suspect_state.suspicion_of(self._fs, self._directory)
        found = self._found = classify(
            OpeningFacts(
                log_first=log.first_index,
                log_last=log.tail.index,
                synced=run.synced_index if run else -1,
                suspect=suspicion is not None,
                wrong_rows=suspicion is not None and suspicion.sound_index is not None,
                exists=facts.exists,
                damaged=bool(facts.damaged),
                mark=facts.mark,
                of_this_log=is_of_log(log, facts.mark),
            )
        )
        checkpoints = Checkpoints(self._fs, self._directory, self._group_id)
        names = (
            checkpoints.names()
            if found.done not in (OpeningAction.USE, OpeningAction.REPLAY, OpeningAction.REFUSE)
            else []
        )
        if suspicion is not None:  # peers that were not asked yet count as having no checkpoint
            suspicion = suspicion._replace(peer_checkpoint=suspicion.peer_checkpoint or "")
        wrong = (doubtful(suspicion, name) or unusable(checkpoints, name, log) for name in names)
        self._usable = next((name for name, why in zip(names, wrong, strict=False) if not why), "")
        replay = max(0, log.tail.index - (int(self._usable[:20]) if self._usable else facts.mark.index))
        text = f"{found.what}: {found.done.value}; {replay:,} entries to apply"
        if found.done in _REPLACES:
            own = f"from checkpoint {self._usable}" if self._usable else "there is no sound checkpoint"
            text += f"; without a peer: {own}" if found.done is OpeningAction.RESTORE_FROM_PEER else f"; {own}"
        return text

    def _cure(self, finding: Finding) -> str:
        if finding.severity is Severity.NOTE:
            return "nothing: the next start sees to it"
        if finding.severity is Severity.FATAL:
            return f"raftmq rebuild {self._directory} --plan    (or put it back from a backup: raftmq restore)"
        if not finding.kind.startswith(("state", "table")):
            return "start the node while its peers run: it fetches these bytes from them"
        if self._found is StateCase.WRONG_ROWS:
            return "start the node while its peers run: it takes a checkpoint of one of them"
        if (
            self._found is not None
            and self._found.done in (OpeningAction.RESTORE, OpeningAction.REFUSE)
            and not self._usable
        ):
            return f"raftmq rebuild {self._directory} --plan    (or start it: a peer may have a checkpoint)"
        if self._found is not None and self._found.done is OpeningAction.RESTORE:
            return f"start the node: it replaces the state from checkpoint {self._usable}"
        if finding.kind == "state WAL" or (self._found is StateCase.LOST_ROWS):
            return "start the node: it replays these rows from its log"
        return f"raftmq rebuild {self._directory} --yes    (the start would not notice before it reads these bytes)"


def check_is_of_a_node(directory: Path) -> None:
    """Raises IdentityError, with what to type, unless something in the directory is a node's. The error does not advise
    to move anything, because the directory belongs to another program, or does not exist."""
    if directory.is_dir() and any((directory / name).exists() for name in ("IDENTITY", "log", "state", "SECRET")):
        return
    nodes = " ".join(str(each.parent) for each in sorted(directory.glob("*/data/IDENTITY")))
    where = f"raftmq fsck {nodes or '.raftmq/n1/data'}    (node.data_dir in the node's raftmq.toml says which it is)"
    if not directory.exists():
        raise IdentityError(f"there is no directory {directory}.\nthere is nothing to check\n{where}")
    raise IdentityError(f"{directory} is not a data directory.\nnothing in it is a node's\n{where}")


def _group_id(fs: OsFileSystem, directory: Path) -> int:
    try:
        return identities.load(fs, directory).group_id
    except (RaftLogError, OSError):
        return 1
