"""DATA/EARLY: what is noted before an early answer leaves, what of it survives, and what a damaged page does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cluster.replication.acks.early_answer_file import RECORDS_MAX, Ledger, LostAnswers, decode, encode
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.types import EntryId

DATA = Path("/data")


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.mkdir(DATA)
    return made


FROZEN = bytes.fromhex(
    "524d51455572fa5c000a00000000000100000000000000050000000000000001000000000000000200000000000000070000000300000000"
)


def test_its_bytes_are_frozen() -> None:
    """Another release reads what this one noted: a change here is a new format."""
    assert encode({EntryId(2, 7): 3}, LostAnswers(5, 1)) == FROZEN
    assert decode(FROZEN) == ({EntryId(2, 7): 3}, LostAnswers(5, 1))


def test_it_survives_the_end_of_the_process(fs: MemoryFileSystem) -> None:
    ledger = Ledger(fs, DATA, 4)
    assert ledger.note(EntryId(2, 7), 3)
    assert ledger.note(EntryId(2, 8), 1)
    assert ledger.note(EntryId(2, 8), 2), "more sends of the same entry"
    ledger.kept(EntryId(2, 7))
    assert ledger.note(EntryId(2, 9), 5)
    fs.restart()
    again = Ledger(fs, DATA, 4)
    assert again.undecided == {EntryId(2, 8): 3, EntryId(2, 9): 5}
    assert again.lose(EntryId(2, 8)) == 3
    assert again.lose(EntryId(2, 8)) == 0
    fs.restart()
    assert Ledger(fs, DATA, 4).lost == LostAnswers(3, 1)


def test_without_room_the_answer_waits(fs: MemoryFileSystem) -> None:
    ledger = Ledger(fs, DATA, 2)
    assert [ledger.note(EntryId(1, index), 1) for index in (1, 2, 3)] == [True, True, False]
    assert ledger.note(EntryId(1, 2), 4), "the entry has its place already"
    ledger.kept(EntryId(1, 1))
    assert ledger.note(EntryId(1, 3), 1)


def test_what_cannot_be_noted_is_not_answered_early(fs: MemoryFileSystem) -> None:
    ledger = Ledger(fs, DATA, 4)
    assert ledger.note(EntryId(1, 1), 1)
    fs.fail_call(fs.calls + 1, errno.EIO)
    assert not ledger.note(EntryId(1, 2), 1)
    assert ledger.undecided == {EntryId(1, 1): 1}
    assert ledger.failure
    assert ledger.note(EntryId(1, 2), 1)
    assert not ledger.failure


@pytest.mark.parametrize("at", [0, 5, 9, 13, 33, 50])
def test_a_damaged_page_counts_as_empty(fs: MemoryFileSystem, at: int) -> None:
    ledger = Ledger(fs, DATA, 4)
    assert ledger.note(EntryId(2, 7), 3)
    page = bytearray(fs.open(DATA / "EARLY").pread(4096, 0))
    page[at] ^= 1
    assert decode(bytes(page)) is None
    fs.damage(DATA / "EARLY", at, bytes([page[at]]))
    again = Ledger(fs, DATA, 4)
    assert not again.undecided
    assert again.note(EntryId(3, 1), 1)


def test_a_full_page_fits() -> None:
    records = {EntryId(1, index): index for index in range(RECORDS_MAX)}
    page = encode(records, LostAnswers(1, 2))
    assert len(page) <= 4096
    assert decode(page) == (records, LostAnswers(1, 2))
    assert decode(page[:-1]) is None
    assert decode(b"") is None
