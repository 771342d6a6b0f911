"""Witnesses of the bugs of retention (see witnesses.py): a state and a few entries, or a written schedule."""

from __future__ import annotations

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType
from statemachine import commands, payload, trim
from statemachine.broker_state import BrokerState
from statemachine.delivery.staged_writes import AttemptState, CommitWrite, OpenAttempt
from statemachine.message_index import key_hash
from statemachine.removal_slices import DeleteTopic
from statemachine.rows import keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import CQ
from statemachine.topics.topics import CreateTopic
from tests.support.bug_schedules import holds


class Log:
    """Entries that a leader could have written: topic 1 with two queues, one run of messages per entry."""

    def __init__(self) -> None:
        self.tail = EMPTY_TAIL
        self.entries: list[Entry] = []
        self.ends = {0: 0, 1: 0}
        self.add(EntryType.GENESIS, b"")
        self.add(EntryType.COMMAND, commands.pack([CreateTopic({"name": "t"}, False)]))

    def add(self, kind: int, data: bytes) -> Entry:
        entry = make_entry(
            self.tail, term=1, entry_type=kind, payload=data, timestamp_ms=1, group_id=1, segment_size=4096
        )
        self.tail = tail_after(self.tail, entry)
        self.entries.append(entry)
        return entry

    def store(self, count: int, queue_id: int = 0, key: bytes = b"") -> Entry:
        at, base = self.tail.end_position + payload.MESSAGES_AT, self.ends[queue_id]
        self.ends[queue_id] += count
        items = b"".join(payload.ITEM.pack(at + n, 1, 0, 0, 1) for n in range(count))
        records = keys.U64.pack(key_hash(1, key) << 32 | at) if key else b""
        run = payload.Run(1, queue_id, base, count, 0, items)
        return self.add(EntryType.MESSAGES, payload.encode([b"m" * count], count, [run], keys=records))

    def trim(self, entry: Entry) -> Entry:
        return self.add(EntryType.TRIM, trim.encode(trim.Trim(entry.position, entry.index, "")))

    def cut(self, entry: Entry) -> Entry:
        return self.add(EntryType.TRIM, trim.encode(trim.Trim(entry.position, entry.index, "", sliced=True)))

    def slice(self, cut: Entry, rows: int) -> Entry:
        return self.add(EntryType.TRIM, trim.encode(trim.Slice(cut.index, rows)))

    def command(self, *run: commands.Command) -> Entry:
        return self.add(EntryType.COMMAND, commands.pack(list(run)))

    def remove(self, rows: int) -> Entry:
        return self.add(EntryType.TRIM, trim.encode(trim.RemoveRows(rows)))


def applied(log: Log) -> BrokerState:
    state = BrokerState(MemoryKV())
    for entry in log.entries:
        state.apply([entry])
    return state


def witness_G01() -> None:
    """A file that a peer reads stays until it has read it."""
    holds("G01")


def witness_G02() -> None:
    """Removed files are below the TRIM that both checkpoints know."""
    holds("G02")


def witness_G03() -> None:
    """A queue begins with its first message at or above the position, in what is left of a block, too."""
    log = Log()
    log.store(64)
    log.trim(log.store(64))
    third = log.store(64)
    log.store(64)
    log.trim(third)
    assert applied(log).min_offset(1, 0) == 128


def witness_G04() -> None:
    """Age is counted in log time, whichever clock the leader has."""
    holds("G04")


def witness_G05() -> None:
    """A queue of which nothing is left goes on where it ended, under the next leader too."""
    holds("G05")


def witness_G06() -> None:
    """Rows are the same however entries were grouped, with a TRIM among many of them."""
    log = Log()
    log.store(100)
    middle = log.store(100)
    for _ in range(40):
        log.store(2)
    log.trim(middle)
    log.store(300)
    kv = MemoryKV()
    BrokerState(kv).apply(log.entries)
    one_by_one = MemoryKV()
    state = BrokerState(one_by_one)
    for entry in log.entries:
        state.apply([entry])
    assert digest(kv) == digest(one_by_one)


