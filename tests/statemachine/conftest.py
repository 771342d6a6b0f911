"""A leader in a few lines: it stamps entries that fit each other, so that tests speak in topics and counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgpack
import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, FLAG_ROLL, Entry, EntryType
from statemachine import commands, payload
from statemachine import trim as trims
from statemachine.consuming.consumer_offsets import CommitOffsets, ResetOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.consuming.offset_resets import EndResets
from statemachine.consuming.queue_locks import LockQueues, LockQueuesOf, UnlockQueues, UnlockQueuesOf
from statemachine.dedup import EndSessions
from statemachine.delivery.timers import DeliverTimers, DropTimers, RecallTimer
from statemachine.families import FAMILIES
from statemachine.removal_slices import DeleteGroup, DeleteTopic, Expire
from statemachine.rows.kv import FAMILIES as COLUMNS
from statemachine.rows.kv import KV
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.topics.topics import CreateTopic
from tests.support.command_samples import COMMAND_SAMPLES, about

Rows = dict[str, list[tuple[bytes, bytes]]]


class LogBuilder:
    """Builds entries; `entries` is the log so far. Knows the next offset of each queue, as a leader does."""

    def __init__(self, segment_size: int = 2**26) -> None:
        self.segment_size = segment_size
        self.entries: list[Entry] = []
        self.tail = EMPTY_TAIL
        self.now_ms = 1_000_000
        self.ends: dict[tuple[int, int], int] = {}

    def add(self, kind: int, data: bytes = b"", term: int = 1) -> Entry:
        entry = make_entry(
            self.tail,
            term=term,
            entry_type=kind,
            payload=data,
            timestamp_ms=self.now_ms,
            group_id=1,
            segment_size=self.segment_size,
        )
        self.tail = tail_after(self.tail, entry)
        self.entries.append(entry)
        return entry

    def command(self, *run: commands.Command) -> Entry:
        return self.add(EntryType.COMMAND, commands.pack(list(run)))

    def raw(self, *run: object) -> Entry:
        """An entry with commands as they are, valid or not: `[name, argument, ...]`."""
        return self.add(EntryType.COMMAND, msgpack.packb(list(run), use_bin_type=True))

    def items(self, base: int, count: int) -> bytes:
        return b"".join(
            payload.ITEM.pack(self.tail.end_position + i, 100, base + i, -5, self.now_ms + i) for i in range(count)
        )

    def run(self, topic_id: int, queue_id: int, count: int) -> payload.Run:
        """The next `count` rows of the queue."""
        base = self.ends.get((topic_id, queue_id), 0)
        self.ends[topic_id, queue_id] = base + count
        return payload.Run(topic_id, queue_id, base, count, 0, self.items(base, count))

    def scheduled(self, topic_id: int, queue_id: int, count: int, due_ms: int) -> payload.Run:
        """Messages that wait; call it right before the entry that holds the run is added."""
        return payload.Run(topic_id, queue_id, due_ms, count, payload.RowKind.SCHEDULED, self.items(0, count))

    def carried(self, name: int, count: int, kind: int = payload.RowKind.CARRIED_TIMERS) -> payload.Run:
        """Messages of the row of this name, stored again; the same rule. Their topic and queue do not matter."""
        return payload.Run(9, 9, name, count, kind, self.items(0, count))

    def messages(
        self,
        *runs: payload.Run,
        sessions: tuple[payload.SessionRows, ...] = (),
        unique: tuple[payload.UniqueRow, ...] = (),
        effects: tuple[commands.Command, ...] = (),
        keys: bytes = b"",
    ) -> Entry:
        packed = commands.pack(list(effects)) if effects else b""
        count = sum(run.count for run in runs)
        return self.add(EntryType.MESSAGES, payload.encode([b"m" * 8], count, runs, sessions, unique, packed, keys))

    def trim(self, entry: Entry, *queues: trims.QueueMin) -> Entry:
        """Has the log begin at `entry`."""
        said = trims.Trim(entry.position, entry.index, "age", queues)
        return self.add(EntryType.TRIM, trims.encode(said))

    def cut(self, entry: Entry, *queues: trims.QueueMin) -> Entry:
        """Has a sweep begin, at the end of which the log begins at `entry`."""
        said = trims.Trim(entry.position, entry.index, "age", queues, sliced=True)
        return self.add(EntryType.TRIM, trims.encode(said))

    def slice(self, cut: Entry, rows: int) -> Entry:
        """The next slice of the sweep that `cut` began."""
        return self.add(EntryType.TRIM, trims.encode(trims.Slice(cut.index, rows)))

    def remove(self, rows: int) -> Entry:
        """The next slice of what is being removed."""
        return self.add(EntryType.TRIM, trims.encode(trims.RemoveRows(rows)))

    def segments(self) -> list[Entry]:
        """The first entry of each segment."""
        return [entry for entry in self.entries if entry.flags & FLAG_ROLL]

    @staticmethod
    def session(producer: int, low: int, sequences: list[int]) -> payload.SessionRows:
        rows = [payload.SESSION_ROW.pack(s, 1, 0, s * 10, s * 100) for s in sequences]
        return payload.SessionRows(bytes([producer]) * 16, low, max(sequences, default=low), b"".join(rows))


DRAWN_APART = (
    CreateTopic,
    PutGroup,
    Subscribe,
    CommitOffsets,
    ResetOffsets,
    EndResets,
    LockQueues,
    UnlockQueues,
    DeleteTopic,
    DeleteGroup,
    Expire,
    DeliverTimers,
    DropTimers,
    RecallTimer,
    EndSessions,
)
OTHERS = [
    samples
    for family in FAMILIES
    if (samples := [each for each in COMMAND_SAMPLES if type(each) in set(family.COMMANDS) - set(DRAWN_APART)])
]
"""Samples, family by family, of the commands that no function below draws arguments for: a new command is one of them.
They are drawn several at once, because commands of a family are about one another's rows."""


