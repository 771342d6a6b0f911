"""Producer sessions and unique rows: what is found, what is forgotten, and what is left in the store."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from raftlog.work import METER
from statemachine import dedup, payload
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.queue_locks import LockQueues
from statemachine.dedup import SESSION_WINDOW_MAX, Dedup, EndSessions
from statemachine.levels import SESSIONS_LEVEL
from statemachine.removal_slices import DeleteTopic, Expire
from statemachine.rows import keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import DEDUP, RESETS, TIER, TIMER, TRANS, Batch
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row

P = b"\1" * 16
LEVELS = (BASELINE, SESSIONS_LEVEL)


class Broker:
    """A state with topics a (1) and b (2), and the log that feeds it."""

    def __init__(self, log: Any, level: int = BASELINE) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        self.lone_rows = 1 if level >= SESSIONS_LEVEL else 2
        """The rows of a producer with the messages of one entry."""
        self.run(Finalize(level), CreateTopic({"name": "a"}, True), CreateTopic({"name": "b"}, True))

    def run(self, *run: Command) -> Any:
        return self.state.apply([self.log.command(*run)]).results[0]

    def send(self, low: int, *sequences: int, producer: int = 1) -> None:
        session = self.log.session(producer, low, list(sequences))
        self.state.apply([self.log.messages(sessions=(session,))])

    def unique(self, topic_id: int, key_hash: int, position: int) -> None:
        row = payload.UniqueRow(key_hash, topic_id, 0, 3, position, 7)
        self.state.apply([self.log.messages(unique=(row,))])

    def expire(self, before_ms: int) -> tuple[int, int]:
        """Has what is idle since before then removed in one slice; returns how many producers and unique rows went."""
        before = self.rows()
        self.run(Expire(before_ms))
        self.state.apply([self.log.remove(1 << 30)])
        gone = [key[:1] for key in set(before) - set(self.rows())]
        return gone.count(b"p"), gone.count(b"u")

    def rows(self) -> list[bytes]:
        return [key for key, _ in self.kv.scan(DEDUP, b"", b"\xff")]


@pytest.fixture(params=LEVELS)
def broker(new_log: Callable[[], Any], request: pytest.FixtureRequest) -> Broker:
    return Broker(new_log(), request.param)


@each_row("seed", range(20))
def test_a_session_of_many_parts_is_that_of_few(
    new_log: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A session in pieces of three, in one piece, and read anew: the same is found, and the same rows are left."""
    rng, size = Random(seed), dedup.PIECE_MAX
    one, pieces = (Broker(new_log(), LEVELS[seed % 2]) for _ in range(2))
    low, unsent = 0, rng.sample(range(1, 60), 59)
    for step in range(40):
        low += rng.choice([0, 0, 0, 1, 3])
        sequences = sorted([unsent.pop() for _ in range(min(len(unsent), rng.randint(1, 2)))])
        command = rng.choice([None, None, None, Expire(1 << 40), EndSessions([P])]) if step > 25 else None
        for broker, piece_max in ((one, size), (pieces, 3)):
            monkeypatch.setattr(dedup, "PIECE_MAX", piece_max)
            broker.send(low, *[each for each in sequences if each >= low])
            if command is not None:
                broker.run(command)
                broker.state.apply([broker.log.remove(4)])
        anew = BrokerState(pieces.kv).session(P)
        found = [broker.state.session(P) for broker in (one, pieces)]
        monkeypatch.setattr(dedup, "PIECE_MAX", 3)
        assert pieces.rows() == one.rows()
        for session in (*found, anew):
            assert (session is None) == (found[0] is None)
            if session is not None and found[0] is not None:
                assert session[:3] == found[0][:3]
                assert list(session.all_parts()) == list(found[0].all_parts())
                assert [session.find(each) for each in range(60)] == [found[0].find(each) for each in range(60)]
                assert session.parts_count == found[0].parts_count


