"""Rows are a pure function of the log: however it is cut into runs, on either store, across restarts and crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import Entry, EntryType
from statemachine import payload
from statemachine.broker_state import BrokerState
from statemachine.command_table import COMMANDS, in_entry, unpack
from statemachine.commands import Command, Found, name_of
from statemachine.families import FAMILIES, StateReads
from statemachine.family import Family, Reads
from statemachine.rows.digest import digest
from statemachine.rows.kv import KV
from statemachine.rows.rocksdb_store import RocksKV
from tests.support.command_samples import FILE
from tests.support.rows import each_row
from tests.support.seen import seen

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


NEVER_DRAWN = {
    "acknowledge": "needs a MEMBERSHIP entry: test_membership_rows.py",
    "commit_write": "needs staged messages: test_staged_writes.py draws them",
    "prepare_write": "is refused in the first group of brokers: test_prepared_writes.py",
    "copy_truth": "is refused in the first group of brokers: test_truth.py",
    "revoke": "is refused in the first group of brokers: test_revocations.py",
    "close_broker_group": "is refused in the first group of brokers: test_closed_log.py",
}
"""The commands that take no effect in drawn logs, and what shows of them what the tests below show of the others."""
NEVER_SEEN = {
    "ClosedLog": "the first group of brokers does not drain: test_closed_log.py",
    "HalfMessages": "no drawn log has half messages: test_half_messages.py draws them",
    "Members": "no drawn log has a MEMBERSHIP entry",
    "MessageIndex": "is read from rows: test_message_index.py",
    "StagedWrites": "no drawn log has staged messages: test_staged_writes.py draws them",
    "Revocations": "the first group of brokers has none: test_revocations.py",
    "Truth": "drawn logs are those of the first group of brokers, which copies nothing: test_truth.py",
}
"""The families with rows of which readers see nothing in drawn logs, and why."""


def commands_of(entry: Entry) -> list[Found]:
    if entry.type == EntryType.MESSAGES:
        return unpack(payload.decode(entry.payload).effects)
    return in_entry(entry.type, entry.payload)


def test_drawn_logs_have_every_command(draw_log: DrawLog) -> None:
    """What the tests below show, they show of all of them, and of more than their refusals."""
    found, effective, kinds = set[str](), set[str](), set[int]()
    for seed in range(200):
        entries = draw_log(seed, 150)
        for entry, results in zip(entries, BrokerState(MemoryKV()).apply(entries).results, strict=True):
            kinds.add(entry.type)
            run = [name_of(type(command)) for command in commands_of(entry) if isinstance(command, Command)]
            found |= set(run)
            effective |= {name for name, result in zip(run, results, strict=True) if result.ok and not result.code}
        if seed >= 5 and len(effective) == len(COMMANDS) - len(NEVER_DRAWN):
            break
    assert found == set(COMMANDS)
    assert kinds == set(EntryType) - {EntryType.MEMBERSHIP}
    without = set(COMMANDS) - effective
    assert without == set(NEVER_DRAWN), f"their samples take no effect: see {FILE} and command_samples.py"


def test_what_readers_see_of_each_family_comes_from_drawn_logs(draw_log: DrawLog) -> None:
    """A family keeps what readers see in a public attribute or property, or answers it by a class of reads. Then the
    tests below compare it."""
    readers: dict[type[Family], set[type]] = {kind: {kind} for kind in FAMILIES}
    for reads in StateReads.__bases__:
        assert issubclass(reads, Reads)
        for kind in reads.FAMILIES.values():
            readers[kind].add(reads)
    nothing, changed, unseen = seen(BrokerState(MemoryKV())), set[type](), set[str]()
    for seed in range(200):
        state, entries = BrokerState(MemoryKV()), draw_log(seed, 150)
        for at in range(0, len(entries), 40):
            state.apply(entries[at : at + 40])
            changed |= {place[0] for place, value in seen(state).items() if value != nothing.get(place)}
        unseen = {kind.__name__ for kind, its in readers.items() if kind.ROWS and not its & changed}
        if unseen == set(NEVER_SEEN):
            break
    assert changed >= {BrokerState}
    assert unseen == set(NEVER_SEEN), "keep it in a public attribute, or see tests/support/seen.py"


@settings(max_examples=60, deadline=None)
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
    assert seen(state) == seen(BrokerState(kv)) == seen(BrokerState(expected))


@settings(max_examples=40, deadline=None)
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


@each_row("seed", range(3))
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
    assert seen(state) == seen(BrokerState(expected))
    kv.close()


@each_row("seed", range(3))
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