def drawn_log(seed: int, length: int) -> list[Entry]:
    """A log drawn by the seed. Together, such logs have every command, and every entry type but MEMBERSHIP."""
    rng, others = Random(seed), Random(f"others {seed}")
    log = LogBuilder(segment_size=rng.choice([2**13, 2**17, 2**26]))
    log.add(EntryType.GENESIS)
    ids: dict[str, int] = {}
    next_id = 1
    sequences: dict[int, int] = {}
    waiting: list[tuple[int, int]] = []
    cuts: list[Entry] = []
    for _ in range(length):
        log.now_ms += rng.choice([0, 0, 1, 50, 1000])
        step = rng.random()
        if step < 0.15 or not ids:
            name = f"t{rng.randrange(3)}"
            if name not in ids:
                ids[name] = next_id
                next_id += 1
            log.command(CreateTopic({"name": name, "read_queues": rng.randint(1, 9)}, rng.random() < 0.3))
        elif step < 0.20:
            log.command(DeleteTopic(name := rng.choice(sorted(ids))), DeleteTopic("none"))
            del ids[name]
        elif step < 0.30:
            group = f"g{rng.randrange(3)}"
            log.command(
                PutGroup({"name": group, "retry_max_times": rng.randrange(20)}, rng.random() < 0.5),
                Subscribe(group, [("t0", "TAG", "*", rng.randrange(99))]),
            )
        elif step < 0.34:
            log.command(DeleteGroup(f"g{rng.randrange(3)}", rng.random() < 0.5))
        elif step < 0.38:
            log.command(Expire(max(0, log.now_ms - rng.choice([0, 100, 3000]))))
        elif step < 0.42:
            log.add(rng.choice([EntryType.NOOP, EntryType.DIGEST]))
        elif step < 0.48:
            _drawn_trim(log, rng, cuts)
        elif step < 0.51:
            _drawn_group_rows(log, rng, sorted(ids.values()))
        elif step < 0.58:
            _drawn_timers(log, rng, sorted(ids.values()), waiting)
        else:
            _drawn_messages(log, rng, sorted(ids.values()), sequences)
        if cuts and rng.random() < 0.7:
            log.slice(rng.choice(cuts[-2:]), rng.choice([4, 5, 9, 30, 30]))
        if rng.random() < 0.5:
            log.remove(rng.choice([4, 4, 5, 9, 30]))
        if others.random() < 0.4:
            samples = others.choices(OTHERS, [len(each) for each in OTHERS])[0]
            run = [_about_a_drawn(each, others, sorted(ids.values())) for each in others.choices(samples, k=5)]
            packed = commands.pack(run)
            if others.random() < 0.5:
                log.add(EntryType.COMMAND, packed)
            else:
                log.add(EntryType.CHANGE, commands.pack_change("ann", packed))
    return log.entries


def _about_a_drawn(sample: commands.Command, rng: Random, topic_ids: list[int]) -> commands.Command:
    """The sample, about one of the topics, groups and clients of drawn logs if it is about some."""
    return about(
        sample,
        topic=f"t{rng.randrange(3)}",
        topic_id=rng.choice(topic_ids or [1]),
        queue_id=rng.randrange(4),
        group=f"g{rng.randrange(3)}",
        client_id=rng.choice("ab"),
    )