def test_an_entry_copies_few_parts_of_a_session(broker: Broker) -> None:
    """A producer may leave 65,536 sequences unsettled."""
    for sequence in range(1, 1_000):
        before = broker.state.session(P)
        broker.send(0, sequence)
        session = broker.state.session(P)
        assert session is not None
        assert len(session.parts) <= dedup.PIECE_MAX
        assert before is None or all(map(is_, session.older, before.older))
    assert session is not None
    assert session.parts_count == 999
    broker.send(500, 1_001)
    session = broker.state.session(P)
    assert session is not None
    assert len(session.older) <= 999 // dedup.PIECE_MAX
    assert session.parts_count == len([key for key in broker.rows() if key[:1] == b"s"]) == 501


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40),
    level=st.sampled_from(LEVELS),
)
def test_sessions_out_of_memory_are_those_that_were_in_it(
    new_log: Callable[[], Any], steps: list[tuple[int, int, int]], level: int
) -> None:
    """One keeps all sessions in memory, another a single one, a third is opened anew at every step."""
    stores = [MemoryKV() for _ in range(3)]

    def opened(number: int, sessions_max: int = dedup.SESSIONS_MAX) -> Dedup:
        return Dedup(stores[number], sessions_max, level=lambda: level)

    one, few, anew = opened(0), opened(1, 1), opened(2)
    sequences = dict.fromkeys(range(5), 0)
    for number, (producer, count, back) in enumerate(steps):
        first, now_ms = sequences[producer], 10 * number
        sequences[producer] = first + count
        session = new_log().session(producer, max(0, first - back), [*range(first, first + count)])
        results: list[object] = []
        for each, kv in zip((one, few, anew), stores, strict=True):
            stage = Stage(kv)
            if count:
                sent = payload.decode(payload.encode([], 0, (), sessions=(session,)))
                each.add_sessions(stage, sent.sessions, number, now_ms)
            elif back:
                results.append(each.end(stage, EndSessions([bytes([producer]) * 16])))
            else:
                results.append(each.expire_sessions(stage, now_ms - 100, b"", 1 << 30))
            kv.write(stage.batch())
            each.publish()
        assert not results or results[0] == results[1] == results[2]
        anew = opened(2)
        for name in range(5):
            found = one.session(bytes([name]) * 16)
            assert few.session(bytes([name]) * 16) == found == anew.session(bytes([name]) * 16)
            assert few.max_sequence(bytes([name]) * 16) == (0 if found is None else found.max_sequence)
    assert digest(stores[0]) == digest(stores[1]) == digest(stores[2])


def test_few_sessions_stay_in_memory(new_log: Callable[[], Any]) -> None:
    """Those that were used last. A session that is not in memory is read from the store."""
    kv = CountingReads()
    dedup = Dedup(kv, sessions_max=2)
    for number, producer in enumerate((1, 2, 3, 2, 4), 1):
        stage = Stage(kv)
        sent = payload.decode(payload.encode([], 0, (), sessions=(new_log().session(producer, 0, [number]),)))
        dedup.add_sessions(stage, sent.sessions, number, 1)
        kv.write(stage.batch())
        dedup.publish()
    read = []
    for producer in range(1, 5):
        kv.reads = 0
        assert dedup.session(bytes([producer]) * 16) is not None
        read.append(kv.reads > 0)
    assert read == [True, False, True, False]


class CountingReads(MemoryKV):
    """Counts the rows that are read by their keys."""

    reads = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(family, key)


class WrittenMeanwhile(MemoryKV):
    """Something happens after the next read of a row."""

    then: Callable[[], object] | None = None

    def get(self, family: str, key: bytes) -> bytes | None:
        found = super().get(family, key)
        then, self.then = self.then, None
        if then is not None:
            then()
        return found


def test_a_session_that_is_written_while_it_is_read_is_read_again(new_log: Callable[[], Any]) -> None:
    broker = Broker(new_log())
    broker.kv = WrittenMeanwhile()
    broker.state = BrokerState(broker.kv)
    broker.state.apply(broker.log.entries)
    broker.send(1, 1, 2)
    dedup = Dedup(broker.kv)  # as another thread sees it that has nothing in memory
    broker.kv.then = lambda: broker.send(3, 3)
    assert dedup.session(P) == broker.state.session(P)
    broker.kv.then = lambda: broker.run(EndSessions([P]))
    assert dedup.session(P) is None


def long_session(broker: Broker, parts: int) -> Dedup:
    """A session of so many parts, and the rows as somebody sees them who has nothing in memory."""
    for sequence in range(1, parts + 1):
        broker.send(0, sequence)
    return Dedup(broker.kv)


