"""OffsetOrder.settle: a query waits for the commits before it, also when they are undecided for longer than a request
may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.replication.offset_order import OffsetOrder
from cluster.replication.outcome import Done, Outcome, ProposeResult
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets


class Leader:
    """The part of a leader that OffsetOrder asks; the test says what becomes of each call."""

    def __init__(self) -> None:
        self.raw: Any = SimpleNamespace(applied_index=5)
        state: Any = SimpleNamespace(groups={"g": None}, offset=lambda *_: None)
        self.asked: list[tuple[list[Command], Done]] = []
        self.order = OffsetOrder(
            100, cast(Any, self.raw), state, lambda commands, done: self.asked.append((commands, done)), lambda: 0
        )
        self.settled = 0

    def settle(self) -> None:
        def done() -> None:
            self.settled += 1

        self.order.settle("g", done)

    def end(self, outcome: Outcome) -> None:
        """Ends the first of the requests that were asked."""
        self.asked.pop(0)[1](ProposeResult(outcome, [], None, ""))


@pytest.fixture
def leader() -> Leader:
    made = Leader()
    made.order.commit_later("g", 1, 0, 7)
    return made


def test_undecided_while_it_leads_on_is_waited_for(leader: Leader) -> None:
    """There was no majority for longer than the deadline; the entry is applied a moment after it is back."""
    leader.settle()
    assert [commands for commands, _ in leader.asked] == [[CommitOffsets([("g", 1, 0, 7)])]]
    leader.order.carried(6)
    for _ in range(3):
        leader.end(Outcome.UNKNOWN)
        assert (leader.settled, [commands for commands, _ in leader.asked]) == (0, [[]])
    leader.raw.applied_index = 6
    leader.end(Outcome.OK)
    assert (leader.settled, leader.asked) == (1, [])


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.UNKNOWN])
def test_what_is_lost_with_the_leadership_is_not_waited_for(leader: Leader, outcome: Outcome) -> None:
    leader.settle()
    leader.order.close()
    leader.end(outcome)
    assert (leader.settled, leader.asked) == (1, [])


def test_a_query_behind_one_that_is_under_way_waits_as_well(leader: Leader) -> None:
    leader.order.carried(6)
    leader.order.effects.clear()
    leader.settle()
    leader.end(Outcome.UNKNOWN)
    assert leader.settled == 0
    leader.raw.applied_index = 6
    leader.end(Outcome.UNKNOWN)
    assert leader.settled == 1
