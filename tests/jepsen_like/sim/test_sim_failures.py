"""Failed consumption in the simulator: the product passes, and the judge by hand."""

from __future__ import annotations

import pytest

from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.clients.failing_consumers import DEAD, RETRY, Failure, FailureJudge, RetryCopy, outcome_of
from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 failures=1\nlead 1\ndemand 3\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_each_failure_has_one_copy_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_some_seeds_have_such_consumers() -> None:
    assert {draw(seed).failures for seed in range(40)} == {0, 1}


FIRST = Failure("a", 0, 0, 100)
LAST = Failure("a", 2, 0, 100)


@pytest.mark.parametrize(
    ("failure", "outcome", "copies", "wrong"),
    [
        (FIRST, "ok", [RetryCopy("a", 1, RETRY, 1100)], ""),
        (FIRST, "ok", [], "there are 0 copies"),
        (FIRST, "ok", [RetryCopy("a", 1, RETRY, 1100)] * 2, "there are 2 copies"),
        (FIRST, "ok", [RetryCopy("a", 1, RETRY, 1099)], "its copy came after 999 ms of 1000"),
        (FIRST, "ok", [RetryCopy("a", 1, DEAD, 1100)], f"its copy is in {DEAD}"),
        (FIRST, "unknown", [], ""),
        (FIRST, "unknown", [RetryCopy("a", 1, RETRY, 1100)] * 2, "there are 2 copies"),
        (FIRST, "fail", [], ""),
        (FIRST, "fail", [RetryCopy("a", 1, RETRY, 1100)], "there are 1 copies"),
        (LAST, "ok", [RetryCopy("a", 3, DEAD, 100)], ""),
        (LAST, "ok", [RetryCopy("a", 3, RETRY, 9000)], f"its copy is in {RETRY}"),
        (FIRST, "ok", [RetryCopy("a", 1, RETRY, 1100), RetryCopy("a", 2, RETRY, 9000)], "nobody said that it failed"),
    ],
)
def test_the_copies_of_a_failure(failure: Failure, outcome: str, copies: list[RetryCopy], wrong: str) -> None:
    judge = FailureJudge()
    judge.reported(failure, outcome)
    said = list(judge.wrong(copies, trimmed=False, exact=True))
    assert bool(said) == bool(wrong)
    assert all(wrong in what for what in said)


@pytest.mark.parametrize(
    ("again", "copies", "wrong"),
    [
        ("ok", 2, ""),
        ("ok", 1, "there are 1 copies"),
        ("ok", 3, "there are 3 copies"),
        ("unknown", 1, ""),
        ("unknown", 3, "there are 3 copies"),
        ("fail", 2, "there are 2 copies"),
    ],
)
def test_each_delivered_copy_of_an_attempt_fails_by_itself(again: str, copies: int, wrong: str) -> None:
    judge = FailureJudge()
    judge.reported(FIRST, "ok")
    judge.reported(FIRST._replace(position=7), again)
    said = list(judge.wrong([RetryCopy("a", 1, RETRY, 1100)] * copies, trimmed=False, exact=True))
    assert [what.rsplit(", and ")[1] for what in said] == [wrong][: bool(wrong)]


def test_a_copy_is_that_of_either_failure() -> None:
    judge = FailureJudge()
    judge.reported(FIRST, "ok")
    judge.reported(Failure("a", 0, 0, 5000, 7), "ok")
    fits, early = RetryCopy("a", 1, RETRY, 1100), RetryCopy("a", 1, RETRY, 1099)
    assert list(judge.wrong([fits, fits], trimmed=False, exact=True)) == []
    assert len(list(judge.wrong([fits, early], trimmed=False, exact=True))) == 1


def test_what_is_not_judged() -> None:
    judge = FailureJudge()
    judge.reported(FIRST, "ok")
    assert list(judge.wrong([], trimmed=True, exact=True)) == []
    assert list(judge.wrong([RetryCopy("a", 1, RETRY, 1100)] * 2, trimmed=False, exact=False)) == []


def test_the_best_outcome_of_several_reports_counts() -> None:
    judge = FailureJudge()
    for outcome in ("unknown", "fail", "ok", "unknown"):
        judge.reported(FIRST, outcome)
    assert judge.outcomes == {FIRST: "ok"}
    undecided = Answer(1, {}, "[UNKNOWN] the copy is undecided", b"")
    assert [outcome_of(answer) for answer in (None, undecided)] == ["unknown", "unknown"]
    assert outcome_of(Answer(14, {}, "not now", b"")) == "fail"


def test_a_named_level_decides_the_delay_else_the_attempt_does() -> None:
    delays = [Failure("a", attempt, level, 0).delay_ms for attempt, level in ((0, 0), (1, 0), (0, 2), (0, -1), (2, 2))]
    assert delays == [1000, 2000, 2000, 0, 0]