def test_a_long_session_is_read_in_short_steps(broker: Broker) -> None:
    """A producer may leave 65,536 sequences unsettled: in one go that takes 100 ms."""
    anew, whole = long_session(broker, 1_000), broker.state.session(P)
    assert anew.max_sequence(P) == 1_000
    with pytest.raises(dedup.SessionUnreadError):
        anew.session_at_hand(P)
    steps, before = 0, METER.units
    for _ in anew.read_session(P):
        assert METER.units - before < 1_000
        steps, before = steps + 1, METER.units
    assert steps == 999 // dedup.READ_PARTS
    session = anew.session_at_hand(P)
    assert session is not None
    assert whole is not None
    assert session[:3] == whole[:3]
    assert [session.find(each) for each in range(1_002)] == [whole.find(each) for each in range(1_002)]


def test_a_short_session_needs_no_reading(broker: Broker) -> None:
    anew = long_session(broker, dedup.READ_PARTS)
    assert anew.session_at_hand(P) == broker.state.session(P)
    assert anew.session_at_hand(b"\2" * 16) is None
    assert (anew.max_sequence(P), anew.max_sequence(b"\2" * 16)) == (dedup.READ_PARTS, 0)


def push_out(broker: Broker) -> None:
    """As many other producers send as there is room for in memory."""
    row = payload.SESSION_ROW.pack(1, 1, 0, 10, 100)
    names = [b"other" + number.to_bytes(11, "big") for number in range(dedup.SESSIONS_MAX)]
    sessions = tuple(payload.SessionRows(name, 0, 1, row) for name in names)
    broker.state.apply([broker.log.messages(sessions=sessions)])


@pytest.mark.parametrize("when", ["before the last step", "after the last step"])
@pytest.mark.parametrize("change", ["send", "end"])
def test_what_was_read_in_steps_goes_when_apply_writes_the_session(broker: Broker, when: str, change: str) -> None:
    long_session(broker, 200)
    broker.state = BrokerState(broker.kv)
    steps = broker.state.read_session(P)
    next(steps)
    if when == "after the last step":
        assert list(steps)
        assert broker.state.session_at_hand(P) is not None
    if change == "send":
        broker.send(190, 201)
    else:
        broker.run(EndSessions([P]))
    assert list(steps) == []
    push_out(broker)
    if change == "send":
        assert broker.state.session_at_hand(P) == BrokerState(broker.kv).session(P)
    else:  # its rows stay until they expire, too many to be at hand
        with pytest.raises(dedup.SessionUnreadError):
            broker.state.session_at_hand(P)


def test_a_long_session_whose_rows_are_written_while_it_is_read_is_read_again(new_log: Callable[[], Any]) -> None:
    """Rows can be read before apply publishes what it wrote."""
    broker = Broker(new_log())
    broker.kv = WrittenMeanwhile()
    broker.state = BrokerState(broker.kv)
    broker.state.apply(broker.log.entries)
    anew = long_session(broker, 200)
    broker.kv.then = lambda: broker.send(150, 201)
    assert list(anew.read_session(P))
    session = anew.session_at_hand(P)
    assert session is not None
    assert (session.forgotten(149), session.find(201) is not None) == (True, True)


def test_a_long_session_that_becomes_one_row_while_it_is_read_is_that(new_log: Callable[[], Any]) -> None:
    broker = Broker(new_log(), SESSIONS_LEVEL)
    broker.kv = WrittenMeanwhile()
    broker.state = BrokerState(broker.kv)
    broker.state.apply(broker.log.entries)
    anew = long_session(broker, 200)
    broker.kv.then = lambda: broker.send(201, 201)
    assert list(anew.read_session(P)) == [None]
    session = anew.session_at_hand(P)
    assert session is not None
    assert session.is_lone
    assert session == broker.state.session(P)


@each_row(
    ("key", "size"),
    [
        *[(keys.producer_key(P), size) for size in (0, 23, 25, 31, 32, 63, 65, 96 + 31)],
        *[(keys.session_key(P, 3), size) for size in (0, 31, 33)],
    ],
)
def test_a_row_of_another_size_stops_the_node(new_log: Callable[[], Any], key: bytes, size: int) -> None:
    """It is never taken for a part of what it was."""
    broker, batch = Broker(new_log(), SESSIONS_LEVEL), Batch()
    batch.put(DEDUP, keys.producer_key(P), keys.PRODUCER.pack(1, 9, 1))
    batch.put(DEDUP, key, b"\1" * size)
    broker.kv.write(batch)
    for read in (
        broker.state.session,
        broker.state.session_at_hand,
        lambda name: list(broker.state.read_session(name)),
    ):
        with pytest.raises(InvariantViolationError, match="bytes"):
            read(P)
    with pytest.raises(InvariantViolationError, match=r"entry \(term 1, index \d+\): .*bytes"):
        broker.send(1, 2)


