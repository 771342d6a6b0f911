"""Recovers the log at a start, in three steps: the files (recovery_files.py), the end of the log (recovery_active.py),
and a last file without frames. recovery_table.py lists every state and its handling.

The work is bounded by the part above the newest kept index (active_index.py), whatever the size of log and segments.
Bytes that are cut, and files in the way, go to trash/ with a report. Only files that a trim left behind are deleted.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.files.run_file import load_run
from raftlog.storage.files.trash import TrashReport
from raftlog.storage.recovery.recovery_active import clean_mark, mark_end, recover_active
from raftlog.storage.recovery.recovery_files import check_sealed, open_files
from raftlog.storage.recovery.recovery_run import RecoveryReport, RecoveryRun
from raftlog.storage.segments.sealed_index import load_index
from raftlog.storage.segments.segment import Segment, newest_seq
from raftlog.types import LogTail

__all__ = ["Recovered", "Recovery", "RecoveryReport"]


class Recovered(NamedTuple):
    """A recovered log, ready to append to; the last segment is active (open, index in memory)."""

    segments: list[Segment]
    tail: LogTail
    mark_seq: int
    report: RecoveryReport


class Recovery:
    """One recovery of DATA/log. Raises CorruptLogError or OSError; recovery_table.py says what it changes."""

    def __init__(
        self, fs: FileSystem, directory: Path, group_id: int, *, now_ms: int = 0, committed_index: int = -1
    ) -> None:
        """`now_ms`: wall clock, for reports. `committed_index`: an index known to be committed; RUN may know a higher
        one."""
        self._ran = ran = load_run(fs, directory, group_id)
        committed = max(committed_index, ran.synced_index if ran else -1)
        self._run = RecoveryRun(fs, directory, group_id, now_ms=now_ms, committed_index=committed)

    def run(self) -> Recovered:
        """Recovers the log and opens it for appending."""
        run = self._run
        run.fs.fsync_dir(run.log)  # after a killed process, a rename may be visible and yet not on disk
        segments, page = open_files(run)
        for segment, following in pairwise(segments):
            check_sealed(run, segment, following.header.previous)
        tail, clean = recover_active(run, segments[-1], page)
        if tail.end_position == segments[-1].base:
            tail = self._step_back(segments)
        self._look_for_loss(tail)
        self._drop_clean_marker()
        file = segments[-1].file
        assert file is not None
        report = RecoveryReport(
            clean=clean,
            segments=len(segments),
            bytes_scanned=run.bytes_scanned,
            entries=tail.index + 1 - segments[0].header.base_index,
            torn_bytes_cut=run.torn,
            reasons=run.reasons,
            rows=tuple(run.rows),
            scanned_from=run.scanned_from,
            set_aside=tuple(run.aside),
            damaged=tuple(run.damaged),
            vote_withheld=run.withheld,
            bytes_zeroed=run.bytes_zeroed,
        )
        return Recovered(segments, tail, newest_seq(file), report)

    def _step_back(self, segments: list[Segment]) -> LogTail:
        """Makes the file before the last one active again, because the last one contains no frame. The file before is
        complete and was durable before the roll. Raises CorruptLogError if it does not exist."""
        run = self._run
        empty = segments.pop()
        tail = empty.header.previous
        if not segments or not run.fs.exists(segments[-1].path):
            also = "and the file before it is missing" if segments else "not even GENESIS"
            raise CorruptLogError(
                f"{empty.path} holds no frame, {also}: restore it from a backup, or replace the node."
            )
        assert empty.file is not None
        empty.file.close()
        active = segments[-1]
        active.file = run.fs.open(active.path)
        loaded = load_index(run.fs, active, tail, run.group_id)
        run.damaged += loaded.damaged
        active.index = loaded.segment_index
        active.tell(active.index)
        mark_end(active.file, tail)
        where = run.set_aside(
            empty.path, TrashReport("it held no complete frame", position=empty.base, index=tail.index + 1)
        )
        run.note(
            "last file without a frame",
            f"{empty.path.name} held no complete frame: set aside as {where.name} in {where.parent}",
        )
        return tail

    def _look_for_loss(self, tail: LogTail) -> None:
        """Compares the log with the files beside it (RUN, CLEAN). If they know of later entries, the end of the log was
        lost together with segment files, and the vote is withheld."""
        run, ran = self._run, self._ran
        known = [(ran.synced_term, ran.synced_index, layout.RUN)] if ran else []
        if (mark := clean_mark(run)) is not None:
            known.append((mark.term, mark.next_index - 1, layout.CLEAN))
        for term, index, name in known:
            if index > tail.index:
                why = f"{name} tells of entry {index} of term {term} on this disk, the log ends with entry {tail.index}"
                run.withhold_vote(why, index, term)
                run.note("missing last segment", f"{why}: this node does not vote until it has caught up")

    def _drop_clean_marker(self) -> None:
        path = self._run.log / layout.CLEAN
        if self._run.fs.exists(path):
            self._run.fs.unlink(path)
            self._run.fs.fsync_dir(self._run.log)
