"""The state that the steps of one recovery share: the disk, the report, and the only methods that change files."""

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
    """The report on an opening of the log, for people and for metrics. The caller measures durations."""

    clean: bool
    """True if the last stop was orderly, so that nothing was scanned."""
    segments: int
    bytes_scanned: int
    entries: int
    """The number of entries in the log."""
    torn_bytes_cut: int
    """The bytes of unacknowledged frames that a crash left incomplete and that were cut."""
    reasons: list[str]
    """One sentence per finding or action, with the reason why it is safe."""
    rows: tuple[str, ...] = ()
    """The names of the rows of recovery_table.py that applied, in order."""
    scanned_from: int = 0
    """The position from which frames were read: below it, the log and its index were known to be durable."""
    set_aside: tuple[str, ...] = ()
    """The names in trash/ of the files that were set aside."""
    damaged: tuple[DamagedRange, ...] = ()
    """The damaged ranges found at the start; reads may find more."""
    vote_withheld: VoteWithheld | None = None
    """The reason why this start, or an earlier one, withheld the vote; None if the vote is not withheld."""
    bytes_zeroed: int = 0
    """The part of `bytes_scanned` that is zeroes after the last frame, where the next frames will be written."""


class RecoveryRun:
    """The state of one recovery: its disk, its report, and the methods that change files."""

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
        """Adds to the report that a row of the recovery table applied, with a sentence for people."""
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
        """Withholds the vote; returns when that is on disk. The caller cuts bytes only afterwards."""
        self.withheld = vote_withheld.withhold(
            self.fs, self.directory, VoteWithheld(reason, index, term, self.now_ms), self.group_id
        )

    def set_aside(self, path: Path, report: TrashReport) -> Path:
        """Moves a file to trash/; returns its path there."""
        where = set_aside(self.fs, path, self.directory / layout.TRASH, report._replace(now_ms=self.now_ms))
        self.aside.append(where.name)
        return where

    def set_aside_bytes(self, file: File, offset: int, size: int, report: TrashReport, *, must: bool = False) -> None:
        """Copies bytes to trash/ before they are cut. If the disk is full, the cut is prevented only with `must`: bytes
        that were never acknowledged may be cut without a copy."""
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
