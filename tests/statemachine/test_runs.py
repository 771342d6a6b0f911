"""Rows are a pure function of the log: however it is cut into runs, on either store, across restarts and crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import Entry, EntryType
from statemachine import payload
from statemachine.broker_state import BrokerState
from statemachine.command_table import COMMANDS, in_entry, unpack
from statemachine.commands import Command, name_of
from statemachine.rows.digest import digest
from statemachine.rows.kv import KV
from statemachine.rows.rocksdb_store import RocksKV

DrawLog = Callable[[int, int], list[Entry]]
RowsOf = Callable[[KV], object]
seeds = st.integers(0, 2**32)


def one_by_one(entries: Sequence[Entry]) -> tuple[MemoryKV, list[object]]:
    kv = MemoryKV()
    state = BrokerState(kv)
    return kv, [state.apply([entry]).results[0] for entry in entries]


def in_groups(entries: Sequence[Entry], rng: Random) -> list[Sequence[Entry]]:
    groups, at = [], 0
    while at < len(entries):
        size = rng.choice([1, 2, 3, 10, 40])
        groups.append(entries[at : at + size])
        at += size
    return groups


def test_drawn_logs_have_every_command(draw_log: DrawLog) -> None:
    """What the tests below show, they show of all of them."""
    found, kinds = set[str](), set[int]()
    for entry in [entry for seed in range(6) for entry in draw_log(seed, 150)]:
        kinds.add(entry.type)
        run = in_entry(entry.type, entry.payload)
        if entry.type == EntryType.MESSAGES:
            run = unpack(payload.decode(entry.payload).effects)
        found |= {name_of(type(command)) for command in run if isinstance(command, Command)}
    assert found == set(COMMANDS)
    assert kinds == set(EntryType) - {EntryType.MEMBERSHIP}


@settings(max_examples=30, deadline=None)
@given(seed=seeds, grouping=seeds)
def test_grouping_and_restarts_change_no_row_and_no_answer(
    draw_log: DrawLog, rows_of: RowsOf, seed: int, grouping: int
) -> None:
    entries = draw_log(seed, 80)
    expected, answers = one_by_one(entries)
    rng = Random(grouping)
    kv = MemoryKV()
    state = BrokerState(kv)
    got: list[object] = []
    for group in in_groups(entries, rng):
        if rng.random() < 0.2:
            state = BrokerState(kv)
        got.extend(state.apply(group).results)
    assert rows_of(kv) == rows_of(expected)
    assert got == answers
    assert views(state) == views(BrokerState(kv)) == views(BrokerState(expected))


def views(state: BrokerState) -> list[object]:
    """Everything that is read from memory."""
    queues = [(topic_id, queue) for topic_id in range(1, 12) for queue in range(2)]
    groups = [f"g{n}" for n in range(3)]
    return [
        state.applied_mark,
        dict(state.topics),
        dict(state.topics_by_id),
        dict(state.groups),
        [state.offsets_of_group(group) for group in groups],
        [state.offset(group, *queue) for group in groups for queue in queues],
        [state.max_offset(*queue) for queue in queues],
        [state.min_offset(*queue) for queue in queues],
        [state.kept_offset(*queue) for queue in queues],
        [dict(state.locks_of_group(group)) for group in groups],
        [dict(state.resets_of_group(group)) for group in groups],
        [state.fetch(*queue, state.min_offset(*queue), 2) for queue in queues],
        state.removing,
        state.trim_mark,
        state.timers.earliest,
        state.timers.counts,
        state.lowest_pinned_position(),
        [state.session(bytes([producer]) * 16) for producer in range(3)],
    ]


@settings(max_examples=25, deadline=None)
@given(seed=seeds, grouping=seeds, kept_share=st.floats(0, 1))
def test_a_crash_loses_a_suffix_and_replay_restores_it(
    draw_log: DrawLog, rows_of: RowsOf, seed: int, grouping: int, kept_share: float
) -> None:
    entries = draw_log(seed, 60)
    rng = Random(grouping)
    kv = MemoryKV(model_crash=True)
    state = BrokerState(kv)
    for group in in_groups(entries[: rng.randrange(1, len(entries))], rng):
        state.apply(group)
        if rng.random() < 0.2:
            kv.flush_wal()
    applied = state.applied.index
    after = kv.crash(int(kv.unsynced * kept_share))
    state = BrokerState(after)
    assert state.applied.index <= applied
    state.apply(entries[state.applied.index + 1 :])
    assert rows_of(after) == rows_of(one_by_one(entries)[0])


@pytest.mark.parametrize("seed", range(6))
def test_rocksdb_holds_the_same_rows_across_reopening(
    draw_log: DrawLog, rows_of: RowsOf, tmp_path: Path, seed: int
) -> None:
    entries = draw_log(seed, 200)
    rng = Random(seed)
    kv = RocksKV(str(tmp_path / "db"))
    state = BrokerState(kv)
    for group in in_groups(entries, rng):
        if rng.random() < 0.15:
            kv.close()
            kv = RocksKV(str(tmp_path / "db"))
            state = BrokerState(kv)
        state.apply(group)
    expected, _ = one_by_one(entries)
    assert rows_of(kv) == rows_of(expected)
    assert digest(kv) == digest(expected)
    assert views(state) == views(BrokerState(expected))
    kv.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_wal_shows_as_a_lower_applied_index(
    draw_log: DrawLog, tmp_path: Path, copy_of: Callable[[Path, Path], Path], seed: int
) -> None:
    entries = draw_log(seed, 120)
    rng = Random(seed)
    kv = RocksKV(str(tmp_path / "db"))
    state = BrokerState(kv)
    for group in in_groups(entries, rng):
        state.apply(group)
    kv.flush_wal()
    wal = max(copy_of(tmp_path / "db", tmp_path / "cut").glob("*.log"))
    kv.close()
    content = wal.read_bytes()
    wal.write_bytes(content[: rng.randrange(len(content) * 3 // 4)])

    cut = RocksKV(str(tmp_path / "cut"))
    state = BrokerState(cut)
    assert -1 <= state.applied.index < entries[-1].index
    prefix, _ = one_by_one(entries[: state.applied.index + 1])
    assert digest(cut) == digest(prefix)
    state.apply(entries[state.applied.index + 1 :])
    assert digest(cut) == digest(one_by_one(entries)[0])
    cut.close()
