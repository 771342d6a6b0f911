"""Writers that stage and commit in the simulator: the product passes, and the judge by hand."""

from __future__ import annotations

from collections import Counter

from jepsen_like.sim.clients.staged_writers import WriteJudge
from jepsen_like.sim.options import WRITES_FROM, draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 writes=1\nlead 1\ndemand 3\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[tuple[str, str]]:
    return [(violation.checker, violation.what) for violation in play(script).violations]


def test_each_row_comes_once_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_one_seed_in_four_has_writers() -> None:
    assert 30 < sum(draw(WRITES_FROM + seed).writes for seed in range(200)) < 70
    assert not any(draw(seed).writes for seed in range(40))


def test_what_consumers_may_see() -> None:
    judge = WriteJudge()
    for batch in (1, 2, 3):
        judge.rows["q", batch] = frozenset((f"q/{batch}/0/0", f"q/{batch}/1/0"))
    judge.wanted = {("q", 1), ("q", 2)}
    judge.acked = {("q", 1)}
    whole = ["q/1/0/0", "q/1/1/0"]
    assert list(judge.wrong(Counter(whole), trimmed=False)) == []
    assert list(judge.wrong(Counter([*whole, "q/2/0/0", "q/2/1/0"]), trimmed=False)) == []
    assert list(judge.wrong(Counter([*whole, "q/1/0/0"]), trimmed=False)) == ["q/1/0/0 is there 2 times"]
    assert list(judge.wrong(Counter([*whole, "q/3/0/0", "q/3/1/0"]), trimmed=False)) == [
        "q/3/0/0 is there, and nobody committed batch 3 of q"
    ]
    assert list(judge.wrong(Counter([*whole, "q/2/0/0"]), trimmed=False)) == ["batch 2 of q is there without q/2/1/0"]
    assert list(judge.wrong(Counter(), trimmed=False)) == ["batch 1 of q is committed, and q/1/0/0 is not there"]
    assert list(judge.wrong(Counter(), trimmed=True)) == []
    assert list(judge.wrong(Counter([*whole, "x"]), trimmed=False)) == ["x is there, and no batch has it"]