def witness_G07() -> None:
    """A block that closes when its beginning is trimmed holds each message at its offset."""
    log = Log()
    log.store(100)
    log.trim(log.store(10))
    for _ in range(45):
        log.store(2)
    log.store(56)
    state = applied(log)
    assert [item.queue_offset for item in state.fetch(1, 0, 100, 156)] == list(range(100, 256))
    assert state.fetch(1, 0, 100, 1)[0].position == log.entries[3].position + payload.MESSAGES_AT


def witness_G08() -> None:
    """A message that is not trimmed is found by its key."""
    log = Log()
    stored = [log.store(40, key=b"k%d" % n) for n in range(8)]
    log.trim(stored[2])
    index = applied(log).message_index
    for n, entry in enumerate(stored[2:], 2):
        bucket = index.bucket_below(entry.position + payload.MESSAGES_AT + 1)
        assert bucket is not None
        assert [entry.position + payload.MESSAGES_AT] in list(index.candidates(bucket, 1, b"k%d" % n)), n


def witness_G09() -> None:
    """The next leader goes on with a sweep."""
    holds("G09")


def witness_G10() -> None:
    """A sweep ends at the cut, whatever was stored since."""
    log = Log()
    log.store(10)
    cut = log.cut(log.store(10))
    log.store(10)
    log.slice(cut, 99)
    assert applied(log).min_offset(1, 0) == 10


def witness_G11() -> None:
    """A queue with more rows than a slice takes is swept to its end."""
    log = Log()
    for _ in range(40):
        log.store(1)
    cut = log.cut(log.store(1))
    for _ in range(20):
        log.slice(cut, 8)
    state = applied(log)
    assert state.sweep is None
    assert state.min_offset(1, 0) == 40


def witness_G12() -> None:
    """A queue that comes while a sweep is under way keeps its messages."""
    log = Log()
    for _ in range(40):
        log.store(1)
    cut = log.cut(log.store(1))
    log.slice(cut, 8)
    log.store(5, queue_id=1)
    for _ in range(20):
        log.slice(cut, 8)
    state = applied(log)
    assert (state.min_offset(1, 0), state.min_offset(1, 1)) == (40, 0)


def deleted(count: int) -> Log:
    """A topic with so many rows, deleted, and made again with the id 2."""
    log = Log()
    for _ in range(count):
        log.store(1)
    log.command(DeleteTopic("t"), CreateTopic({"name": "t"}, False))
    return log


def witness_G13() -> None:
    """A slice removes as many rows as it says."""
    log = deleted(40)
    log.remove(8)
    state = BrokerState(kv := MemoryKV())
    for entry in log.entries:
        state.apply([entry])
    assert len(list(kv.scan(CQ, keys.FIRST, keys.LAST))) == 32


def witness_G14() -> None:
    """A topic that is made again keeps its rows when those of its predecessor go."""
    log = deleted(3)
    items = payload.ITEM.pack(log.tail.end_position + payload.MESSAGES_AT, 1, 0, 0, 1)
    log.add(EntryType.MESSAGES, payload.encode([b"m"], 1, [payload.Run(2, 0, 0, 1, 0, items)]))
    log.remove(99)
    assert len(applied(log).fetch(2, 0, 0, 9)) == 1


def witness_G15() -> None:
    """Nobody sees a topic that is being removed."""
    log = deleted(40)
    log.remove(8)
    state = applied(log)
    assert (state.max_offset(1, 0), state.fetch(1, 0, 0, 9)) == (0, [])


def witness_G16() -> None:
    """The next leader goes on with a removal."""
    holds("G16")


def witness_G17() -> None:
    """Attempts that lost are discarded for everybody, before any slice says so in their rows."""
    log = Log()
    log.command(*[OpenAttempt("q", 1, 1)] * 40)
    log.command(CommitWrite("q", 1, 1, []))
    log.remove(8)
    assert {attempt.state for attempt in applied(log).writes.attempts()} <= {AttemptState.DISCARDED}
