"""RetryMemory, ConnectionSession and the names of sessions: which later send takes over which identity."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.send_identity import (
    ID_SIZE,
    NO_NAMES,
    REMEMBER_MS,
    SLICES,
    ConnectionSession,
    Identity,
    RetryMemory,
    SessionIds,
    SessionKind,
    content_hash,
    names_in,
    names_of,
    session_id,
    slice_hash,
)
from raftmq_wire.crc import crc32
from statemachine.levels import LEVEL, OWNERS_LEVEL
from tests.support.rows import each_row


def named(sequence: int) -> Identity:
    return Identity(bytes(16), sequence, 1)


def test_each_record_is_handed_out_once_oldest_first() -> None:
    memory = RetryMemory()
    for sequence in (1, 2):
        memory.remember(0, "T", "K", b"body", named(sequence), 0)
    assert memory.count == 2
    assert [memory.claim(0, "T", "K", b"body", 0) for _ in range(3)] == [named(1), named(2), None]
    assert memory.count == 0


@pytest.mark.parametrize(("topic", "key", "body"), [("U", "K", b"body"), ("T", "L", b"body"), ("T", "K", b"other")])
def test_topic_key_and_body_must_be_equal(topic: str, key: str, body: bytes) -> None:
    memory = RetryMemory()
    memory.remember(0, "T", "K", b"body", named(1), 0)
    assert memory.claim(0, topic, key, body, 0) is None
    assert memory.claim(0, "T", "K", b"body", 0) == named(1)


def test_another_user_s_send_is_no_retry() -> None:
    memory = RetryMemory()
    memory.remember(7, "T", "K", b"body", named(1), 0)
    assert memory.holds(7, "T", b"K")
    assert not memory.holds(0, "T", b"K")
    assert memory.claim(8, "T", "K", b"body", 0) is None
    assert memory.claim(0, "T", "K", b"body", 0) is None
    assert memory.claim(7, "T", "K", b"body", 0) == named(1)


def test_a_body_with_an_equal_crc_is_no_retry() -> None:
    one, other = b"plumless", b"buckeroo"
    assert crc32(one) == crc32(other)
    memory = RetryMemory()
    memory.remember(0, "T", "K", one, named(1), 0)
    assert memory.claim(0, "T", "K", other, 0) is None


def test_one_key_with_two_bodies() -> None:
    memory = RetryMemory()
    memory.remember(0, "T", "K", b"a", named(1), 0)
    memory.remember(0, "T", "K", b"b", named(2), 0)
    assert memory.claim(0, "T", "K", b"b", 0) == named(2)
    assert memory.claim(0, "T", "K", b"b", 0) is None
    assert memory.claim(0, "T", "K", b"a", 0) == named(1)


def test_too_old_to_be_a_retry() -> None:
    memory = RetryMemory()
    memory.remember(0, "T", "K", b"a", named(1), 0)
    assert memory.claim(0, "T", "K", b"a", REMEMBER_MS) is None
    memory.remember(0, "T", "L", b"a", named(2), 1)
    memory.expire(REMEMBER_MS)
    assert memory.count == 1
    assert memory.claim(0, "T", "L", b"a", REMEMBER_MS) == named(2)


def test_bounded() -> None:
    memory = RetryMemory(3)
    for sequence in range(5):
        memory.remember(0, "T", f"K{sequence}", b"a", named(sequence), 0)
    assert memory.count == 3
    assert [memory.claim(0, "T", f"K{at}", b"a", 0) for at in range(5)] == [None, None, named(2), named(3), named(4)]


def test_a_key_that_is_sent_again_and_again_neither_goes_first_nor_keeps_others() -> None:
    memory = RetryMemory(3)
    memory.remember(0, "T", "often", b"a", named(1), 0)
    memory.remember(0, "T", "once", b"a", named(2), 1)
    memory.remember(0, "T", "often", b"b", named(3), 2)
    memory.remember(0, "T", "new", b"a", named(4), 3)
    assert memory.claim(0, "T", "once", b"a", 3) is None, "it is the oldest"
    assert memory.claim(0, "T", "often", b"b", 3) == named(3)
    memory.remember(0, "T", "often", b"c", named(5), 4)
    memory.expire(REMEMBER_MS + 3)
    assert not memory.holds(0, "T", b"new")
    assert memory.claim(0, "T", "often", b"c", REMEMBER_MS + 3) == named(5)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_never_more_claims_than_records(steps: list[tuple[bool, int, int]]) -> None:
    memory = RetryMemory()
    model: dict[tuple[int, int], list[Identity]] = {}
    for at, (remembers, key, body) in enumerate(steps):
        kept = model.setdefault((key, body), [])
        if remembers:
            memory.remember(0, "T", str(key), bytes((body,)), named(at), at)
            kept.append(named(at))
        else:
            assert memory.claim(0, "T", str(key), bytes((body,)), at) == (kept.pop(0) if kept else None)
        assert memory.count == sum(map(len, model.values()))


def test_low_is_the_oldest_unanswered_sequence() -> None:
    session = ConnectionSession(bytes(16))
    assert [session.issue()[1:] for _ in range(3)] == [(1, 1), (2, 1), (3, 1)]
    session.settle(2)
    assert session.issue()[1:] == (4, 1)
    session.settle(1)
    session.settle(1)
    assert session.issue()[1:] == (5, 3)


kinds = st.sampled_from(SessionKind)
owners = st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
brought = st.one_of(
    st.binary(min_size=ID_SIZE, max_size=ID_SIZE), st.integers(0, 9).map(lambda at: SLICES + at.to_bytes(8, "big"))
)
sessions = st.tuples(kinds, owners, brought)


@given(sessions, sessions)
def test_sessions_are_one_only_if_kind_owner_and_name_are(one: Any, other: Any) -> None:
    assert (session_id(*one) == session_id(*other)) == (one == other)
    assert len(session_id(*one)) == ID_SIZE


@given(sessions, sessions)
def test_a_session_of_another_owner_or_kind_is_never_written_and_seen_only_without_an_owner(
    one: Any, other: Any
) -> None:
    (kind, owner, name), (other_kind, other_owner, other_name) = one, other
    names, others = names_of(kind, owner, name, LEVEL), names_of(other_kind, other_owner, other_name, LEVEL)
    if one != other:
        assert names.own != others.own
    if others.own in names[1:]:
        assert (other_kind, other_owner, other_name) == (kind, 0, name)


@given(sessions, st.integers(10, OWNERS_LEVEL - 1))
def test_names_below_the_level_are_the_clients_own(one: Any, level: int) -> None:
    kind, owner, name = one
    assert names_of(kind, owner, name, level) == SessionIds(name)
    names = names_of(kind, owner, name, OWNERS_LEVEL)
    assert names.own == session_id(kind, owner, name)
    assert names.unowned == (session_id(kind, 0, name) if owner else b"")
    assert names.before == (b"" if name.startswith(SLICES) and kind is not SessionKind.SLICE else name)


@each_row("text", ["", "ab" * 15, "ab" * 17, "zz" * 16, "ab" * 15 + " a", "ab " * 10 + "ab", "é" * 32])
def test_a_malformed_name_is_none(text: str) -> None:
    assert names_in(SessionKind.SEND, 0, text, LEVEL) == NO_NAMES


def test_a_name_is_32_digits_of_either_case() -> None:
    names = names_of(SessionKind.SEND, 7, b"\xab" * 16, LEVEL)
    assert names_in(SessionKind.SEND, 7, "AB" * 16, LEVEL) == names_in(SessionKind.SEND, 7, "ab" * 16, LEVEL) == names


messages = st.tuples(owners, st.text(max_size=4), st.binary(max_size=4))


@given(messages, messages)
def test_messages_of_a_strict_topic_are_one_only_if_owner_key_and_body_are(one: Any, other: Any) -> None:
    assert (content_hash(*one) == content_hash(*other)) == (one == other)


@given(st.binary())
def test_the_hash_of_a_slice_is_never_that_of_a_row_without_one(body: bytes) -> None:
    assert 0 < slice_hash(body) < 1 << 63
