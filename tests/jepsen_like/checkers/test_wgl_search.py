"""The search against brute force on small histories, hand-made subtle ones, and its honest way of giving up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from jepsen_like.checkers.counterexample_shrink import smallest
from jepsen_like.checkers.registers import REGISTER, drop_needless, step
from jepsen_like.checkers.wgl_search import OPEN, Call, Impossible, search
from tests.support.rows import each_row


def brute_force(calls: Sequence[Call], state: object = None) -> bool:
    """Every order that time allows of all known calls and any of the unknown ones, without memory."""
    known = [call for call in calls if not call.is_open]
    if not known:
        return True
    for call in calls:
        if all(other.completed >= call.invoked for other in known if other is not call):
            moved = step(state, call)
            if not isinstance(moved, Impossible) and brute_force([c for c in calls if c is not call], moved):
                return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    count = draw(st.integers(1, 7))
    moments = draw(st.permutations(range(2 * count)))
    values = st.sampled_from([None, 1, 2])
    calls = []
    for i in range(count):
        begin, end = sorted(moments[2 * i : 2 * i + 2])
        f = draw(st.sampled_from(["put", "get", "get", "cas", "create"]))
        argument = {"put": draw(values), "cas": (draw(values), draw(values)), "create": draw(st.sampled_from([1, 2]))}
        result = draw(values) if f == "get" else draw(st.booleans()) if f in ("cas", "create") else None
        is_open = f != "get" and draw(st.integers(0, 3)) == 0
        calls.append(Call(begin, OPEN if is_open else end, f, argument.get(f), None if is_open else result))
    return sorted(calls)


@seed(20240611)
@settings(max_examples=500, deadline=None, database=None)
@given(histories())
def test_the_search_agrees_with_brute_force(calls: list[Call]) -> None:
    expected = brute_force(calls)
    answer = search(calls, REGISTER, 1_000_000)
    assert answer.linearizable is expected
    assert search(drop_needless(calls), REGISTER, 1_000_000).linearizable is expected
    if not expected:
        assert answer.stuck is not None
        witness = smallest(calls, answer.stuck, REGISTER)
        assert not brute_force(witness)
        assert len(witness) <= len(calls)


def test_drawn_histories_are_of_both_kinds() -> None:
    """Else the property above proves nothing: about a third of them are linearizable."""
    drawn = {True: 0, False: 0}

    @seed(1)
    @settings(max_examples=200, deadline=None, database=None)
    @given(histories())
    def count(calls: list[Call]) -> None:
        drawn[bool(search(calls, REGISTER, 1_000_000).linearizable)] += 1

    count()
    assert min(drawn.values()) > 30, drawn


def put(begin: int, end: int, value: object) -> Call:
    return Call(begin, end, "put", value, None)


def get(begin: int, end: int, value: object) -> Call:
    return Call(begin, end, "get", None, value)


def cas(begin: int, end: int, old: object, new: object, swapped: bool | None) -> Call:
    return Call(begin, end, "cas", (old, new), swapped)


GOOD = {
    "nothing": [],
    "a read of nothing": [get(0, 1, None)],
    "a read that overlaps a write sees either": [put(0, 3, 1), get(1, 2, None), get(4, 5, 1)],
    "an unknown write shows up late": [put(0, 1, 1), put(2, OPEN, 2), get(3, 4, 1), get(5, 6, 2)],
    "an unknown write never shows up": [put(0, 1, 1), put(2, OPEN, 2), get(3, 4, 1)],
    "an unknown write explains a failed compare-and-set": [put(0, 1, 1), put(2, OPEN, 2), cas(3, 4, 1, 3, False)],
    "two readers while the write is under way, old then new": [put(0, 9, 1), get(1, 2, None), get(3, 4, 1)],
    "concurrent writes in the order the reads need": [put(0, 9, 1), put(1, 8, 2), get(10, 11, 1), get(12, 13, 1)],
}

BAD = {
    "a stale read": [put(0, 1, 1), put(2, 3, 2), get(4, 5, 1)],
    "new then old while the write is under way": [put(0, 9, 1), get(1, 2, 1), get(3, 4, None)],
    "two readers disagree about two concurrent writes": [
        put(0, 9, 1),
        put(1, 8, 2),
        get(10, 11, 1),
        get(12, 13, 2),
    ],
    "an unknown write is undone": [put(0, 1, 1), put(2, OPEN, 2), get(3, 4, 2), get(5, 6, 1)],
    "both of two compare-and-sets win": [put(0, 1, 1), cas(2, 5, 1, 2, True), cas(3, 4, 1, 3, True)],
    "created twice": [Call(0, 1, "create", 1, True), Call(2, 3, "create", 2, True)],
    "a lost update": [put(0, 1, 1), cas(2, 3, 1, 2, True), get(4, 5, 1)],
    "read before the write began": [get(0, 1, 1), put(2, 3, 1)],
}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    assert brute_force(GOOD[name]) is True
    assert search(GOOD[name], REGISTER, 10_000).linearizable is True


@each_row("name", BAD)
def test_bad(name: str) -> None:
    assert brute_force(BAD[name]) is False
    assert search(BAD[name], REGISTER, 10_000).linearizable is False


def long_history(seed: int, operations: int, *, clients: int, unknown: float, values: int = 1_000_000) -> list[Call]:
    """A history of a register that is one: every call takes effect at some moment between its two ends."""
    rng = random.Random(seed)
    state: int | None = None
    calls: list[Call] = []
    under_way: list[tuple[int, str, int | None]] = []
    moment = 0
    while len(calls) < operations:
        moment += 1
        if len(under_way) < clients and rng.random() < 0.6:
            under_way.append((moment, rng.choice(["put", "get"]), rng.randrange(values)))
        elif under_way:
            begin, f, value = under_way.pop(rng.randrange(len(under_way)))
            if f == "put" and rng.random() < unknown:
                if rng.random() < 0.5:
                    state = value
                calls.append(Call(begin, OPEN, "put", value, None))
            elif f == "put":
                state = value
                calls.append(put(begin, moment, value))
            else:
                calls.append(get(begin, moment, state))
    return calls


def test_what_a_register_did_is_linearizable_also_if_values_repeat() -> None:
    """Few values and many clients: most paths of the search meet configurations that others have left before."""
    for seed_ in range(300):
        calls = long_history(seed_, 30, clients=7, unknown=0.1, values=3)
        assert search(calls, REGISTER, 500_000).linearizable is True, seed_


@pytest.mark.parametrize("seed_", range(3))
def test_long_histories_are_decided(seed_: int) -> None:
    calls = long_history(seed_, 2_000, clients=8, unknown=0.02)
    assert search(drop_needless(calls), REGISTER, 500_000).linearizable is True
    reads = [i for i, call in enumerate(calls) if call.f == "get" and i > 1_000]
    planted = list(calls)
    planted[reads[0]] = planted[reads[0]]._replace(result=-1)
    answer = search(drop_needless(planted), REGISTER, 500_000)
    assert answer.linearizable is False
    assert answer.stuck == planted[reads[0]]


@each_row("seed_", range(5))
def test_a_stale_read_in_a_long_history_is_proved_by_few_calls(seed_: int) -> None:
    calls = long_history(seed_, 600, clients=4, unknown=0.01)
    ordered = sorted((call for call in calls if not call.is_open), key=lambda call: call.completed)
    old = next(call for call in ordered if call.f == "put")
    end = ordered[-1].completed
    newer = [put(end + 1, end + 2, -5), get(end + 3, end + 4, old.argument)]
    answer = search([*calls, *newer], REGISTER, 500_000)
    assert answer.linearizable is False
    assert answer.stuck == newer[1]
    witness = smallest([*calls, *newer], answer.stuck, REGISTER)
    assert newer[1] in witness
    assert len(witness) <= 4, witness


def test_out_of_steps_is_no_verdict() -> None:
    calls = [put(2 * i, 1_000 + i, i) for i in range(40)] + [get(5_000, 5_001, -1)]
    answer = search(calls, REGISTER, 2_000)
    assert answer.linearizable is None
    assert answer.steps == 2_001


def test_a_search_that_takes_writes_for_reads_fails_the_table() -> None:
    careless = REGISTER._replace(observes=lambda call: True)
    assert any(not search(calls, careless, 10_000).linearizable for calls in GOOD.values())


def test_only_an_unknown_call_explains_what_shows_up_late() -> None:
    calls = GOOD["an unknown write shows up late"]
    known_only = [call for call in calls if call.completed != OPEN]
    assert search(known_only, REGISTER, 10_000).linearizable is False
