"""The running sums are those of a scan, after any run, restart and range removal; what differs shows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import Entry, EntryType
from statemachine.broker_state import BrokerState
from statemachine.rows import meta_keys, running_digest
from statemachine.rows.kv import CQ, META, TOPICS, Batch
from statemachine.topics.topics import CreateTopic

DrawLog = Callable[[int, int], list[Entry]]
seeds = st.integers(0, 2**32)


@settings(max_examples=12, deadline=None)
@given(seed=seeds, grouping=seeds)
def test_running_sums_are_those_of_a_scan(draw_log: DrawLog, seed: int, grouping: int) -> None:
    entries, rng, kv = draw_log(seed, 40), Random(grouping), MemoryKV()
    state = BrokerState(kv)
    single = BrokerState(MemoryKV())
    at = 0
    while at < len(entries):
        group = entries[at : at + rng.choice([1, 2, 7, 30])]
        at += len(group)
        if rng.random() < 0.3:
            state = BrokerState(kv)
        state.apply(group)
        for entry in group:
            single.apply([entry])
        assert state.sums.totals == running_digest.count(kv) == single.sums.totals
    markers = [entry.index for entry in entries if entry.type in running_digest.MARKERS]
    remembered = {index: sums for index in markers if (sums := state.sums.at(index)) is not None}
    assert all(single.sums.at(index) == sums for index, sums in remembered.items()), "a marker in the middle of a run"


def test_markers_are_remembered_and_the_oldest_forgotten(new_log: Callable[..., Any]) -> None:
    log, state = new_log(), BrokerState(MemoryKV())
    state.apply([log.add(EntryType.GENESIS), log.add(EntryType.NOOP)])
    assert state.sums.newest == 1
    before = state.sums.at(1)
    state.apply([log.command(CreateTopic({"name": "T"}, False)), log.add(EntryType.DIGEST)])
    assert state.sums.at(1) == before != state.sums.at(3)
    assert state.sums.at(2) is None
    state.apply([log.add(EntryType.DIGEST) for _ in range(running_digest.REMEMBERED)])
    assert state.sums.at(3) is None
    assert state.sums.at(4) == state.sums.totals


def test_a_state_without_sums_or_with_those_of_another_index_is_counted(new_log: Callable[..., Any]) -> None:
    log, kv = new_log(), MemoryKV()
    state = BrokerState(kv)
    state.apply([log.add(EntryType.GENESIS), log.command(CreateTopic({"name": "T"}, False))])
    right = dict(state.sums.totals)
    wrong = dict.fromkeys(right, 7)
    for row in (
        None,
        b"",
        running_digest.pack(0, wrong),
        bytes([running_digest.VERSION + 1]) + running_digest.pack(1, wrong)[1:],
    ):
        batch = Batch()
        batch.delete(META, meta_keys.SUMS_KEY) if row is None else batch.put(META, meta_keys.SUMS_KEY, row)
        kv.write(batch)
        assert BrokerState(kv).sums.totals == right
    batch = Batch()
    batch.put(META, meta_keys.SUMS_KEY, running_digest.pack(1, wrong))
    kv.write(batch)
    assert BrokerState(kv).sums.totals == wrong, "not counted at every start: that is what scrub is for"


def test_lost_changed_and_swapped_rows_change_the_sum() -> None:
    kv = MemoryKV()
    rows = {bytes([n]) * 16: bytes([n, 255 - n]) * 20 for n in range(40)}
    batch = Batch()
    for key, value in rows.items():
        batch.put(CQ, key, value)
    kv.write(batch)
    whole = running_digest.count(kv)
    for first, second in ((0, 1), (5, 30), (38, 39)):
        a, b = bytes([first]) * 16, bytes([second]) * 16
        changes: list[dict[bytes, bytes | None]] = [
            {a: None},
            {a: rows[b]},
            {a: rows[b], b: rows[a]},
            {a: rows[a][:-1]},
        ]
        for changed in changes:
            batch = Batch()
            for key, row in changed.items():
                batch.delete(CQ, key) if row is None else batch.put(CQ, key, row)
            kv.write(batch)
            assert running_digest.count(kv)[CQ] != whole[CQ]
            batch = Batch()
            for key in changed:
                batch.put(CQ, key, rows[key])
            kv.write(batch)
    assert running_digest.count(kv) == whole
    assert running_digest.row_sum(CQ, b"k", b"v") != running_digest.row_sum(TOPICS, b"k", b"v")
