"""EVICT: rows go, what is kept in the tier is remembered, and nothing goes that the tier does not hold verified."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.broker.evicted.evicted_pulls import evicted_position, first_offset
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import Entry, EntryType
from statemachine import trim
from statemachine.broker_state import BrokerState
from statemachine.rows import keys, meta_keys, running_digest
from statemachine.rows.kv import CQ, INDEX, META
from statemachine.tier import MoveSegment, TierState
from statemachine.topics.topics import CreateTopic
from statemachine.trim import Kept, Slice, Trim, TrimError, decode, encode
from tests.support.state_kit import applied_in_groups

ROWS = 4


class Tiered:
    """A state whose log is tiered segment by segment, and a record of every message that it stored."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        log.add(EntryType.GENESIS)
        log.command(CreateTopic({"name": "t", "read_queues": 3}, False))
        self.stored: dict[tuple[int, int], list[int]] = {}
        """Positions of all messages of a queue, by offset."""
        self.apply()

    def apply(self) -> None:
        self.state.apply(self.log.entries[self.state.applied.index + 1 :])
        assert self.state.sums.totals == running_digest.count(self.kv)

    def fill(self, queue_id: int, *counts: int) -> None:
        for count in counts:
            at = self.log.tail.end_position
            record = keys.U64.pack(queue_id << 32 | at & 0xFFFFFFFF)
            self.log.messages(self.log.run(1, queue_id, count), keys=record)
            self.stored.setdefault((1, queue_id), []).extend(range(at, at + count))
        self.apply()

    def segments(self) -> list[tuple[Entry, Entry]]:
        """First entries of each closed segment and of the next one."""
        return list(pairwise(self.log.segments()))

    def verify(self, count: int, last: TierState = TierState.VERIFIED) -> None:
        """The next `count` segments come into the tier."""
        end = self.state.tier.end or 0
        for first, following in [each for each in self.segments() if each[0].position >= end][:count]:
            base, size = first.position, following.position - first.position
            span = [following.position, first.index, following.index - 1, 0, 1]
            part = [f"log/{base}", size, b"s" * 16, 7]
            for state in TierState:
                if state <= last:
                    told = (span if state == 1 else None, [part] if state == 2 else None)
                    self.log.command(MoveSegment(base, state, 1, *told))
        self.apply()

    def evict(self, number: int) -> Entry:
        """Has a sweep begin that takes the segments below the one of this number away from here."""
        entry = self.log.segments()[number]
        cut: Entry = self.log.add(
            EntryType.TRIM, encode(Trim(entry.position, entry.index, "age", sliced=True, evicts=True))
        )
        self.apply()
        return cut

    def sweep(self) -> int:
        """Carries out what was begun; the number of slices."""
        count = 0
        while (sweep := self.state.sweep) is not None:
            self.log.add(EntryType.TRIM, encode(Slice(sweep.index, ROWS)))
            self.apply()
            count += 1
        return count

    def trim(self, entry: Entry, *queues: trim.QueueMin) -> None:
        """Takes what is below away from everybody, in one entry."""
        self.log.trim(entry, *queues)
        self.apply()

    def first_above(self, position: int, queue_id: int = 0) -> int:
        """The queue's first offset at or above the position."""
        positions = self.stored.get((1, queue_id), [])
        return sum(at < position for at in positions)

    def offsets(self, queue_id: int = 0) -> tuple[int, int]:
        """(first offset in the tier, first offset here)."""
        return self.state.kept_offset(1, queue_id), self.state.min_offset(1, queue_id)


@pytest.fixture
def tiered(new_log: Callable[..., Any]) -> Tiered:
    return Tiered(new_log(segment_size=4096))


def test_payloads_come_back() -> None:
    said = Trim(5, 7, "age", sliced=True, evicts=True)
    assert decode(encode(said)) == said
    with pytest.raises(TrimError, match="names queues"):
        decode(encode(said._replace(queues=((1, 2, 3),))))


