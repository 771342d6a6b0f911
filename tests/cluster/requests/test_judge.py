"""The judge of all fronts: why a user may not, and whether a denial stands in each mode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.access.denials import Denials
from cluster.requests.judge import NO_SUPER, Judge
from statemachine.access.access_decision import Verdicts
from statemachine.access.rules import Action, Kind, Need
from statemachine.access.user_rows import Mode

READS = Need(Kind.TOPIC, "T", (Action.SUB,))


class User:
    """A user without any rule."""

    def __init__(self, *, is_super: bool = False, enabled: bool = True) -> None:
        self.id = self.version = 1
        self.name = "ann"
        self.is_super = is_super
        self.enabled = enabled
        self.index = SimpleNamespace(fitting=lambda kind, name: [], looks=1)


def judge_in(mode: Mode) -> tuple[Judge, Denials]:
    access: Any = SimpleNamespace(mode=mode, supers=1)
    denials = Denials(lambda: 0)
    return Judge(access, denials, "C"), denials


@pytest.mark.parametrize("known", [None, Verdicts("10.0.0.1")], ids=["once", "remembered"])
def test_who_may_not_is_told_why(known: Verdicts | None) -> None:
    def why(needs: list[Need] | None, **user: bool) -> str:
        one: Any = User(**user)
        return Judge.why_not(one, "10.0.0.1", needs, known)

    assert why(None) == "only a Super may do this, and user ann is none"
    assert why([READS]) == "user ann has no right to Sub on Topic:T from 10.0.0.1"
    assert why([]) == why(None, is_super=True) == why([READS], is_super=True) == ""
    assert why([], enabled=False) == why(None, is_super=True, enabled=False) == "user ann is disabled"


def test_a_super_is_the_same_for_a_row_and_for_a_handler_that_judges_in_every_mode() -> None:
    access: Any = SimpleNamespace(mode=Mode.OFF, supers=1)
    judge = Judge(access, Denials(lambda: 0), "C")
    users: list[Any] = [User(), User(is_super=True), User(is_super=True, enabled=False)]
    for user in users:
        assert judge.why_no_super(user, "10.0.0.1") == judge.why_not(user, "10.0.0.1", None)
    assert "sign the request" in judge.why_no_super(None, "10.0.0.1")
    access.supers = 0
    assert {judge.why_no_super(user, "10.0.0.1") for user in (*users, None)} == {NO_SUPER}


@pytest.mark.parametrize(
    ("mode", "always", "stands"),
    [(Mode.OBSERVE, False, False), (Mode.ENFORCE, False, True), (Mode.OFF, True, True), (Mode.OBSERVE, True, True)],
)
def test_a_denial_is_noted_and_stands_if_it_is_enforced(mode: Mode, always: bool, stands: bool) -> None:
    judge, denials = judge_in(mode)
    assert judge.refuses(1, "10.0.0.1", "no right", "PULL_MESSAGE (11)", always=always) is stands
    assert [(each.why, each.last, each.enforced) for each in denials.last_hour()] == [
        ("no right", "PULL_MESSAGE (11)", stands)
    ]


def test_the_cluster_of_a_need_is_the_judges_own() -> None:
    judge, _ = judge_in(Mode.ENFORCE)
    assert [str(need) for need in judge.needs_of(206, {}, b"") or ()] == ["List on Cluster:C"]
