"""Producers of transactions in the simulator: the product passes, and the judge by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from jepsen_like.sim.clients.transaction_producers import ASKED_LATE_S, COMMIT, ROLLBACK, TransactionJudge
from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play

KILLED = "kill 1\nwait 5\nstart 1\nsettle\n"
SHORT = "nodes 3 transactions=1 producers=1 foreign=1 window=1 think_s=0.05\nlead 1\nload 1\ndemand 3\n"
"""Little beside the transactions, which are what it is about."""
LONG = "nodes 3 transactions=1\nlead 1\nload 2\ndemand 6\n"


def found(script: str) -> list[tuple[str, str]]:
    return [(violation.checker, violation.what) for violation in play(script).violations]


@pytest.mark.parametrize("script", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"])
def test_transactions_end_once_across_a_killed_leader(script: str) -> None:
    assert found(script + KILLED) == []


def test_one_seed_in_four_has_transactions() -> None:
    assert 30 < sum(draw(seed).transactions for seed in range(200)) < 70


class Clock:
    now = 0.0


def judged() -> tuple[TransactionJudge, list[str], Clock]:
    wrong: list[str] = []
    clock = Clock()
    return TransactionJudge(lambda checker, what: wrong.append(what), lambda: clock.now), wrong, clock


def test_what_consumers_may_see() -> None:
    judge, _, _ = judged()
    for key, fate in (("a", "commit"), ("b", "rollback"), ("c", "either"), ("d", "commit")):
        judge.begins(key, fate)
        judge.says(key, COMMIT if fate != "rollback" else ROLLBACK)
        judge.known[key].acked = key != "d"
    assert list(judge.wrong(Counter(["a"]), trimmed=False)) == []
    assert list(judge.wrong(Counter(["a", "c", "d"]), trimmed=False)) == []
    assert list(judge.wrong(Counter(["a", "b"]), trimmed=False)) == ["b is delivered, and nobody committed it"]
    assert list(judge.wrong(Counter(["a", "c", "c"]), trimmed=False)) == ["c is delivered 2 times"]
    assert list(judge.wrong(Counter(["x", "a"]), trimmed=False)) == ["x is delivered, and nobody committed it"]
    assert list(judge.wrong(Counter(), trimmed=False)) == ["a was committed, and is not delivered"]
    assert list(judge.wrong(Counter(), trimmed=True)) == []


def test_questions_that_nobody_may_ask() -> None:
    judge, wrong, clock = judged()
    judge.begins("a", "commit")
    judge.asked("a")
    judge.ended("a")
    clock.now = ASKED_LATE_S
    judge.asked("a")
    assert wrong == []
    clock.now += 1
    judge.asked("a")
    judge.asked("b")
    assert [what.split(",")[0] for what in wrong] == [
        "a producer was asked about a",
        "a producer was asked about 'b'",
    ]
