"""Sessions of an entry: both kernels pack the same bytes, apply the same rows and count the same sums."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from raftmq_wire import kernel
from raftmq_wire.checksums import crc32c
from statemachine import dedup, payload
from statemachine.dedup import LONE_ROWS_MAX, PIECE_MAX, SESSION_WINDOW_MAX, Dedup, EndSessions, ProducerSession
from statemachine.levels import LEVEL, SESSIONS_LEVEL
from statemachine.payload import PayloadError, SessionRows
from statemachine.rows import keys
from statemachine.rows.kv import DEDUP
from statemachine.rows.running_digest import changes, count, row_sum
from statemachine.rows.write_batch import Stage
from tests.support.kernels import Pair, native_kernel

ROW = payload.SESSION_ROW
U64 = st.integers(0, 2**64 - 1)
BYTES = st.binary(max_size=40)


def row(sequence: int, queue_offset: int = 7) -> bytes:
    return ROW.pack(sequence, 1, 0, queue_offset, 1000)


def packed(producer: int, low: int, *sequences: int) -> bytes:
    rows = b"".join([row(sequence) for sequence in sequences])
    high = max(sequences, default=low)
    return payload.SESSION.pack(bytes([producer]) * 16, low, high, len(sequences)) + rows


# --- packed -----------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.binary(min_size=16, max_size=16),
        st.tuples(U64, U64, st.lists(st.tuples(U64, U64), min_size=1, max_size=3)),
        max_size=4,
    )
)
def test_both_pack_the_same(both_kernels: Callable[[str], Pair], drawn: dict[bytes, tuple[int, int, Any]]) -> None:
    def sessions() -> dict[bytes, list[Any]]:
        return {key: [low, high, [row(*each) for each in rows]] for key, (low, high, rows) in drawn.items()}

    native, python = both_kernels("pack_sessions")
    made = native(sessions())
    assert made == python(sessions())
    rows = [SessionRows(key, low, high, b"".join(sorted(rows))) for key, (low, high, rows) in sessions().items()]
    assert payload.encode([], 0, [], made) == payload.encode([], 0, [], rows)


# --- sums -------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(BYTES, st.tuples(st.none() | BYTES, st.none() | BYTES, st.booleans()), max_size=5), U64)
def test_both_sum_the_same(
    both_kernels: Callable[[str], Pair], drawn: dict[bytes, tuple[bytes | None, bytes | None, bool]], seed: int
) -> None:
    rows = {key: after for key, (_, after, _) in drawn.items()}
    stored = {key: before for key, (before, _, _) in drawn.items()}
    found = []
    for kernels_own in both_kernels("sum_of_changes"):
        known = {key: before for key, (before, _, is_known) in drawn.items() if is_known}
        found.append((kernels_own(rows, known, stored.__getitem__, seed % 2**32), known))
    assert found[0] == found[1]
    assert found[0][1] == stored


def test_a_sum_is_that_of_its_rows(each_kernel: Callable[[str], Any]) -> None:
    seed = crc32c(DEDUP.encode())
    change = each_kernel("sum_of_changes")({b"k": b"new", b"gone": None}, {}, {b"k": b"old", b"gone": b"x"}.get, seed)
    rows = [(b"k", b"new", 1), (b"k", b"old", -1), (b"gone", b"x", -1)]
    assert change == sum([sign * row_sum(DEDUP, key, value) for key, value, sign in rows]) % 2**64


# --- applied ----------------------------------------------------------------------------------------------------------


def whole(session: ProducerSession | None) -> Any:
    """Returns all of a session, however its parts are divided in memory."""
    return session and (session[:3], tuple(session.all_parts()), session.is_lone)


class Applied:
    """The sessions of a state, with one of the kernels."""

    def __init__(self, add: Callable[..., int], level: int = LEVEL) -> None:
        self.add = add
        self.kv = MemoryKV()
        self.level = level
        self.dedup = Dedup(self.kv, sessions_max=3, level=lambda: self.level)
        self.taken = 0
        self.total = 0
        """The sum of all rows, by what changed."""

    def apply(self, entries: list[tuple[int, bytes]], ended: tuple[int, ...] = ()) -> tuple[Any, ...]:
        """Applies (index, sessions) of each entry of one run. Returns all that the run changes."""
        stage = Stage(self.kv)
        for index, data in entries:
            self.dedup.add_sessions(stage, data, index, 1000 + index)
        if ended:
            self.dedup.end(stage, EndSessions([bytes([producer]) * 16 for producer in ended]))
        return self._written(stage)

    def expire(self, before_ms: int, rows_max: int) -> tuple[Any, ...]:
        """Applies one slice of a removal of idle sessions, a run of its own. Returns what `apply` does."""
        stage = Stage(self.kv)
        done = self.dedup.expire_sessions(stage, before_ms, b"", rows_max)
        return (done, *self._written(stage))

    def _written(self, stage: Stage) -> tuple[Any, ...]:
        sums = changes(self.kv, stage)
        known = {key: value for key, value in stage.before[DEDUP].items() if key in stage.rows[DEDUP]}
        wrong = {key: value for key, value in known.items() if self.kv.get(DEDUP, key) != value}
        assert not wrong, "a value that a row is said to have"
        rows = dict(stage.rows[DEDUP])
        self.kv.write(stage.batch())
        self.dedup.publish()
        self.total = (self.total + sum([change for _, change in sums])) % 2**64
        assert self.total == count(self.kv)[DEDUP]
        sessions = [self.dedup.session(bytes([producer]) * 16) for producer in range(5)]
        anew = Dedup(self.kv)  # as after a restart
        assert [whole(anew.session(bytes([producer]) * 16)) for producer in range(5)] == list(map(whole, sessions))
        return rows, sums, sessions

    def taking(self, *arguments: Any) -> int:
        """Counts the bytes that the kernel takes."""
        stop = self.add(*arguments)
        self.taken += stop - arguments[1]
        return stop


SESSIONS = st.dictionaries(
    st.integers(0, 4), st.tuples(st.integers(0, 3), st.lists(st.integers(0, 4), max_size=3, unique=True)), max_size=4
)
RUNS = st.lists(
    st.tuples(
        st.lists(SESSIONS, max_size=3),
        st.lists(st.integers(0, 4), max_size=1),
        st.sampled_from([1, 70_000]),
        st.none() | st.tuples(st.integers(0, 4), st.integers(1, 4)),
    ),
    max_size=12,
)


@given(RUNS, st.integers(0, 12))
def test_both_ways_end_alike(monkeypatch_module: pytest.MonkeyPatch, runs: Any, raised_at: int) -> None:
    """A producer's sequences grow, by one or beyond the window; some are settled, some are sent again, and idle ones
    are forgotten in slices. The cluster gets the level of sessions in one row before one of the runs, or has it from
    the beginning, or never."""
    native, python = Applied(native_kernel().add_sessions), Applied(kernel.SHORTCUTS["add_sessions"])
    index, high = 0, dict.fromkeys(range(5), 1)
    for number, (entries, ended, step, idle) in enumerate(runs):
        native.level = python.level = SESSIONS_LEVEL if number >= raised_at else BASELINE
        run = []
        for sessions in entries:
            index += 1
            data = b""
            for producer, (settled, sequences) in sessions.items():
                at = high[producer] = high[producer] + step
                data += packed(producer, max(0, at - settled), *sorted([at + each for each in sequences]))
            run.append((index, data))
        found = []
        for state in (native, python):
            monkeypatch_module.setattr(dedup, "add_sessions", state.taking)
            found.append([state.apply(run, tuple(ended))])
            if idle is not None:
                found[-1].append(state.expire(1000 + index - idle[0], idle[1]))
        assert found[0] == found[1]
    assert not python.taken


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_the_kernel_takes_what_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Applied(native_kernel().add_sessions)
    monkeypatch.setattr(dedup, "add_sessions", state.taking)
    state.apply([(1, packed(1, 1, 1) + packed(2, 1, 1))])
    assert state.taken == 0, "sessions that the state does not know"
    data = packed(1, 2, 2) + packed(2, 1, 2, 3)
    state.apply([(2, data)])
    assert state.taken == len(data)
    state.apply([(3, packed(1, 3))])
    assert state.taken == len(data), "a session without rows"
    unsettled = [(index, packed(2, 1, index)) for index in range(4, PIECE_MAX + 4)]
    state.apply(unsettled)
    session = state.dedup.session(bytes([2]) * 16)
    assert session is not None
    assert (len(session.older), session.parts_count) == (1, PIECE_MAX + 2)
    taken = state.taken
    state.apply([(100, packed(2, 1, 100))])
    assert state.taken == taken, "a session with older pieces"
    last = SESSION_WINDOW_MAX + 200
    state.apply([(101, packed(2, 100, last))])
    part = dedup.SessionPart(101, last, last, row(last))
    assert state.dedup.session(bytes([2]) * 16) == dedup.ProducerSession(200, last, 1101, (part,), (), True)


def rows_of(state: Applied, producer: int) -> tuple[int, list[int]]:
    """Returns (entry in the producer's own row or 0, entries that have rows of their own)."""
    name = bytes([producer]) * 16
    own = state.kv.get(DEDUP, keys.producer_key(name)) or b""
    (lone,) = keys.U64.unpack_from(own, keys.PRODUCER.size) if len(own) > keys.PRODUCER.size else (0,)
    return lone, [keys.parse_session_key(key)[1] for key, _ in state.kv.scan(DEDUP, *keys.sessions_of(name))]


@pytest.mark.parametrize("name", ["native", "python"])
def test_a_session_of_one_entry_is_one_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its level on. A part leaves the producer's row when another joins it, and never comes back."""
    add = native_kernel().add_sessions if name == "native" else kernel.SHORTCUTS["add_sessions"]
    state = Applied(add, BASELINE)
    monkeypatch.setattr(dedup, "add_sessions", add)
    found = {}

    def apply(index: int, data: bytes) -> None:
        state.apply([(index, data)])
        found[index] = rows_of(state, 1)

    apply(1, packed(1, 1, 1))
    state.level = SESSIONS_LEVEL
    apply(2, packed(1, 2, 2))
    apply(3, packed(1, 2, 3))  # 2 is not settled
    apply(4, packed(1, 3))  # now it is, by an entry without rows
    apply(5, packed(1, 5, 5))
    apply(6, packed(1, 5))
    apply(7, packed(1, 7))
    apply(8, packed(1, 8, *range(8, 8 + LONE_ROWS_MAX)))
    apply(9, packed(1, 20, *range(20, 21 + LONE_ROWS_MAX)))
    apply(10, packed(1, 100, 100))
    assert found == {
        1: (0, [1]),
        2: (2, []),
        3: (0, [2, 3]),
        4: (0, [3]),
        5: (5, []),
        6: (5, []),
        7: (0, []),
        8: (8, []),
        9: (0, [9]),
        10: (10, []),
    }
    state.apply([(11, packed(1, 101, 101)), (12, packed(1, 101, 102)), (13, packed(1, 103, 103))])
    assert rows_of(state, 1) == (13, []), "of one run"
    state.apply([], ended=(1,))
    assert (rows_of(state, 1), state.dedup.session(bytes([1]) * 16)) == ((0, []), None)


@pytest.mark.parametrize("name", ["native", "python"])
def test_what_is_wrong_with_sessions_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = native_kernel().add_sessions if name == "native" else kernel.SHORTCUTS["add_sessions"]
    state = Applied(add)
    monkeypatch.setattr(dedup, "add_sessions", add)
    first, second = packed(1, 1, 1), packed(2, 1, 1)
    state.apply([(1, first + second)])
    for index, end in enumerate((len(second) - 1, 41, 39, 1), 2):
        with pytest.raises(PayloadError, match="is cut"):
            state.dedup.add_sessions(Stage(state.kv), first + second[:end], index, 5)
    with pytest.raises(InvariantViolationError, match="two sessions of one producer in entry 9"):
        state.dedup.add_sessions(Stage(state.kv), first + first, 9, 5)


def test_a_row_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 32 bytes, not 31"):
        native_kernel().pack_sessions({bytes(16): [1, 1, [bytes(31)]]})
    with pytest.raises((OverflowError, struct.error)):
        native_kernel().pack_sessions({bytes(16): [-1, 1, [bytes(32)]]})
