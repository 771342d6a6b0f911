"""The state that the steps of one recovery share: the disk, the report, and the only methods that change anything."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.errors import out_of_space
from raftlog.storage.files import layout, vote_withheld
from raftlog.storage.files.fs import File, FileSystem
from raftlog.storage.files.trash import TrashReport, set_aside, set_aside_bytes
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.segments.damage import DamagedRange


class RecoveryReport(NamedTuple):
    """The report of an opening, for people and for metrics. The caller measures durations."""

    clean: bool
    """The last stop was orderly: nothing was scanned."""
    segments: int
    bytes_scanned: int
    entries: int
    """Entries in the log."""
    torn_bytes_cut: int
    """Bytes of unacknowledged frames that a crash left incomplete."""
    reasons: list[str]
    """One sentence per finding or action, and why it is safe."""
    rows: tuple[str, ...] = ()
    """Names of the rows of recovery_table.py that applied, in order."""
    scanned_from: int = 0
    """Position from which frames were read: below it, the log and its index were known as durable."""
    set_aside: tuple[str, ...] = ()
    """Names in trash/ of the files set aside."""
    damaged: tuple[DamagedRange, ...] = ()
    """Damage found at the start; reads may find more."""
    vote_withheld: VoteWithheld | None = None
    """Set if this start, or an earlier one, withheld the vote."""
    bytes_zeroed: int = 0
    """The part of `bytes_scanned` that is zeroes behind the last frame, where the next frames will be written."""


class RecoveryRun:
    """One recovery: its disk, its report, and the methods that change files."""

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, *, now_ms: int, committed_index: int) -> None:
        """`committed_index`: the highest index that the caller knows to be committed (-1: none)."""
        self.fs = fs
        self.directory = directory
        self.log = directory / layout.LOG
        self.group_id = group_id
        self.now_ms = now_ms
        self.committed_index = committed_index
        self.reasons: list[str] = []
        self.rows: list[str] = []
        self.bytes_scanned = self.bytes_zeroed = 0
        self.scanned_from = 0
        self.torn = 0
        self.damaged: list[DamagedRange] = []
        self.aside: list[str] = []
        self.withheld = vote_withheld.load(fs, directory, group_id)

    def note(self, row: str, sentence: str) -> None:
        """Notes that a row of the recovery table applied."""
        if row not in self.rows:
            self.rows.append(row)
        self.reasons.append(sentence)

    def found_damage(self, row: str, damaged: DamagedRange) -> None:
        """Records a damaged range below the durable point."""
        self.damaged.append(damaged)
        self.note(
            row,
            f"entries {damaged.first_index}..{damaged.last_index} at positions {damaged.first_position}.."
            f"{damaged.end_position} are damaged ({damaged.why}): kept back until a peer's copy is in place; the end "
            "of the log is known, so this node votes, but it does not campaign",
        )

    def withhold_vote(self, reason: str, index: int, term: int) -> None:
        """Returns when the vote is withheld on disk. Nothing is cut before."""
        self.withheld = vote_withheld.withhold(
            self.fs, self.directory, VoteWithheld(reason, index, term, self.now_ms), self.group_id
        )

    def set_aside(self, path: Path, report: TrashReport) -> Path:
        """Moves a file to trash/."""
        where = set_aside(self.fs, path, self.directory / layout.TRASH, report._replace(now_ms=self.now_ms))
        self.aside.append(where.name)
        return where

    def set_aside_bytes(self, file: File, offset: int, size: int, report: TrashReport, *, must: bool = False) -> None:
        """Copies bytes to trash/ before they are cut. A full disk prevents the cut only if the copy `must` be made:
        bytes that were never acknowledged may go without one."""
        try:
            where = set_aside_bytes(
                self.fs, file, offset, size, self.directory / layout.TRASH, report._replace(now_ms=self.now_ms)
            )
        except OSError as error:
            if must or not out_of_space(error):
                raise
            self.reasons.append(f"no space to keep the {size} bytes cut from {file.path.name} in trash/")
        else:
            self.aside.append(where.name)