def test_few_long_sessions_that_were_read_stay_in_memory(broker: Broker) -> None:
    producers = range(1, dedup.READ_SESSIONS_MAX + 3)
    for producer in producers:
        for sequence in range(1, dedup.READ_PARTS + 2):
            broker.send(0, sequence, producer=producer)
    anew = Dedup(broker.kv)
    for producer in producers:
        assert list(anew.read_session(bytes([producer]) * 16)) == [None]
        assert anew.session_at_hand(bytes([producer]) * 16) is not None
    unread = 0
    for producer in producers:
        try:
            anew.session_at_hand(bytes([producer]) * 16)
        except dedup.SessionUnreadError:
            unread += 1
    assert len(producers) - unread == dedup.READ_SESSIONS_MAX


def test_sequences_are_found_also_out_of_order(broker: Broker) -> None:
    broker.send(1, 1, 3, 4)
    broker.send(1, 7)
    broker.send(1, 2, 6)
    session = broker.state.session(P)
    assert session is not None
    assert (session.low_sequence, session.max_sequence) == (1, 7)
    stored = {s: session.find(s) for s in range(9)}
    assert stored == {s: (1, 0, s * 10, s * 100) if s in (1, 2, 3, 4, 6, 7) else None for s in range(9)}
    assert BrokerState(broker.kv).session(P) == session


def test_settled_sequences_are_forgotten_with_their_rows(broker: Broker) -> None:
    broker.send(1, 1, 2)
    broker.send(1, 3, 4)
    broker.send(4, 5)
    session = broker.state.session(P)
    assert session is not None
    assert [session.forgotten(s) for s in (3, 4)] == [True, False]
    assert session.find(1) is None
    assert session.find(4) == (1, 0, 40, 400)
    assert len(broker.rows()) == 3
    broker.send(9)
    session = broker.state.session(P)
    assert session is not None
    assert (session.low_sequence, session.max_sequence, session.parts) == (9, 9, ())
    assert len(broker.rows()) == 1
    assert BrokerState(broker.kv).session(P) == session


def test_a_lower_low_or_an_older_sequence_takes_nothing_back(broker: Broker) -> None:
    broker.send(5, 8)
    broker.send(2, 6)
    session = broker.state.session(P)
    assert session is not None
    assert (session.low_sequence, session.max_sequence) == (5, 8)
    assert session.find(6) == (1, 0, 60, 600)


def test_a_producer_that_never_settles_is_bounded(broker: Broker) -> None:
    broker.send(1, 1)
    broker.send(1, 2 + SESSION_WINDOW_MAX)
    session = broker.state.session(P)
    assert session is not None
    assert session.low_sequence == 2
    assert session.find(1) is None
    assert len(broker.rows()) == broker.lone_rows


def test_a_session_taken_before_does_not_change(broker: Broker) -> None:
    broker.send(1, 1)
    before = broker.state.session(P)
    broker.send(5, 5)
    assert before is not None
    assert before.find(1) is not None
    assert not before.forgotten(1)


def test_two_sessions_of_one_producer_in_an_entry_stop_the_node(broker: Broker) -> None:
    twice = (broker.log.session(1, 0, [1]), broker.log.session(1, 0, [2]))
    with pytest.raises(InvariantViolationError, match="two sessions of one producer in entry"):
        broker.state.apply([broker.log.messages(sessions=twice)])


def test_so_do_two_sessions_of_a_producer_that_is_known(broker: Broker) -> None:
    broker.send(0, 1)
    twice = (broker.log.session(1, 0, [2]), broker.log.session(1, 0, [3]))
    with pytest.raises(InvariantViolationError, match="two sessions of one producer in entry"):
        broker.state.apply([broker.log.messages(sessions=twice)])


def test_expire_forgets_idle_producers_and_rows(broker: Broker) -> None:
    log = broker.log
    log.now_ms = 1_001_000
    broker.send(1, 1, 2, producer=1)
    broker.unique(1, 5, 100)
    log.now_ms = 1_002_000
    broker.send(1, 1, producer=2)
    broker.unique(1, 6, 200)
    assert broker.expire(1_001_000) == (0, 0)
    assert broker.expire(1_001_001) == (1, 1)
    assert (broker.state.session(P), broker.state.unique(1, 5, 7)) == (None, None)
    assert broker.state.session(b"\2" * 16) is not None
    assert broker.state.unique(1, 6, 7) == (1, 0, 3, 200, 1_002_000)
    assert len(broker.rows()) == broker.lone_rows + 2
    assert broker.expire(9_999_999) == (1, 1)
    assert broker.rows() == []
    broker.send(7, 7, producer=1)
    assert broker.state.session(P) == BrokerState(broker.kv).session(P)