def _drawn_messages(log: LogBuilder, rng: Random, topic_ids: list[int], sequences: dict[int, int]) -> None:
    queues = {(rng.choice(topic_ids), rng.randrange(2)) for _ in range(rng.randint(1, 3))}
    runs = [log.run(*queue, rng.choice([1, 1, 1, 2, 30, 255, 256, 700])) for queue in sorted(queues)]
    producer = rng.randrange(3)
    first = sequences.get(producer, 0)
    count = rng.randrange(4)
    sequences[producer] = first + count
    low = max(0, first - rng.randrange(6))
    sessions = (log.session(producer, low, list(range(first, first + count))),) if rng.random() < 0.7 else ()
    unique = tuple(
        payload.UniqueRow(rng.randrange(4), rng.choice(topic_ids), 0, rng.randrange(99), rng.randrange(2**40), 7)
        for _ in range(rng.randrange(3))
    )
    commit = CommitOffsets([(f"g{rng.randrange(3)}", rng.choice(topic_ids), rng.randrange(2), rng.randrange(99))])
    effects = (commit,) if rng.random() < 0.4 else ()
    keys = rng.randbytes(8 * rng.choice([0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 40, 40, 6000]))
    log.messages(*runs, sessions=sessions, unique=unique, effects=effects, keys=keys)


def _drawn_group_rows(log: LogBuilder, rng: Random, topic_ids: list[int]) -> None:
    """Locks, resets and offsets of a group, given and ended; ended sessions."""
    group, client, now = f"g{rng.randrange(3)}", rng.choice("ab"), log.now_ms
    queues = [(rng.choice(topic_ids), rng.randrange(4)) for _ in range(rng.randint(1, 6))]
    log.command(
        LockQueues(group, client, now, now + rng.choice([0, 500, 10**6]), queues),
        ResetOffsets(group, now, [(*queue, rng.randrange(9)) for queue in queues[:2]]),
        CommitOffsets([(group, *queue, rng.randrange(99)) for queue in queues]),
    )
    if rng.random() < 0.5:
        log.command(
            UnlockQueues(group, client, rng.choice([None, queues[:1]])),
            LockQueuesOf(rng.randint(1, 2), group, client, now, now + rng.choice([0, 500, 10**6]), queues),
            UnlockQueuesOf(rng.randint(1, 2), group, client, rng.choice([None, queues[:1]])),
            EndResets(group, [(*queues[0], now)]),
            EndSessions([bytes([rng.randrange(3)]) * 16]),
        )


def _drawn_timers(log: LogBuilder, rng: Random, topic_ids: list[int], waiting: list[tuple[int, int]]) -> None:
    """Scheduled messages, with or without the end of some that waited, or of some that do not exist."""
    ended = rng.sample(waiting, min(len(waiting), rng.randrange(4)))
    waiting[:] = [row for row in waiting if row not in ended]
    effects: list[commands.Command] = []
    if ended:
        effects.append(rng.choice([DeliverTimers, DropTimers])([*ended, (rng.randrange(9), 7)]))
    due, position = rng.choice(waiting) if waiting and rng.random() < 0.5 else (1, 7)
    effects.append(RecallTimer(due, position, position + rng.choice([0, 0, 1, 255])))
    due = log.now_ms + rng.choice([0, 1, 1, 50, 10**9])
    position = log.tail.end_position
    waiting.append((due, position))
    run = log.scheduled(rng.choice(topic_ids), rng.randrange(2), rng.choice([1, 2, 256]), due)
    log.messages(run, effects=tuple(effects))
    if rng.random() < 0.5:
        log.messages(log.carried(rng.choice(waiting)[1], rng.choice([1, 2, 256])))


def _drawn_trim(log: LogBuilder, rng: Random, cuts: list[Entry]) -> None:
    """To the beginning of some segment, also one trimmed before; of some queues more, also more than they have. Often a
    sweep, also while one is under way."""
    queues = [(*queue, rng.randrange(end + 3)) for queue, end in sorted(log.ends.items()) if rng.random() < 0.2]
    begin = rng.choice(log.segments())
    if rng.random() < 0.3:
        log.trim(begin, *queues)
    else:
        cuts.append(log.cut(begin, *queues))


def all_rows(kv: KV) -> Rows:
    """Every row of every column, byte for byte."""
    return {name: list(kv.scan(name, b"", b"\xff" * 300)) for name in COLUMNS}


@pytest.fixture(scope="session")
def new_log() -> Callable[..., LogBuilder]:
    """Makes an empty log."""
    return LogBuilder


@pytest.fixture(scope="session")
def draw_log() -> Callable[[int, int], list[Entry]]:
    """(seed, length) -> entries, see `drawn_log`."""
    return drawn_log


@pytest.fixture(scope="session")
def rows_of() -> Callable[[KV], Rows]:
    """The function `all_rows`."""
    return all_rows


@pytest.fixture(params=["memory", "rocks"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KV]:
    """An empty store of each kind."""
    store: KV = MemoryKV() if request.param == "memory" else RocksKV(str(tmp_path / "db"))
    yield store
    store.close()


def copied(source: Path, target: Path) -> Path:
    """A copy of an open database's directory: what a power loss right now would leave of a synced one."""
    shutil.copytree(source, target)
    (target / "LOCK").unlink()
    return target


@pytest.fixture(scope="session")
def copy_of() -> Callable[[Path, Path], Path]:
    """(database, new directory) -> the copy, see `copied`."""
    return copied
