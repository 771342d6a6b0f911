"""Replaces a log that no leader can continue any more by one that was built beside it (log_build.py).

DATA/INSTALL is the decision. The next opening carries it out before it reads anything, and repeats it after a crash:
the old log goes to trash/, install/log becomes log/, INSTALL is removed last. The existing directories show which steps
were done::

    log/    install/log   next step
    there   there         check whether the old log may still be replaced
    gone    there         it was set aside already: install/log becomes log/
    there   gone          all is in place: remove INSTALL

The old log may be replaced if it does not hold the last entry of the new one, which is committed: then no later entry
in it can ever be committed, and the new log covers the earlier ones. If a leader brought the old log forward after the
decision, it holds that entry, perhaps with later acknowledged ones, and stays: the build is removed instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, DamagedLogError
from raftlog.storage.files import install_file, layout, vote_withheld
from raftlog.storage.files.fs import FileSystem, if_readable, read_file
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.install_file import Install
from raftlog.storage.files.trash import TrashReport, set_aside
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.log_build import abandon, discard
from raftlog.types import NOBODY, HardState


class Installed(NamedTuple):
    """The result of opening a directory with DATA/INSTALL."""

    done: bool
    """True if the log was replaced by the new one; False if the old one stayed."""
    why: str
    """The reason why the log was replaced or stayed, for people."""
    checkpoint: str = ""
    """The name of the checkpoint that belongs to the new log; "" if it is no longer known."""
    set_aside: str = ""
    """The name of the old log in trash/; "" if an earlier opening moved it."""


def finish_install(
    fs: FileSystem, directory: Path, group_id: int, hard_state: HardStateStore, now_ms: int = 0
) -> Installed | None:
    """Completes or abandons the replacement that DATA/INSTALL decides. Returns None if there is no INSTALL, or neither
    log/ nor install/log. The directory must be locked.

    `hard_state` is raised to the term of the new log. Raises CorruptLogError if this version does not read the format
    of INSTALL, StorageError, OSError.
    """
    path = directory / layout.INSTALL
    if not fs.exists(path):
        return None
    log, built = directory / layout.LOG, directory / layout.INSTALL_DIR / layout.LOG
    install = _load(fs, path, group_id)
    aside, why = "", "finished what an earlier start began"
    if fs.exists(built):
        if fs.exists(log):
            stays = _why_it_stays(fs, directory, group_id, install, hard_state, now_ms)
            if install is None or stays:
                return _give_up(fs, directory, stays)
            why = _why(install)
            _raise_term(hard_state, install.last.term)
            aside = set_aside(fs, log, directory / layout.TRASH, TrashReport(why, now_ms)).name
        fs.rename(built, log)
        fs.fsync_dir(built.parent)
        fs.fsync_dir(directory)
    elif not fs.exists(log):
        return None  # neither log/ nor install/log exists: opening the log raises the error
    discard(fs, directory)
    fs.unlink(path)
    fs.fsync_dir(directory)
    return Installed(True, why, install.checkpoint if install else "", aside)


def _load(fs: FileSystem, path: Path, group_id: int) -> Install | None:
    """Returns the decision in INSTALL; None if it cannot be read. Without it, a replacement that has begun is finished,
    and no replacement is begun."""
    return if_readable(lambda: install_file.decode(read_file(fs, path), group_id))


def _why(install: Install) -> str:
    return (
        f"replaced by a log from a peer, entries {install.first_index}..{install.last.index}: what this one needed "
        "next is trimmed there"
    )


def _why_it_stays(
    fs: FileSystem, directory: Path, group_id: int, install: Install | None, hard_state: HardStateStore, now_ms: int
) -> str:
    """Returns the reason why the old log must stay; "" if it may be replaced.

    If the old log cannot be opened, it is unknown what it contains above the new log, and whether that was
    acknowledged. The vote is therefore withheld first.
    """
    if install is None:
        return "INSTALL is damaged: the log stays, and a new one is fetched if it is needed"
    committed = hard_state.load().commit_index
    try:
        log = SegmentedLog.open(fs, directory, group_id=group_id, now_ms=now_ms, committed_index=committed)
    except CorruptLogError as error:
        why = f"the log was replaced by one from a peer, and could not be opened any more: {error}"
        withheld = VoteWithheld(why, install.last.index, install.last.term, now_ms)
        vote_withheld.withhold(fs, directory, withheld, group_id)
        return ""
    stays = holds(log, install)
    log.close(clean=True)
    return stays


def holds(log: SegmentedLog, install: Install) -> str:
    """Returns a text for people if the log contains the last entry of the install or begins above it; "" if neither."""
    index = install.last.index
    if index < log.first_index:
        return f"the log was brought forward meanwhile: it begins above entry {index}, with {log.first_index}"
    if index > log.tail.index:
        return ""
    try:
        (entry,) = log.read_entries(index, index + 1, 1)
        same = entry.header_crc == install.header_crc
    except DamagedLogError:  # equal terms at an index mean the same entry
        same = [term for first, term in log.term_ranges() if first <= index][-1] == install.last.term
    return f"the log was brought forward meanwhile, by a leader: it holds entry {index}" if same else ""


def _give_up(fs: FileSystem, directory: Path, why: str) -> Installed:
    abandon(fs, directory)
    return Installed(False, why)


def _raise_term(hard_state: HardStateStore, term: int) -> None:
    """Raises the saved term to `term`: a term must be on disk before its entries."""
    saved = hard_state.load()
    if term > saved.term:
        hard_state.save(HardState(term, NOBODY, saved.commit_index))