def test_h1_rows_go_and_what_is_kept_is_remembered(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 12)
    tiered.fill(1, 5)
    tiered.fill(0, *[40] * 4)
    tiered.verify(4)
    begin = tiered.log.segments()[4]
    tiered.evict(4)
    state = tiered.state
    assert state.sweep is not None
    assert state.trim_position == 0, "rows that are left refer to what is below"
    assert tiered.sweep() > 2
    first = tiered.first_above(begin.position)
    assert tiered.offsets() == (0, first)
    assert first > 0
    assert state.kept == Kept(0, 0)
    assert (state.trim_position, state.trim_mark.first_index) == (begin.position, begin.index)
    assert state.fetch(1, 0, first, 1)[0].position >= begin.position
    assert state.fetch(1, 0, first - 1, 1) == []
    assert min(keys.index_base(key) for key, _ in tiered.kv.scan(INDEX, keys.FIRST, keys.LAST)) >= begin.position
    assert tiered.offsets(1) == (0, 0), "nothing of this queue went"
    assert tiered.offsets(2) == (0, 0)
    again = BrokerState(tiered.kv)
    assert (again.kept, again.kept_offset(1, 0), again.min_offset(1, 0)) == (Kept(0, 0), 0, first)


@pytest.mark.parametrize("last", [TierState.UPLOADING, TierState.UPLOADED])
def test_nothing_goes_that_is_not_verified(tiered: Tiered, last: TierState) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(2)
    tiered.verify(1, last)
    tiered.evict(3)
    assert tiered.state.sweep is None
    tiered.evict(2)
    assert tiered.state.sweep is not None
    tiered.sweep()
    assert tiered.state.trim_position == tiered.log.segments()[2].position


