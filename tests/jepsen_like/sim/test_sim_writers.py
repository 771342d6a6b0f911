"""Writers that stage and commit in the simulator: what is done wrongly is found, and the judge by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.timers import row_delivery
from jepsen_like.sim.clients.staged_writers import WriteJudge
from jepsen_like.sim.options import WRITES_FROM, draw
from jepsen_like.sim.scripted import play
from statemachine.delivery.staged_writes import STAGED_DUE, AttemptState, StagedWrites
from statemachine.delivery.timers import Timers

SCRIPT = "nodes 3 writes=1\nlead 1\ndemand 3\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[tuple[str, str]]:
    return [(violation.checker, violation.what) for violation in play(script).violations]


def test_each_row_comes_once_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def forgets_the_newest(patch: pytest.MonkeyPatch) -> None:
    """A batch that is replayed is committed again."""
    patch.setattr(StagedWrites, "_committed", lambda writes, stage, name: None)


def counts_nothing(patch: pytest.MonkeyPatch) -> None:
    """A commit is taken also if an attempt lacks rows."""
    real = StagedWrites._mismatch

    def mismatch(writes: StagedWrites, number: int, count: int, name: str, write: int) -> str:
        attempt = writes.current(number)
        return real(writes, number, count if attempt is None else attempt.count, name, write)

    patch.setattr(StagedWrites, "_mismatch", mismatch)


def commits_the_others(patch: pytest.MonkeyPatch) -> None:
    """Tries that lost are copied as well."""
    real = StagedWrites.end

    def end(writes: StagedWrites, stage: Any, number: int, state: AttemptState) -> bool:
        return real(writes, stage, number, AttemptState.COMMITTED)

    patch.setattr(StagedWrites, "end", end)


def keeps_the_rows(patch: pytest.MonkeyPatch) -> None:
    """Plants a fault: messages that were copied are copied again."""
    real = Timers._remove

    def remove(timers: Timers, stage: Any, names: Any, *, delivered: bool) -> int:
        return real(timers, stage, [name for name in names if name[0] < STAGED_DUE], delivered=delivered)

    patch.setattr(Timers, "_remove", remove)


def drops_the_winners(patch: pytest.MonkeyPatch) -> None:
    """Committed rows are removed, not copied."""
    patch.setattr(row_delivery, "is_gone", lambda state, row: True)


@pytest.mark.parametrize(
    "breaks",
    [
        forgets_the_newest,
        counts_nothing,
        commits_the_others,
        keeps_the_rows,
        pytest.param(drops_the_winners, marks=pytest.mark.slow),
    ],
)
def test_what_is_broken_is_found(breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    assert {checker for checker, _ in found(SCRIPT)} & {"writes", "pins"}


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
