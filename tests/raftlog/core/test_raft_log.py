"""The log's parts: term ranges against a plain list, cache bounds, segment base across truncation, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.core.state.config import RaftConfig
from raftlog.core.state.entry_cache import EntryCache
from raftlog.core.state.log import READ_BYTES, READ_ENTRIES, RaftLog
from raftlog.core.state.terms import TermRanges
from raftlog.errors import InvariantViolationError
from raftlog.frame import make_entry, tail_after
from raftlog.types import FLAG_ROLL, NOBODY, Entry, HardState, LogTail, NodeId
from tests.support.raft_group import GENESIS, Disk, chain, raw_of

ascending_terms = st.lists(st.integers(0, 5), max_size=20).map(sorted)


@given(ascending_terms, st.integers(0, 20), st.integers(-1, 20), st.integers(0, 6))
def test_term_ranges_agree_with_a_list(terms: list[int], cut: int, index: int, term: int) -> None:
    ranges = TermRanges()
    for at, value in enumerate(terms):
        ranges.add(at, value)
    ranges.truncate_from(cut)
    terms = terms[:cut]
    assert [ranges.at(at) for at in range(len(terms))] == terms
    index = min(index, len(terms) - 1)
    fitting = [(at, value) for at, value in enumerate(terms) if at <= index and value <= term]
    assert ranges.last_not_above(index, term) == max(fitting, default=(-1, 0))


def open_log(disk: Disk, cache_bytes_max: int = 1 << 20) -> RaftLog:
    return RaftLog(disk, commit_index=0, applied_index=0, cache_bytes_max=cache_bytes_max)


def entry_after(tail: LogTail, size: int = 0, term: int = 1, segment_size: int = 1 << 30) -> Entry:
    return make_entry(
        tail, term=term, entry_type=3, payload=bytes(size), timestamp_ms=0, group_id=1, segment_size=segment_size
    )


def propose(log: RaftLog, size: int, term: int = 1, segment_size: int = 1 << 30) -> None:
    log.append(entry_after(log.tail, size, term, segment_size))


def persist(log: RaftLog, disk: Disk) -> None:
    entries = log.hand_to_disk()
    disk.replace(entries[0].index, entries)
    log.persisted(entries[-1].id)


def test_memory_does_not_grow_with_the_log() -> None:
    disk = Disk()
    log = open_log(disk, cache_bytes_max=50_000)
    for _ in range(500):
        propose(log, 1000)
        persist(log, disk)
        assert log.cache.bytes <= 50_000
    assert log.cache.first_index > 400
    assert [entry.index for entry in log.read(1, 501, 1 << 30)] == list(range(1, log.cache.first_index))
    assert [entry.index for entry in log.read(499, 501, 1 << 30)] == [499, 500]


def test_what_only_memory_holds_is_kept_whatever_its_size() -> None:
    log = open_log(Disk(), cache_bytes_max=1000)
    for _ in range(50):
        propose(log, 1000)
    log.hand_to_disk()
    log.persisted(log.entry(30).id)
    assert log.persisted_index == 30
    assert log.cache.first_index == 31
    assert len(log.read(31, 51, 1 << 30)) == 20


def test_one_read_of_the_disk_is_bounded_in_bytes_and_entries() -> None:
    log = open_log(Disk(chain([1] * (READ_ENTRIES + 5))), cache_bytes_max=1)
    assert len(log.read(1, log.tail.index + 1, 1 << 30)) == READ_ENTRIES
    assert len(log.read(READ_ENTRIES, log.tail.index + 1, 1 << 30)) == 6
    disk = Disk()
    log = open_log(disk, cache_bytes_max=1)
    for _ in range(20):
        propose(log, READ_BYTES // 8)
        persist(log, disk)
    assert len(log.read(1, log.tail.index + 1, 1 << 30)) == 7


def test_a_node_that_has_much_to_apply_again_reads_two_runs_ahead() -> None:
    last = 5 * READ_ENTRIES
    raw = raw_of(Disk(chain([1] * last), HardState(1, NOBODY, last)), RaftConfig(NodeId(1), 1))
    given: list[int] = []

    def take() -> None:
        while raw.has_ready():
            given.extend(entry.index for entry in raw.ready().committed_entries)

    take()
    assert len(given) == 2 * READ_ENTRIES
    raw.applied(given[0])
    take()
    assert len(given) == 2 * READ_ENTRIES, "a part of a run is none"
    raw.applied(READ_ENTRIES)
    take()
    assert len(given) == 3 * READ_ENTRIES
    while given[-1] < last:
        raw.applied(given[-1])
        take()
    assert given == list(range(1, last + 1))


def test_reads_are_bounded_and_hold_at_least_one() -> None:
    cache = EntryCache(0, 1 << 20)
    for entry in chain([1] * 9):
        cache.append(entry)
    size = cache.entries[1 - cache.first_index].size
    assert len(cache.slice_bytes(1, 10, 1)) == 1
    assert len(cache.slice_bytes(1, 10, 3 * size)) == 3
    assert len(cache.slice_bytes(1, 10, 3 * size - 1)) == 2
    assert len(cache.slice_bytes(1, 10, 1 << 20)) == 9


def test_truncation_returns_to_the_segment_of_the_entry_before() -> None:
    disk = Disk(chain([1]))
    log = open_log(disk)
    for _ in range(12):
        propose(log, 100, segment_size=500)
    tails = {log.entry(0).index: tail_after(LogTail(0, -1, 0, 0, 0, 0), GENESIS)}
    for index in range(1, log.tail.index + 1):
        tails[index] = tail_after(tails[index - 1], log.entry(index))
    assert sum(bool(log.entry(index).flags & FLAG_ROLL) for index in range(2, 14)) > 2
    for index in range(log.tail.index, 1, -1):
        other = entry_after(tails[index - 1], term=2)
        log.append_received([other])
        assert log.tail == tail_after(tails[index - 1], other)


def test_segment_base_from_before_the_start_is_never_guessed_too_high() -> None:
    whole = open_log(Disk())
    for _ in range(9):
        propose(whole, 100, segment_size=500)
    disk = Disk([whole.entry(index) for index in range(10)])
    restarted = open_log(disk)
    base = disk.tails[2].segment_base
    restarted.append_received([entry_after(disk.tails[2], term=2)])
    assert restarted.tail.index == 3
    assert restarted.tail.segment_base <= base


def test_a_broken_chain_is_never_accepted() -> None:
    log = open_log(Disk())
    entries = chain([1, 1, 1])
    with pytest.raises(InvariantViolationError, match="breaks the chain"):
        log.append_received([entries[1], entries[3]])


def test_two_entries_with_one_id_are_noticed() -> None:
    log = open_log(Disk())
    log.append_received(chain([1])[1:])
    other = make_entry(
        tail_after(LogTail(0, -1, 0, 0, 0, 0), GENESIS),
        term=1,
        entry_type=3,
        payload=b"other",
        timestamp_ms=1000,
        group_id=1,
        segment_size=1 << 30,
    )
    with pytest.raises(InvariantViolationError, match="two entries with id"):
        log.append_received([other])


def test_a_committed_entry_is_never_cut() -> None:
    log = open_log(Disk(chain([1, 1])))
    log.commit_to(2)
    with pytest.raises(InvariantViolationError, match="committed here"):
        log.append_received(chain([1, 2])[2:])


def test_state_machine_ahead_of_the_log_is_refused() -> None:
    with pytest.raises(InvariantViolationError, match="entries were lost"):
        RaftLog(Disk(chain([1])), commit_index=0, applied_index=7, cache_bytes_max=1)


def test_commit_hint_beyond_the_log_is_clamped() -> None:
    disk = Disk(chain([1]), HardState(1, NodeId(0), 9))
    assert RaftLog(disk, commit_index=9, applied_index=0, cache_bytes_max=1).commit_index == 1