def test_a_gap_in_what_is_verified_holds_all_above(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(1)
    tiered.verify(1, TierState.UPLOADED)
    tiered.verify(1)
    tiered.evict(3)
    assert tiered.state.sweep is None


def test_while_rows_go_what_is_kept_is_looked_for_in_the_tier(tiered: Tiered) -> None:
    """The log begins at the cut only after the last slice: a queue whose rows are gone by then begins in the tier."""
    tiered.fill(0, *[40] * 8)
    tiered.fill(1, *[40] * 8)
    tiered.fill(0, *[40] * 4)
    tiered.verify(6)
    assert evicted_position(tiered.state) == 0
    cut = tiered.log.segments()[6]
    begun = tiered.evict(6)
    slices = 0
    while tiered.state.sweep is not None:
        assert (tiered.state.trim_position, evicted_position(tiered.state)) == (0, cut.position)
        assert [first_offset(tiered.state, 1, queue) for queue in (0, 1)] == [0, 0]
        tiered.log.add(EntryType.TRIM, encode(Slice(begun.index, ROWS)))
        tiered.apply()
        slices += 1
    assert slices > 2
    assert (tiered.state.trim_position, evicted_position(tiered.state)) == (cut.position, cut.position)
    assert [first_offset(tiered.state, 1, queue) for queue in (0, 1)] == [0, 0]


def test_a_second_eviction_keeps_the_first_beginning(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(5)
    for number in (1, 3, 4):
        tiered.evict(number)
        tiered.sweep()
        begin = tiered.log.segments()[number].position
        assert tiered.offsets() == (0, tiered.first_above(begin))
        assert (tiered.state.kept, tiered.state.trim_position) == (Kept(0, 0), begin)


def test_a_queue_that_lies_in_the_tier_alone_goes_on(tiered: Tiered) -> None:
    tiered.fill(1, 7)
    tiered.fill(0, *[40] * 16)
    tiered.verify(4)
    tiered.evict(4)
    tiered.sweep()
    assert tiered.offsets(1) == (0, 7)
    assert tiered.state.max_offset(1, 1) == 7
    tiered.fill(1, 3)
    assert [item.queue_offset for item in tiered.state.fetch(1, 1, 7, 9)] == [7, 8, 9]
    assert tiered.offsets(1) == (0, 7)


def test_a_trim_of_all_that_is_here_takes_what_is_in_the_tier_too(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(3)
    tiered.evict(3)
    tiered.sweep()
    for number in (3, 5):
        entry = tiered.log.segments()[number]
        tiered.trim(entry)
        first = tiered.first_above(entry.position)
        assert tiered.offsets() == (first, first)
        assert tiered.state.kept == Kept(entry.position, entry.index)
        assert tiered.kv.get(META, meta_keys.KEPT_KEY) is None
        assert len(tiered.kv.get(CQ, keys.cq_bounds_key(1, 0)) or b"") == 16


def test_a_trim_within_the_tier_moves_its_beginning_alone(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(4)
    tiered.evict(4)
    tiered.sweep()
    before = (tiered.offsets()[1], tiered.state.trim_mark)
    entry = tiered.log.segments()[2]
    tiered.trim(entry)
    assert tiered.state.kept == Kept(entry.position, entry.index)
    assert (tiered.offsets()[1], tiered.state.trim_mark) == before
    assert tiered.offsets()[0] <= tiered.first_above(entry.position)
    assert BrokerState(tiered.kv).kept == tiered.state.kept


def test_a_queue_that_its_topic_keeps_for_a_shorter_time(tiered: Tiered) -> None:
    """Its messages go for everybody; those of other queues stay in the tier."""
    for _ in range(8):
        tiered.fill(0, 40)
        tiered.fill(1, 40)
    tiered.verify(4)
    tiered.evict(4)
    tiered.sweep()
    here = tiered.offsets()[1]
    kept = tiered.log.segments()[0]
    tiered.trim(kept, (1, 0, here - 10))
    assert tiered.offsets() == (here - 10, here)
    tiered.trim(kept, (1, 0, here + 5))
    assert tiered.offsets() == (here + 5, here + 5)
    assert tiered.offsets(1)[0] == 0
    assert tiered.state.kept == Kept(0, 0)


def test_objects_stay_while_anybody_may_read_them(tiered: Tiered) -> None:
    tiered.fill(0, *[40] * 16)
    tiered.verify(2)
    tiered.evict(2)
    tiered.sweep()
    result = tiered.state.apply([tiered.log.command(MoveSegment(0, TierState.DELETING, 1, None, None))]).results
    assert result[0][0].code == "invalid"
    tiered.trim(tiered.log.segments()[1])
    result = tiered.state.apply([tiered.log.command(MoveSegment(0, TierState.DELETING, 1, None, None))]).results
    assert result[0][0].ok


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_order_of_cuts_keeps_what_it_should(new_log: Callable[..., Any], seed: int) -> None:
    """Messages, uploads, evictions, TRIMs and slices drawn by a seed, against what was stored; then the same log in
    other runs, with starts in between."""
    rng = Random(seed)
    tiered = Tiered(new_log(segment_size=2048))
    gone = 0
    for _ in range(40):
        step = rng.random()
        if step < 0.5:
            tiered.fill(rng.randrange(2), *[rng.choice([1, 3, 40])] * rng.randint(1, 3))
        elif step < 0.65:
            tiered.verify(rng.randint(1, 3), rng.choice([TierState.VERIFIED] * 5 + [TierState.UPLOADED]))
        elif step < 0.8:
            tiered.evict(rng.randrange(len(tiered.log.segments())))
        elif step < 0.85:
            entry = rng.choice(tiered.log.segments())
            if tiered.state.sweep is None:  # whole ones belong to groups that know no slices
                tiered.trim(entry)
                gone = max(gone, entry.position)
        elif (sweep := tiered.state.sweep) is not None:
            tiered.log.add(EntryType.TRIM, encode(Slice(sweep.index, rng.choice([4, 9, 99]))))
            tiered.apply()
        state = tiered.state
        assert state.kept.position == gone <= state.trim_position
        assert state.trim_position <= max(gone, state.tier.verified_to(gone)), "only what is verified was evicted"
        for queue_id in range(2):
            kept, here = tiered.offsets(queue_id)
            assert kept <= tiered.first_above(gone, queue_id), "no message is hidden that is kept"
            assert kept <= here
            positions = [item.position for item in state.fetch(1, queue_id, here, 10**6)]
            assert positions == tiered.stored.get((1, queue_id), [])[here:]
            if state.sweep is None:
                assert here == tiered.first_above(state.trim_position, queue_id)
    for grouping in range(2):
        state, kv = applied_in_groups(tiered.log.entries, grouping)
        assert list(kv.scan(CQ, b"", keys.LAST)) == list(tiered.kv.scan(CQ, b"", keys.LAST))
        assert state.sums.totals == tiered.state.sums.totals
