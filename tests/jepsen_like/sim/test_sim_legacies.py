"""Deletions while messages wait, in the simulator: nothing is inherited, and what inherits is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.broker.timers.timer_delivery import TimerDelivery
from cluster.broker.transactions.transaction_end import Transactions
from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play
from statemachine.consuming.offset_resets import OffsetResets
from statemachine.removals import Done

SCRIPT = "nodes 3 legacies=1\nlead 1\ndemand 4\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_nothing_is_inherited_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_some_seeds_have_legacies() -> None:
    assert {draw(seed).legacies for seed in range(40)} == {0, 1}


def keeps_resets(patch: pytest.MonkeyPatch) -> None:
    """Plants a fault: the resets of a deleted group stay."""
    patch.setattr(OffsetResets, "forget_group", lambda self, group: None)
    patch.setattr(OffsetResets, "remove_group", lambda self, *rest, last: Done(0, None))


def drops_no_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerDelivery, "_drop", lambda self, term, rows: None)


def drops_no_half(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "drop_deleted", lambda self, halves: None)


@pytest.mark.parametrize(
    ("breaks", "checker"),
    [
        (keeps_resets, "legacies"),
        pytest.param(drops_no_timer, "liveness", marks=pytest.mark.ci),
        pytest.param(drops_no_half, "liveness", marks=pytest.mark.slow),
    ],
)
def test_what_is_broken_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert found(SCRIPT)[0] == checker
