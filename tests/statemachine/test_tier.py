"""Rows of the tier: which steps the log accepts, and that refused ones change nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine import tier
from statemachine.broker_state import BrokerState
from statemachine.rows import running_digest
from statemachine.rows.digest import digest
from statemachine.rows.kv import TIER
from statemachine.tier import MoveSegment, SegmentSpan, TierPart, TierState
from tests.support.rows import each_row
from tests.support.state_kit import FedState, applied_in_groups

UPLOADING, UPLOADED, VERIFIED, DELETING, DELETED = TierState
DIGEST = b"s" * 16


def span(number: int, size: int = 100) -> list[int]:
    """The segment number `number` of a log whose segments have `size` bytes and ten entries."""
    return [(number + 1) * size, number * 10, number * 10 + 9, number * 1000, number * 1000 + 999]


def parts(number: int, size: int = 100) -> list[list[Any]]:
    return [[f"log/{number}", size, DIGEST, 7], [f"index/{number}", 33, DIGEST, 8]]


class Tier(FedState):
    """A state, and steps of its segments of 100 bytes."""

    def step(self, number: int, state: TierState, term: int = 1, **changed: Any) -> str:
        """The code of the answer: "" if it was accepted."""
        told: dict[str, Any] = {
            "base": number * 100,
            "span": span(number) if state == UPLOADING else None,
            "parts": parts(number) if state == UPLOADED else None,
        } | changed
        before = (digest(self.kv), self.state.tier.rows)
        result = self.run(MoveSegment(told["base"], state, term, told["span"], told["parts"]))[0]
        if not result.ok:
            assert (digest(self.kv)[TIER], self.state.tier.rows) == (before[0][TIER], before[1])
        assert BrokerState(self.kv).tier.rows == self.state.tier.rows
        assert self.state.sums.totals == running_digest.count(self.kv)
        return result.code

    def verify(self, *numbers: int, term: int = 1) -> None:
        for number in numbers:
            assert [self.step(number, state, term) for state in (UPLOADING, UPLOADED, VERIFIED)] == ["", "", ""]

    def states(self) -> dict[int, int]:
        return {row.base // 100: row.state for row in self.state.tier.rows}

    def trim(self, position: int) -> None:
        """Has the log begin at `position`; no entry begins there, which no row of the tier depends on."""
        entry = self.log.entries[-1]._replace(position=position)
        self.state.apply([self.log.trim(entry)])


@pytest.fixture
def held(new_log: Callable[[], Any]) -> Tier:
    return Tier(new_log())


def test_a_segment_goes_through_its_states_and_out(held: Tier) -> None:
    held.verify(0)
    row = held.state.tier.rows[0]
    assert row == (0, VERIFIED, SegmentSpan(100, 0, 9, 0, 999), 1, tuple(TierPart(*part) for part in parts(0)))
    assert (row.stored_bytes, held.state.tier.end, held.state.tier.at(99), held.state.tier.at(100)) == (
        133,
        100,
        row,
        None,
    )
    held.trim(100)
    assert (held.step(0, DELETING), held.step(0, DELETED), held.states()) == ("", "", {})
    assert held.step(0, DELETED) == "invalid"


FORWARD = {
    UPLOADING: {UPLOADING, UPLOADED, DELETING},
    UPLOADED: {UPLOADED, VERIFIED, DELETING},
    VERIFIED: {VERIFIED, DELETING},
    DELETING: {DELETING, DELETED},
}
WAY: dict[TierState, list[TierState]] = {
    UPLOADING: [UPLOADING],
    UPLOADED: [UPLOADING, UPLOADED],
    VERIFIED: [UPLOADING, UPLOADED, VERIFIED],
    DELETING: [UPLOADING, DELETING],
}


@pytest.mark.parametrize("known", WAY)
@pytest.mark.parametrize("wanted", TierState)
def test_states_only_go_forward(held: Tier, known: TierState, wanted: TierState) -> None:
    held.trim(100)  # so that what is uploaded may be deleted
    held.verify(1)
    held.trim(300)
    held.verify(3)
    held.trim(400)
    for state in WAY[known]:
        assert held.step(4, state) == "" if state is not DELETING else True
    if known is DELETING:
        held.trim(500)
        assert held.step(4, DELETING) == ""
    else:
        held.trim(500)
    assert (held.step(4, wanted) == "") == (wanted in FORWARD[known])


def test_segments_follow_each_other_from_where_the_log_begins(held: Tier) -> None:
    assert held.step(1, UPLOADING) == "invalid"
    assert held.step(0, UPLOADED) == "invalid"
    held.verify(0)
    assert held.step(2, UPLOADING) == "invalid"
    assert held.step(1, UPLOADING, span=[200, 9, 19, 0, 0]) == "invalid"  # the first index is the last segment's
    held.verify(1)
    assert held.state.tier.verified_to(0) == 200


def test_a_log_that_was_trimmed_before_tiering_leaves_a_hole(held: Tier) -> None:
    held.trim(200)
    assert held.step(0, UPLOADING) == "invalid"
    held.verify(2)
    held.trim(500)
    assert held.step(3, UPLOADING) == "invalid"
    held.verify(5)
    tiered = held.state.tier
    assert (tiered.verified_to(200), tiered.verified_to(500), tiered.verified_to(0)) == (300, 600, 0)


def test_an_upload_that_the_trim_overtook_is_given_up(held: Tier) -> None:
    assert held.step(0, UPLOADING) == ""
    assert held.step(0, DELETING) == "invalid"  # its bytes are still served from here
    held.trim(100)
    assert (held.step(0, DELETING), held.step(0, UPLOADED)) == ("", "invalid")
    assert held.step(0, DELETED) == ""
    held.verify(1)


def test_a_deposed_leader_changes_nothing(held: Tier) -> None:
    assert held.step(0, UPLOADING, term=5) == ""
    assert held.step(0, UPLOADED, term=4) == "invalid"
    assert held.step(0, UPLOADING, term=6) == ""  # the next leader goes on
    assert held.step(0, UPLOADED, term=5) == "invalid"
    assert held.step(0, UPLOADED, term=6) == ""
    assert held.step(1, UPLOADING, term=5) == "invalid"


WRONG_SPANS = [
    None,
    [],
    [100, 0, 9, 0],
    [0, 0, 9, 0, 0],
    [100, 5, 4, 0, 0],
    [100, 0, 9, 5, 4],
    [-1, 0, 9, 0, 0],
    "span",
]
WRONG_PARTS = [
    None,
    [],
    [["log/0", 99, DIGEST, 0]],
    [["index/0", 100, DIGEST, 0]],
    [["log/0", 100, b"short", 0]],
    [["log/0", 100, DIGEST]],
    [["", 100, DIGEST, 0]],
    [["log/" + "x" * 200, 100, DIGEST, 0]],
    [["log/0", 100, DIGEST, 2**32]],
    [["log/0", 50, DIGEST, 0], ["log/0", 50, DIGEST, 0]],
    [["log/0", 0, DIGEST, 0], ["log/1", 100, DIGEST, 0]],
    [[f"log/{n}", 1, DIGEST, 0] for n in range(100)],
]


@each_row("wrong", WRONG_SPANS)
def test_a_span_that_cannot_be_is_refused(held: Tier, wrong: Any) -> None:
    assert held.step(0, UPLOADING, span=wrong) == "invalid"


@each_row("wrong", WRONG_PARTS)
def test_parts_that_are_not_the_segment_are_refused(held: Tier, wrong: Any) -> None:
    held.step(0, UPLOADING)
    assert held.step(0, UPLOADED, parts=wrong) == "invalid"


@each_row(("state", "term", "base"), [(0, 1, 0), (6, 1, 0), ("1", 1, 0), (1, 0, 0), (1, 1, None), (1, 1, -1)])
def test_other_arguments_are_refused(held: Tier, state: Any, term: Any, base: Any) -> None:
    assert held.run(MoveSegment(base, state, term, span(0), None))[0].code == "invalid"


@given(
    base=st.integers(0, 2**64 - 1),
    state=st.sampled_from(list(TierState)[:4]),
    numbers=st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
    named=st.dictionaries(st.text(min_size=1, max_size=20), st.integers(1, 2**64 - 1), max_size=4),
)
def test_a_row_says_what_was_written(base: int, state: TierState, numbers: list[int], named: dict[str, int]) -> None:
    parts = tuple(TierPart(name, size, DIGEST, size % 2**32) for name, size in named.items())
    row = tier.TierSegment(base, state, SegmentSpan(*numbers), 3, parts)
    assert tier.decode(base, tier.encode(row)) == row


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_rows_follow_from_the_log_however_it_is_grouped(seed: int, new_log: Callable[[], Any]) -> None:
    """Steps drawn at random, most of them wrong: what is accepted keeps the rows in order."""
    rng, held = Random(seed), Tier(new_log())
    for _ in range(60):
        number = rng.randrange(4)
        held.step(number, rng.choice(list(TierState)), rng.randint(1, 3))
        if rng.random() < 0.1:
            held.trim(rng.randrange(4) * 100)
        rows = held.state.tier.rows
        assert [row.base for row in rows] == sorted({row.base for row in rows})
        assert all(low.end <= high.base for low, high in pairwise(rows))
    state, kv = applied_in_groups(held.log.entries, seed)
    assert (state.tier.rows, digest(kv)) == (held.state.tier.rows, digest(held.kv))
    assert isinstance(kv, MemoryKV)


def test_what_is_remembered_of_the_rows_is_forgotten_when_one_changes(held: Tier) -> None:
    tier = held.state.tier
    held.verify(0)
    assert (tier.verified_to(0), tier.verified_to(0), tier.verified_to(100), tier.verified_to(7)) == (100, 100, 100, 7)
    assert tier.above(50) is tier.above(50)
    assert [row.base for row in tier.above(100)] == []
    held.verify(1)
    assert (tier.verified_to(100), tier.verified_to(0)) == (200, 200)
    assert [row.base for row in tier.above(100)] == [100]
    held.step(2, UPLOADING)
    assert tier.verified_to(0) == 200
    assert [row.base for row in tier.above(100)] == [100, 200]
    assert [tier.at(position) for position in (0, 99, 100, 299, 300)] == [
        tier.rows[0],
        tier.rows[0],
        tier.rows[1],
        tier.rows[2],
        None,
    ]
