"""The offline check of the small files: IDENTITY, hard state, RUN, VOTE_WITHHELD, INSTALL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raftlog.errors import CorruptLogError, IdentityError
from raftlog.storage.files import hard_state, install_file, layout, run_file, vote_withheld
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import FileSystem, read_file
from raftlog.storage.verify.findings import Finding, IrrelevantRange, Severity


def check_identity(fs: FileSystem, directory: Path) -> Iterator[Finding]:
    """Checks that IDENTITY exists and is intact; yields the findings."""
    path = directory / layout.IDENTITY
    try:
        if fs.exists(path):
            identities.decode(read_file(fs, path), path)
            return
        text = f"{path} is missing: the owner of these votes and this log is unknown"
    except IdentityError as error:
        text = str(error)
    yield Finding(path, 0, 0, "identity", Severity.FATAL, text)


def check_hard_state(fs: FileSystem, directory: Path, group_id: int, last_term: int) -> Iterator[Finding]:
    """Checks that term and vote are known, and not from before the log's last term; yields the findings."""
    path = directory / layout.HARD_STATE
    if not fs.exists(path):
        yield Finding(path, 0, 0, "hard state", Severity.FATAL, "missing: the node has forgotten its vote")
        return
    data = read_file(fs, path)
    slots = []
    for offset in hard_state.SLOT_OFFSETS:
        try:
            slots.append(hard_state.decode_slot(data[offset : offset + hard_state.SLOT_SIZE], group_id))
        except CorruptLogError as error:
            yield Finding(path, offset, hard_state.SLOT_SIZE, "hard state", Severity.FATAL, str(error))
            return
    good = [slot for slot in slots if slot is not None]
    if not good:
        yield Finding(
            path, 0, len(data), "hard state", Severity.FATAL, "both slots are damaged: the node has forgotten its vote"
        )
        return
    newest = max(slot.version for slot in good)
    for offset, slot in zip(hard_state.SLOT_OFFSETS, slots, strict=True):
        if slot is None or slot.version < newest:
            state = "damaged" if slot is None else "older"
            text = f"one slot is {state}: the other counts, and both are written again at the next start"
            yield Finding(path, offset, hard_state.SLOT_SIZE, "hard state", Severity.NOTE, text)
    term = max(good, key=lambda slot: slot.version).state.term
    if term < last_term:
        text = (
            f"term {term} is older than the log, whose last entry is of term {last_term}: it may have forgotten a vote"
        )
        yield Finding(path, 0, 0, "hard state", Severity.FATAL, text)


def check_run(fs: FileSystem, directory: Path, group_id: int) -> Iterator[Finding]:
    """Checks that RUN's slots are intact, or were never written; yields the findings."""
    path = directory / layout.RUN
    if not fs.exists(path):
        return
    data = read_file(fs, path)
    for offset in run_file.SLOT_OFFSETS:
        slot = data[offset : offset + run_file.SLOT_SIZE]
        try:
            damaged = any(slot) and run_file.decode_slot(slot, group_id) is None
            text = "one slot is damaged: the other counts, if it is good"
        except CorruptLogError as error:
            damaged, text = True, str(error)
        if damaged:
            yield Finding(path, offset, run_file.SLOT_SIZE, "run", Severity.NOTE, text)


def check_withheld(fs: FileSystem, directory: Path, group_id: int) -> Iterator[Finding]:
    """Yields a finding if VOTE_WITHHELD exists, intact or not."""
    path = directory / layout.VOTE_WITHHELD
    if not fs.exists(path):
        return
    try:
        withheld = vote_withheld.decode(read_file(fs, path), group_id)
    except CorruptLogError as error:
        yield Finding(path, 0, 0, "vote withheld", Severity.FATAL, str(error))
        return
    text = f"the vote is withheld: {withheld.reason}" if withheld else "damaged, so the vote is withheld"
    yield Finding(path, 0, 0, "vote withheld", Severity.REPAIRABLE, text)


def check_install(fs: FileSystem, directory: Path, group_id: int) -> Iterator[Finding]:
    """Yields a finding if INSTALL exists: what else is wrong with log/ does not matter if it is replaced."""
    path = directory / layout.INSTALL
    if not fs.exists(path):
        return
    try:
        install = install_file.decode(read_file(fs, path), group_id)
    except CorruptLogError as error:
        yield Finding(path, 0, 0, "install", Severity.FATAL, str(error))
        return
    if install is None:
        text = "damaged: the log stays, unless it was set aside already"
    else:
        text = (
            f"the next start replaces the log by the one in {layout.INSTALL_DIR}/, entries {install.first_index}.."
            f"{install.last.index}, unless the old one holds that last entry"
        )
    yield Finding(path, 0, 0, "install", Severity.NOTE, text)


def irrelevant(fs: FileSystem, directory: Path) -> Iterator[IrrelevantRange]:
    """Yields the bytes between and after the slots of hard_state and RUN."""
    for name, offsets, size in (
        (layout.HARD_STATE, hard_state.SLOT_OFFSETS, hard_state.SLOT_SIZE),
        (layout.RUN, run_file.SLOT_OFFSETS, run_file.SLOT_SIZE),
    ):
        path = directory / name
        if not fs.exists(path):
            continue
        end = fs.open(path).size()
        for offset, stop in zip(offsets, (offsets[1], end), strict=True):
            if offset + size < min(stop, end):
                yield IrrelevantRange(
                    path, offset + size, min(stop, end) - offset - size, "between and behind the slots"
                )
