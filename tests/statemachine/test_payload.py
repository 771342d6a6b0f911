"""The payload of a MESSAGES entry: frozen bytes, round trips, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine import payload
from statemachine.payload import PayloadError, RowKind, Run, SessionRows, UniqueRow
from tests.support.rows import each_row

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
item = st.tuples(u64, u32, u32, st.integers(-(2**63), 2**63 - 1), u64)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    rows = draw(st.lists(item, min_size=1, max_size=4))
    packed = b"".join(payload.ITEM.pack(*row) for row in rows)
    return Run(draw(u32), draw(u32), draw(u64), len(rows), draw(st.integers(0, 4)), packed)


@st.composite
def sessions(draw: st.DrawFn) -> SessionRows:
    rows = draw(st.lists(st.tuples(u64, u32, u32, u64, u64), max_size=4))
    packed = b"".join(payload.SESSION_ROW.pack(*row) for row in rows)
    return SessionRows(draw(st.binary(min_size=16, max_size=16)), draw(u64), draw(u64), packed)


unique_rows = st.builds(UniqueRow, u64, u32, u32, u64, u64, u32)


@given(
    st.lists(st.binary(max_size=9)),
    u32,
    st.lists(runs(), max_size=3),
    st.lists(sessions(), max_size=3),
    st.lists(unique_rows, max_size=3),
    st.binary(max_size=9),
    st.integers(0, 3).map(lambda n: bytes(range(n * 8))),
)
def test_round_trip(
    messages: list[bytes],
    count: int,
    some_runs: list[Run],
    some_sessions: list[SessionRows],
    unique: list[UniqueRow],
    effects: bytes,
    keys: bytes,
) -> None:
    body = b"".join(messages)
    encoded = payload.encode(messages, count, some_runs, some_sessions, unique, effects, keys)
    decoded = payload.decode(encoded)
    assert (decoded.message_count, decoded.messages_len, decoded.effects) == (count, len(body), effects)
    assert (decoded.keys, encoded[0]) == (keys, payload.VERSION)
    assert encoded[payload.HEAD.size : payload.HEAD.size + len(body)] == body
    assert decoded.decoded_runs() == some_runs
    assert list(decoded.iter_sessions()) == some_sessions
    assert list(decoded.iter_unique()) == unique


def test_frozen_bytes() -> None:
    """These bytes are on disk in every log: they may only change together with VERSION."""
    encoded = payload.encode(
        [b"ab", b"c"],
        2,
        [Run(1, 2, 3, 1, 0, payload.ITEM.pack(104, 3, 0xC0FFEE, -2, 1_700_000_000_000))],
        [SessionRows(bytes(range(16)), 5, 6, payload.SESSION_ROW.pack(6, 1, 2, 3, 104))],
        [UniqueRow(7, 1, 2, 3, 104, 9)],
        b"\x90",
    )
    assert encoded.hex(" ", 4) == (
        "0a000000 00000003 00000002 00000038 00000048 00000028 00000000 00000001 00000000 00000000 "
        "61626300 00000100 00000200 00000000 00000300 00000100 00000000 00000000 00006800 00000300 "
        "c0ffeeff ffffffff fffffe00 00018bcf e5680000 01020304 05060708 090a0b0c 0d0e0f00 00000000 "
        "00000500 00000000 00000600 00000100 00000000 00000000 00000600 00000100 00000200 00000000 "
        "00000300 00000000 00006800 00000000 00000700 00000100 00000200 00000000 00000300 00000000 "
        "00006800 00000900 00000090"
    )


def test_frozen_bytes_with_keys() -> None:
    encoded = payload.encode([b"ab"], 1, [], keys=bytes.fromhex("c0ffee0100000068"))
    assert encoded.hex(" ", 4) == (
        "0a00 00000000 00020000 00010000 00000000 00000000 00000000 00080000 "
        "00000000 00000000 00006162 c0ffee01 00000068"
    )


def test_keys_are_whole_records() -> None:
    with pytest.raises(PayloadError, match="do not add up"):
        payload.decode(payload.encode([b"ab"], 1, [], keys=bytes(7)))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_read(data: bytes) -> None:
    """Nothing but PayloadError ever comes out."""
    consume(data)


@given(
    st.lists(runs(), min_size=1, max_size=2),
    st.lists(sessions(), min_size=1, max_size=2),
    st.integers(0, 500),
    st.integers(1, 255),
)
def test_a_flipped_byte_is_refused_or_read(
    some_runs: list[Run], some_sessions: list[SessionRows], at: int, flip: int
) -> None:
    data = bytearray(payload.encode([b"m"], 1, some_runs, some_sessions))
    data[at % len(data)] ^= flip
    consume(bytes(data))


def consume(data: bytes) -> None:
    try:
        decoded = payload.decode(data)
        for part in (decoded.decoded_runs(), decoded.iter_sessions(), decoded.iter_unique()):
            list(part)
    except PayloadError:
        pass


@each_row("cut", [1, 8, 23, 24, 55])
def test_a_run_that_is_cut_is_refused(cut: int) -> None:
    whole = payload.encode([], 1, [Run(1, 0, 0, 1, 0, bytes(32))])[payload.HEAD.size :]
    shorter = whole[:cut]
    data = payload.HEAD.pack(payload.VERSION, 0, 1, len(shorter), 0, 0, 0, 0) + shorter
    with pytest.raises(PayloadError, match="cut"):
        payload.decode(data).decoded_runs()


def test_a_newer_version_is_named() -> None:
    data = bytearray(payload.encode([], 0, []))
    data[0] = payload.VERSION + 1
    with pytest.raises(PayloadError, match="newer RaftMQ"):
        payload.decode(bytes(data))


def test_the_kinds_of_rows_are_frozen() -> None:
    """They are in the log."""
    assert {kind.name: kind.value for kind in RowKind} == {
        "NORMAL": 0,
        "RETRY": 1,
        "DELIVERED": 2,
        "COMMITTED": 3,
        "DEAD_LETTER": 4,
        "SCHEDULED": 5,
        "HALF": 6,
        "CARRIED_TIMERS": 7,
        "CARRIED_HALF": 8,
    }
