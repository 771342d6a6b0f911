"""Resets of a group that consumes, in the simulator: the product passes, and the judge by hand."""

from __future__ import annotations

from jepsen_like.sim.clients.reset_clients import ResetJudge
from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 resets=1\nlead 1\ndemand 8\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_resets_hold_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_some_seeds_have_resets() -> None:
    assert {draw(seed).resets for seed in range(40)} == {0, 1}


class Judged(ResetJudge):
    """A judge whose clock goes on with every call, and which keeps what it reports."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.at_s = 0.0
        super().__init__(lambda checker, what: self.wrong.append(what), self.now)

    def now(self) -> float:
        self.at_s += 1.0
        return self.at_s

    def reset_to(self, offset: int) -> None:
        self.asks(0)
        self.answered(0, offset, done=True, undecided=False)

    def pull_from(self, offset: int) -> None:
        self.pulls(0, offset)
        self.pulled(0, offset)

    def reads(self, offset: int | None) -> bool:
        """Returns True if that offset may be read now."""
        before = len(self.wrong)
        self.read(0, self.now(), offset)
        return len(self.wrong) == before


def test_until_somebody_pulls_from_there_the_reset_is_what_is_committed() -> None:
    judge = Judged()
    judge.commits(0, 9)
    judge.reset_to(3)
    judge.commits(0, 8)
    judge.doubtful(0, 7)
    judge.pull_from(9)
    assert [judge.reads(offset) for offset in (3, 9, 8, 7, None)] == [True, False, False, False, False]


def test_then_it_is_what_was_committed_since() -> None:
    judge = Judged()
    judge.commits(0, 9)
    judge.reset_to(3)
    judge.commits(0, 8)
    judge.doubtful(0, 7)
    judge.pull_from(3)
    assert [judge.reads(offset) for offset in (3, 9, 8, 7, None)] == [True, False, True, True, False]


def test_a_pull_on_its_way_may_end_the_reset() -> None:
    judge = Judged()
    judge.pulls(0, 3)
    judge.reset_to(3)
    judge.commits(0, 8)
    assert judge.reads(8)


def test_one_reset_at_a_time_is_judged() -> None:
    judge = Judged()
    may = [judge.may_ask(0)]
    judge.asks(0)
    may.append(judge.may_ask(0))
    judge.answered(0, 5, done=True, undecided=False)
    may.append(judge.may_ask(0))
    judge.asks(0)
    judge.answered(0, 5, done=False, undecided=True)
    assert [*may, judge.may_ask(0)] == [True, False, True, False]


def test_what_is_undecided_is_not_judged() -> None:
    judge = Judged()
    judge.reset_to(3)
    asked_s = judge.now()
    judge.asks(0)
    judge.read(0, asked_s, 99)
    judge.answered(0, 5, done=False, undecided=True)
    judge.ended()
    assert judge.reads(99)
    assert judge.unsure == {0}


def test_a_reset_that_nobody_was_told_of_is_found_in_the_end() -> None:
    judge = Judged()
    judge.pull_from(3)
    judge.reset_to(3)
    judge.ended()
    assert judge.wrong == ["queue 0 was reset to 3, and nobody was told"]