def test_a_producer_that_went_on_is_not_idle(broker: Broker) -> None:
    broker.log.now_ms = 1_001_000
    broker.send(1, 1)
    broker.log.now_ms = 1_002_000
    broker.send(1)
    assert broker.expire(1_002_000) == (0, 0)
    assert broker.state.session(P).find(1) is not None  # type: ignore[union-attr]


def test_expire_in_the_run_that_wrote_the_rows(broker: Broker) -> None:
    log = broker.log
    row = payload.UniqueRow(5, 1, 0, 3, 100, 7)
    entries = [log.messages(sessions=(log.session(1, 0, [1]),), unique=(row,))]
    log.now_ms += 5
    entries += [log.command(Expire(log.now_ms)), log.remove(99)]
    broker.state.apply(entries)
    assert broker.rows() == []


def test_a_unique_row_written_again_lives_from_then_on(broker: Broker) -> None:
    broker.log.now_ms = 1_001_000
    broker.unique(1, 5, 100)
    broker.log.now_ms = 1_002_000
    broker.unique(1, 5, 200)
    assert broker.expire(1_002_000) == (0, 0)
    assert broker.state.unique(1, 5, 7) == (1, 0, 3, 200, 1_002_000)
    assert broker.expire(1_002_001) == (0, 1)
    assert broker.rows() == []


def test_unique_rows_go_with_their_topic_only(broker: Broker) -> None:
    broker.unique(1, 5, 100)
    broker.unique(2, 5, 200)
    broker.run(DeleteTopic("a"))
    assert broker.state.unique(1, 5, 7) is None
    assert broker.state.unique(2, 5, 7) is not None
    assert broker.state.unique(2, 5, 8) is None
    assert broker.expire(2**62) == (0, 2)
    assert broker.rows() == []


@settings(max_examples=60, deadline=None)
@given(sends=st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 40), max_size=4)), max_size=12))
def test_sessions_match_a_dict(new_log: Callable[[], Any], sends: list[tuple[int, set[int]]]) -> None:
    """Model: every sequence ever stored, and the highest low."""
    broker = Broker(new_log())
    stored: set[int] = set()
    low = 0
    for step, sequences in sends:
        low = max(low, step)
        fresh = sorted(sequences - stored)
        stored |= set(fresh)
        broker.send(step, *fresh)
    session = broker.state.session(P)
    if session is None:
        assert not sends
        return
    for sequence in range(42):
        if not session.forgotten(sequence):
            assert (session.find(sequence) is not None) == (sequence in stored)
    assert session.low_sequence == low


def test_digest_sees_every_family_but_not_where_the_log_was_cut(broker: Broker) -> None:
    before = digest(broker.kv)
    broker.run()
    assert digest(broker.kv) == before
    broker.send(1, 1)
    broker.run(PutGroup({"name": "g"}, True), CommitOffsets([("g", 1, 0, 1)]))
    broker.run(CreateTopic({"name": "c"}, True), LockQueues("g", "a", 1, 2, [(1, 0)]))
    broker.state.apply([broker.log.messages(broker.log.run(1, 0, 1), keys=bytes(8))])
    after = digest(broker.kv)
    unused = {TIMER, TRANS, RESETS, TIER}  # nothing writes them yet
    assert {family for family in before if after[family] == before[family]} == unused


def test_ended_sessions_leave_nothing_and_others_stay(broker: Broker) -> None:
    broker.send(1, 1, 2, producer=1)
    broker.send(1, 1, producer=2)
    before = broker.rows()
    (result,) = broker.run(EndSessions([P, b"\7" * 16]))
    assert (result.ok, result.value) == (True, 1)
    assert broker.state.session(P) is None
    assert broker.state.session(b"\2" * 16) is not None
    assert len(broker.rows()) == len(before) - broker.lone_rows
    assert BrokerState(broker.kv).session(P) is None


@pytest.mark.parametrize("wrong", [None, b"x", ["text"], [1]])
def test_end_sessions_refuses_what_is_no_producer_id(broker: Broker, wrong: Any) -> None:
    (result,) = broker.run(EndSessions(wrong))
    assert (result.ok, result.code) == (False, "invalid")
