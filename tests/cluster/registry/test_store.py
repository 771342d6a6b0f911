"""The directory of a registry process: what was synced is there again, and what is damaged is refused."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cluster.registry import journal
from cluster.registry.journal import AHEAD, ENTRIES_MAX, FIRST_ENTRY, STEP, Entry
from cluster.registry.records import Records, beat_operation
from cluster.registry.store import Store
from cluster.runtime.peer_frames import WireError
from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import CorruptLogError, IdentityError, OutOfSpaceError, StorageError
from raftlog.storage.files.fs import FileSystem, OsFileSystem, read_file
from raftlog.storage.files.sealed_record import HEAD_SIZE, seal
from tests.support.rows import each_row

CLUSTER = bytes(range(16))
DIRECTORY = Path("/registry")
JOURNAL, SNAPSHOT, HARD_STATE = (DIRECTORY / name for name in ("journal", "snapshot", "hard_state"))


def opened(fs: FileSystem, directory: Path = DIRECTORY, *, node: int = 1, cluster: bytes = CLUSTER) -> Store:
    return Store(fs, directory, cluster, node, Records(cluster))


def entry(index: int, term: int = 1, size: int = 20) -> Entry:
    return Entry(f"{term}.{index};".encode().ljust(size, b"x"), index, term)


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [entry(index, term) for index in range(first, last + 1)]


def filled(fs: FileSystem, last: int, *, term: int = 1) -> Store:
    """A store whose entries up to `last` were each synced."""
    store = opened(fs)
    for each in entries(2, last, term):
        store.append([each])
        store.journal.sync()
    return store


def test_a_directory_begins_with_the_first_entry() -> None:
    store = opened(MemoryFileSystem())
    assert store.journal.entries == [FIRST_ENTRY]
    assert (store.term, store.vote, store.committed, store.applied) == (0, 0, 1, 1)


def test_what_was_written_is_read_again_on_a_real_disk(tmp_path: Path) -> None:
    fs = OsFileSystem()
    store = opened(fs, tmp_path / "r")
    store.append(entries(2, 9))
    store.save_vote(4, 2)
    store.committed = 7
    store.append([entry(10, 4)])
    store.close()
    again = opened(fs, tmp_path / "r")
    assert again.journal.entries == [FIRST_ENTRY, *entries(2, 9), entry(10, 4)]
    assert (again.term, again.vote, again.committed) == (4, 2, 7)
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["LOCK", "hard_state", "journal"]


def test_a_journal_of_another_format_is_refused() -> None:
    fs = MemoryFileSystem()
    filled(fs, 3).close()
    data = read_file(fs, JOURNAL)
    head = seal(journal.MAGIC, (journal.FORMAT + 1).to_bytes(2, "big") + data[HEAD_SIZE + 2 : 40])
    file = fs.open(JOURNAL)
    file.pwritev([head], 0)
    file.close()
    with pytest.raises(CorruptLogError, match="format"):
        opened(fs)


def test_a_vote_is_cast_once() -> None:
    store = opened(MemoryFileSystem())
    store.save_vote(3, 2)
    with pytest.raises(Exception, match="once per term"):
        store.save_vote(3, 1)
    assert (store.term, store.vote) == (3, 2)


# --- power ---------------------------------------------------------------------------------------------------------


def work(store: Store, promised: list[Entry]) -> None:
    """Appends batches, votes, cuts and compacts; `promised` holds what a message might have told by now."""
    for round_number in range(4):
        first = store.journal.last.index + 1
        store.append(entries(first, first + 2, round_number + 1))
        store.journal.sync()
        promised[:] = store.journal.entries
        store.committed = first
        store.save_vote(round_number + 2, 1)
        if round_number == 1:
            store.cut_from(first + 1)
            promised[:] = store.journal.entries
        if round_number == 2:
            store.compact(first)
            promised[:] = store.journal.entries
    store.append(entries(store.journal.last.index + 1, store.journal.last.index + 3, 9))


def calls() -> range:
    fs = MemoryFileSystem()
    work(opened(fs), [])
    return range(1, fs.calls + 1)


@each_row("seed", range(5))
def test_no_power_cut_takes_what_was_promised(seed: int) -> None:
    """At each call: the next start finds every entry of which a message may have told, in a directory that it takes."""
    for cut in calls():
        fs, promised = MemoryFileSystem(), [FIRST_ENTRY]
        fs.cut_power_at(cut)
        with pytest.raises(PowerCut):
            work(opened(fs), promised)
        fs.crash(seed * 1000 + cut)
        again = opened(fs)
        have = {each.index: each for each in again.journal.entries}
        first = again.journal.entries[0].index
        if cut_may_be_on_disk(promised, again):
            continue
        assert [have.get(each.index) for each in promised if each.index >= first] == [
            each for each in promised if each.index >= first
        ], cut
        assert first == 1 or again.applied > first
        again.append([entry(again.journal.last.index + 1, 20)])
        again.journal.sync()


def cut_may_be_on_disk(promised: list[Entry], again: Store) -> bool:
    """True if the power failed while entries were cut: then they may be gone, and nothing else."""
    lacking = [each for each in promised if each not in again.journal.entries and each.index > again.applied]
    return [each.index for each in lacking] == [6, 7] and all(each.term == 2 for each in lacking)


@pytest.mark.parametrize("call", ["kill", "fail"])
def test_a_sync_that_failed_is_final(call: str) -> None:
    fs = MemoryFileSystem()
    store = filled(fs, 3)
    store.append([entry(4)])
    fs.fail_call(fs.calls + 1)
    with pytest.raises(StorageError, match="syncing"):
        store.journal.sync()
    for act in (store.journal.sync, lambda: store.append([entry(5)])):
        with pytest.raises(StorageError, match="failed before"):
            act()
    fs.restart()
    if call == "fail":
        fs.crash(1)
    assert opened(fs).journal.entries[:3] == [FIRST_ENTRY, *entries(2, 3)]


def test_what_a_failed_sync_left_in_memory_is_written_again() -> None:
    """Linux marks pages clean whose write has failed: a process that starts anew reads what the disk has not."""
    fs = MemoryFileSystem()
    store = filled(fs, 3)
    store.append([entry(4)])
    fs.fail_call(fs.calls + 1)
    with pytest.raises(StorageError):
        store.journal.sync()
    fs.restart()
    assert opened(fs).journal.last == entry(4)
    fs.crash(1)
    assert opened(fs).journal.last == entry(4)


# --- damage --------------------------------------------------------------------------------------------------------


def test_a_damaged_byte_is_refused_or_was_never_promised() -> None:
    """Wherever it is: no entry is read as another one, and none below the last sync is missing."""
    fs = MemoryFileSystem()
    filled(fs, 5)
    whole = fs.open(JOURNAL).pread(1 << 13, 0)
    end = whole.rindex(b"1.5;") + 20
    for at in range(end):
        fs.restart()
        fs.damage(JOURNAL, at, bytes([whole[at] ^ 0x10]))
        try:
            found = opened(fs).journal.entries
        except (CorruptLogError, IdentityError):
            found = []
        # Nothing follows the last record, which alone may be gone. Bytes between records mean nothing.
        assert found in ([], [FIRST_ENTRY, *entries(2, 4)], [FIRST_ENTRY, *entries(2, 5)]), at
        fs.damage(JOURNAL, 0, whole)
    fs.restart()
    assert opened(fs).journal.last == entry(5)


@each_row("size", [0, 10, 40, 100, 200])
def test_a_journal_that_was_cut_is_refused(size: int) -> None:
    fs = MemoryFileSystem()
    filled(fs, 5)
    fs.open(JOURNAL).truncate(size)
    fs.restart()
    with pytest.raises(CorruptLogError, match="damaged at byte"):
        opened(fs)


def test_a_page_of_zeroes_in_the_middle_is_refused() -> None:
    fs = MemoryFileSystem()
    filled(fs, 400)
    fs.damage(JOURNAL, 4096, bytes(4096))
    fs.restart()
    with pytest.raises(CorruptLogError, match="were on disk"):
        opened(fs)


def test_committed_entries_that_are_gone_are_noticed() -> None:
    """The last records alone, with nothing after them: term and vote were saved later, with the commit index."""
    fs = MemoryFileSystem()
    store = filled(fs, 5)
    store.committed = 5
    store.save_vote(2, 1)
    whole = fs.open(JOURNAL).pread(1 << 30, 0)
    at = whole.rindex(b"1.5;") - 48
    fs.damage(JOURNAL, at, bytes(100))
    fs.restart()
    with pytest.raises(CorruptLogError, match="it was cut, or put back"):
        opened(fs)


def test_the_rest_of_a_failed_append_is_no_entry() -> None:
    """Half a batch was written, and another one of the same length over it: its successor is not taken up."""
    fs = MemoryFileSystem()
    store = filled(fs, 3)
    fs.fail_call(fs.calls + 1, errno.ENOSPC)
    with pytest.raises(OutOfSpaceError):
        store.append([entry(4), entry(5), entry(6), entry(7)])
    store.append([entry(4, 1, size=20)._replace(command=b"y" * 20)])
    store.journal.sync()
    fs.restart()
    assert [each.index for each in opened(fs).journal.entries] == [1, 2, 3, 4]


def test_a_journal_that_has_room_and_takes_no_write_is_full_until_it_does() -> None:
    """So its leader hands over; else it leads, and nothing is accepted, until its watchdog ends it."""
    fs = MemoryFileSystem()
    store = filled(fs, 3)
    journal = store.journal
    fs.fail_call(fs.calls + 1, errno.ENOSPC)
    with pytest.raises(OutOfSpaceError):
        store.append([entry(4)])
    assert journal.is_full
    fs.fail_call(fs.calls + 1, errno.ENOSPC)
    journal.tend()
    assert journal.is_full
    journal.tend()
    assert not journal.is_full
    store.append([entry(4)])
    journal.sync()
    fs.restart()
    assert [each.index for each in opened(fs).journal.entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("gone", [JOURNAL, HARD_STATE])
def test_a_file_that_is_missing_is_refused(gone: Path) -> None:
    fs = MemoryFileSystem()
    filled(fs, 5).compact(4)
    fs.unlink(gone)
    fs.restart()
    with pytest.raises(CorruptLogError, match="is missing"):
        opened(fs)


def test_a_snapshot_that_is_missing_or_damaged_is_refused() -> None:
    fs = MemoryFileSystem()
    filled(fs, 5).compact(4)
    fs.restart()
    assert opened(fs).applied == 4
    fs.restart()
    fs.damage(SNAPSHOT, 30, b"?")
    with pytest.raises(CorruptLogError, match="cannot be used"):
        opened(fs)
    fs.restart()
    fs.unlink(SNAPSHOT)
    with pytest.raises(CorruptLogError, match="is missing"):
        opened(fs)


def test_the_directory_of_another_is_refused() -> None:
    fs = MemoryFileSystem()
    filled(fs, 3)
    with pytest.raises(IdentityError, match="in use"):
        opened(fs)
    fs.restart()
    with pytest.raises(IdentityError, match="belongs to registry node 1"):
        opened(fs, node=2)
    fs.restart()
    with pytest.raises(IdentityError, match="of cluster 0001"):
        opened(fs, cluster=bytes(16))


# --- space ---------------------------------------------------------------------------------------------------------


def fill(fs: MemoryFileSystem, store: Store, size: int) -> None:
    for index in range(store.journal.last.index + 1, ENTRIES_MAX):
        fs.space_left = 0  # half a write that failed makes it less than nothing
        store.append([entry(index, size=size)])


def test_a_full_disk_is_an_error_and_passes() -> None:
    """It is known before the room ahead is used up: elections still have some, and nothing is lost."""
    fs = MemoryFileSystem()
    store = opened(fs)
    fs.space_left = 0
    big = 32 << 10
    while not store.journal.is_full:
        store.append([entry(store.journal.last.index + 1, size=big)])
    known = store.journal.last.index
    with pytest.raises(OutOfSpaceError, match="free space"):
        fill(fs, store, big)
    assert (store.journal.last.index - known) * big > AHEAD // 2
    store.journal.sync()
    held = list(store.journal.entries)
    with pytest.raises(OutOfSpaceError):
        store.compact(len(held))
    with pytest.raises(OutOfSpaceError):
        store.cut_from(len(held))
    assert store.journal.entries == held
    fs.space_left = 100 << 20
    store.journal.tend()
    assert not store.journal.is_full
    store.append([entry(len(held) + 1)])
    store.journal.sync()
    fs.restart()
    assert opened(fs).journal.entries == [*held, entry(len(held) + 1)]


def test_a_disk_that_has_room_for_what_is_needed_is_not_full() -> None:
    """And zeroes that did not all find room are given back."""
    fs = MemoryFileSystem()
    store = opened(fs)
    store.append([entry(2)])
    size = fs.open(JOURNAL).size()
    fs.space_left = STEP // 2
    while fs.open(JOURNAL).size() == size:
        store.append([entry(store.journal.last.index + 1, size=32 << 10)])
    assert fs.open(JOURNAL).size() < size + (64 << 10)
    assert not store.journal.is_full
    fs.space_left = 0
    while not store.journal.is_full:
        store.append([entry(store.journal.last.index + 1, size=32 << 10)])


def test_the_journal_is_bounded() -> None:
    store = opened(MemoryFileSystem())
    while not store.journal.is_full:
        store.append([entry(store.journal.last.index + 1)])
    assert ENTRIES_MAX // 2 < len(store.journal.entries) < ENTRIES_MAX
    with pytest.raises(OutOfSpaceError):
        store.append(entries(store.journal.last.index + 1, store.journal.last.index + ENTRIES_MAX))
    store.compact(store.journal.last.index)
    assert not store.journal.is_full
    assert len(store.journal.entries) == 2


def test_room_is_made_ahead() -> None:
    fs = MemoryFileSystem()
    store = opened(fs)
    sizes = set()
    for _ in range(100):
        store.append([entry(store.journal.last.index + 1, size=32 << 10)])
        sizes.add(fs.open(JOURNAL).size())
    assert 1 < len(sizes) <= 3
    assert max(sizes) < 100 * (32 << 10) + AHEAD + STEP + (64 << 10)


# --- snapshots -----------------------------------------------------------------------------------------------------


def with_beats(fs: FileSystem, directory: Path, last: int, node: int) -> tuple[Store, Records]:
    records = Records(CLUSTER)
    store = Store(fs, directory, CLUSTER, node, records)
    store.append(entries(2, last))
    store.journal.sync()
    records.apply(beat_operation(CLUSTER, 1, last))
    return store, records


def test_a_snapshot_keeps_what_follows_it() -> None:
    fs = MemoryFileSystem()
    store, records = with_beats(fs, DIRECTORY, 9, 1)
    store.compact(6)
    assert store.journal.entries == entries(5, 9)
    fs.restart()
    again = Records(CLUSTER)
    assert Store(fs, DIRECTORY, CLUSTER, 1, again).journal.entries == entries(5, 9)
    assert again.dump() == records.dump()


def test_a_snapshot_of_the_leader_is_taken_only_if_it_is_news() -> None:
    """What a process has confirmed stays: a snapshot that comes late cuts nothing."""
    fs = MemoryFileSystem()
    leader, _ = with_beats(fs, Path("/leader"), 9, 1)
    leader.compact(6)
    assert leader.snapshot is not None
    ahead, ahead_records = with_beats(fs, Path("/ahead"), 8, 2)
    assert ahead.install(leader.snapshot) is None
    assert ahead.journal.entries == [FIRST_ENTRY, *entries(2, 8)]
    assert ahead_records.view.beats == {1: 8}
    behind, behind_records = with_beats(fs, Path("/behind"), 3, 3)
    assert behind.install(leader.snapshot) is not None
    assert behind.journal.entries == entries(5, 6)
    assert behind_records.view.beats == {1: 9}
    astray, _ = with_beats(fs, Path("/astray"), 3, 3)
    astray.append(entries(4, 9, term=1)[:1] + entries(5, 9, term=2))
    assert astray.install(leader.snapshot) is not None
    assert astray.journal.entries == entries(5, 6), "entries after a refuted one are refuted"
    for spoiled in (b"", leader.snapshot[:-1], leader.snapshot.replace(CLUSTER, bytes(16))):
        with pytest.raises(WireError):
            behind.install(spoiled)
    assert behind.journal.entries == entries(5, 6)


def test_a_power_cut_in_an_installation_leaves_the_old_or_the_new() -> None:
    """The snapshot may be there before the journal that begins with it: then the journal's refuted entries go."""
    ends = set()
    for cut in range(1, 15):
        fs = MemoryFileSystem()
        leader, _ = with_beats(fs, Path("/leader"), 9, 1)
        leader.compact(6)
        assert leader.snapshot is not None
        astray, _ = with_beats(fs, DIRECTORY, 3, 3)
        astray.append(entries(4, 8, term=2))
        astray.journal.sync()
        fs.cut_power_at(fs.calls + cut)
        try:
            astray.install(leader.snapshot)
        except PowerCut:
            fs.crash(cut)
        fs.restart()
        again = opened(fs, node=3)
        ends.add(again.applied)
        expected = entries(5, 6) if again.applied == 6 else [FIRST_ENTRY, *entries(2, 3), *entries(4, 8, term=2)]
        assert again.journal.entries == expected, cut
    assert ends == {1, 6}
