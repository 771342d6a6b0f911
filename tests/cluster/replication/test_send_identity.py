"""RetryMemory and ConnectionSession: which later send takes over which identity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication import send_identity
from cluster.replication.send_identity import REMEMBER_MS, ConnectionSession, Identity, RetryMemory


def named(sequence: int) -> Identity:
    return Identity(bytes(16), sequence, 1)


def test_each_record_is_handed_out_once_oldest_first() -> None:
    memory = RetryMemory()
    for sequence in (1, 2):
        memory.remember(0, "T", "K", b"body", named(sequence), 0)
    assert len(memory) == 2
    assert [memory.claim(0, "T", "K", b"body", 0) for _ in range(3)] == [named(1), named(2), None]
    assert len(memory) == 0


@pytest.mark.parametrize(("topic", "key", "body"), [("U", "K", b"body"), ("T", "L", b"body"), ("T", "K", b"other")])
def test_topic_key_and_body_must_be_equal(topic: str, key: str, body: bytes) -> None:
    memory = RetryMemory()
    memory.remember(0, "T", "K", b"body", named(1), 0)
    assert memory.claim(0, topic, key, body, 0) is None
    assert memory.claim(0, "T", "K", b"body", 0) == named(1)


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
    assert len(memory) == 1
    assert memory.claim(0, "T", "L", b"a", REMEMBER_MS) == named(2)


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_identity, "REMEMBER_MAX", 3)
    memory = RetryMemory()
    for sequence in range(5):
        memory.remember(0, "T", f"K{sequence}", b"a", named(sequence), 0)
    assert len(memory) == 3
    assert [memory.claim(0, "T", f"K{at}", b"a", 0) for at in range(5)] == [None, None, named(2), named(3), named(4)]


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
        assert len(memory) == sum(map(len, model.values()))


def test_low_is_the_oldest_unanswered_sequence() -> None:
    session = ConnectionSession(bytes(16))
    assert [session.issue()[1:] for _ in range(3)] == [(1, 1), (2, 1), (3, 1)]
    session.settle(2)
    assert session.issue()[1:] == (4, 1)
    session.settle(1)
    session.settle(1)
    assert session.issue()[1:] == (5, 3)
