"""Turns: cut work takes a share of each turn, fairly between owners, in order for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from cluster.runtime.turns.work import PAUSE_S, Paused, Turns, WorkSteps
from raftlog.work import charge


class Loop:
    """Turns by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.turns = Turns(self.soon.append, share=10)
        self.did: list[str] = []

    def turn(self) -> list[str]:
        """One turn; what it did."""
        callbacks, self.soon[:] = list(self.soon), []
        self.did.clear()
        for callback in callbacks:
            callback()
        return list(self.did)

    def work(self, name: str, steps: int, units: int = 5) -> WorkSteps:
        for step in range(steps):
            charge(units)
            self.did.append(f"{name}{step}")
            yield


def test_work_that_fits_is_done_at_once() -> None:
    loop = Loop()
    loop.turns.begin("a", loop.work("a", 1))
    assert loop.did == ["a0"]


def test_longer_work_goes_on_in_the_next_turns_by_its_share() -> None:
    loop = Loop()
    loop.turns.begin("a", loop.work("a", 5))
    assert loop.did == ["a0", "a1"]
    assert [loop.turn(), loop.turn(), loop.turn()] == [["a2", "a3"], ["a4"], []]


def test_owners_take_turns_and_one_owners_work_stays_in_order() -> None:
    loop = Loop()
    loop.turns.begin("a", loop.work("a", 3, units=10))
    loop.turns.begin("a", loop.work("A", 1, units=10))
    loop.turns.begin("b", loop.work("b", 2, units=10))
    assert loop.did == ["a0"]
    assert [loop.turn() for _ in range(6)] == [["a1"], ["b0"], ["a2"], ["b1"], ["A0"], []]


def test_a_dropped_owners_work_is_given_up() -> None:
    loop = Loop()
    loop.turns.begin("a", loop.work("a", 9))
    loop.turns.drop("a")
    assert loop.turn() == []


@pytest.mark.parametrize("before", [0, 1])
def test_who_is_dropped_by_a_step_of_its_own_does_nothing_more(before: int) -> None:
    """`before` 1: the step is dealt out in a later turn, and other work of the owner waits behind it."""
    loop = Loop()
    closed: list[str] = []

    def leaves() -> WorkSteps:
        try:
            for _ in range(before):
                charge(10)
                yield
            loop.turns.drop("a")
            loop.did.append("left")
            yield
            loop.did.append("never")
        finally:
            closed.append("a")

    loop.turns.begin("a", leaves())
    loop.turns.begin("a", loop.work("a", 3)) if before else None
    loop.turns.begin("b", loop.work("b", 3, units=1)) if before else None
    did = [*loop.did, *loop.turn(), *loop.turn(), *loop.turn()]
    assert did == (["left", "b0", "b1", "b2"] if before else ["left"])
    assert closed == ["a"]
    loop.turns.begin("a", loop.work("again", 2))
    assert [*loop.did, *loop.turn()] == ["again0", "again1"], "a client of that name may come back"


def test_work_that_begins_later_has_nothing_of_this_turn() -> None:
    loop = Loop()
    loop.turns.begin_later("a", loop.work("a", 2))
    assert loop.did == []
    assert loop.turn() == ["a0", "a1"]


def test_work_that_fails_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> WorkSteps:
        charge(10)
        yield
        raise ValueError("broken")

    loop = Loop()
    loop.turns.begin("a", failing())
    loop.turns.begin("b", loop.work("b", 1))
    assert loop.turn() == ["b0"]
    assert "broken" in caplog.text


async def test_a_coroutine_breathes_between_its_steps() -> None:
    turns = Turns(asyncio.get_running_loop().call_soon, share=10)
    did: list[str] = []

    async def work(name: str) -> None:
        for step in range(3):
            await turns.breathe(name)
            charge(10)
            did.append(f"{name}{step}")

    await asyncio.gather(work("a"), work("b"))
    assert did == ["a0", "a1", "b0", "a2", "b1", "b2"]  # each in a turn of its own


class Clock:
    """A loop that notes what is scheduled, and when."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def call_soon(self, again: Callable[[], None]) -> None:
        self.asked.append(0.0)

    def call_later(self, delay_s: float, again: Callable[[], None]) -> None:
        self.asked.append(delay_s)


def test_patient_work_pauses_while_the_node_has_other_turns() -> None:
    clock, turns = Clock(), iter((7, 7, 8, 8, 20))
    paused = Paused(cast(Any, clock), turns.__next__)
    for _ in range(5):
        paused(lambda: None)
    assert clock.asked == [PAUSE_S, 0.0, PAUSE_S, 0.0, PAUSE_S]


def test_patient_work_has_a_share_of_its_own_and_leaves_other_work_its_turns() -> None:
    loop, later = Loop(), list[Callable[[], None]]()
    turns = Turns(loop.soon.append, share=10, patient=later.append)
    turns.patient.begin("list", loop.work("list", 5))
    turns.begin("send", loop.work("send", 3))
    assert loop.did == ["list0", "list1", "send0", "send1"]
    assert loop.turn() == ["send2"]
    assert loop.turn() == []
    loop.did.clear()
    later.pop()()
    assert loop.did == ["list2", "list3"]


def test_without_a_pause_patient_work_is_like_all_other() -> None:
    turns = Turns(lambda again: None)
    assert turns.patient is turns
