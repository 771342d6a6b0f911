"""Committed offsets, by the fast passes and by the search: where both can decide, both must agree."""

from __future__ import annotations

import random
from typing import Any

from jepsen_like.checkers import Workload, check
from jepsen_like.checkers.history_builder import Script
from jepsen_like.history import Op
from tests.support.rows import each_row

OFFSETS = Workload("offsets", ("offsets",))
BOTH = Workload("offsets", ("offsets", "linearizable"))
PLACE: dict[str, Any] = {"group": "g", "topic": "t", "queue_id": 0}


class Offsets(Script):
    def commit(self, offset: int) -> Offsets:
        self.did("commit_offset", **PLACE, offset=offset)
        return self

    def reset(self, offset: int) -> Offsets:
        self.did("reset_offset", **PLACE, offset=offset)
        return self

    def fetch(self, offset: int | None) -> Offsets:
        self.did("fetch_offset", {"offset": offset}, **PLACE)
        return self

    def lost_commit(self, offset: int) -> Offsets:
        self.unsure("commit_offset", **PLACE, offset=offset)
        return self

    def under_way(self, offset: int) -> Op:
        return self.invoke("commit_offset", **PLACE, offset=offset)

    def done(self, op: Op) -> Offsets:
        self.end(op)
        return self


def concurrent(answered: int) -> Offsets:
    """Two commits under way at once: either may come last."""
    script = Offsets()
    first, second = script.under_way(5), script.under_way(7)
    return script.done(second).done(first).fetch(answered)


def overtaken(answered: int) -> Offsets:
    script = Offsets()
    slow = script.under_way(5)
    return script.commit(7).fetch(answered).done(slow)


GOOD: dict[str, Offsets] = {
    "nothing was committed": Offsets().fetch(None),
    "the last commit": Offsets().commit(3).commit(5).fetch(5),
    "back by a reset": Offsets().commit(5).reset(1).fetch(1),
    "back by a commit of a consumer that lags": Offsets().commit(5).commit(3).fetch(3),
    "concurrent, one": concurrent(5),
    "concurrent, other": concurrent(7),
    "an unknown commit, seen": Offsets().commit(3).lost_commit(5).fetch(5),
    "an unknown commit, not seen": Offsets().commit(3).lost_commit(5).fetch(3),
    "an unknown commit that comes late": Offsets().lost_commit(3).commit(5).fetch(5).fetch(3),
    "still under way, and seen": overtaken(5),
}

BAD: dict[str, tuple[Offsets, dict[str, int]]] = {
    "older than a commit that was acknowledged": (Offsets().commit(3).commit(5).fetch(3), {"offset-regress": 1}),
    "forgotten": (Offsets().commit(3).fetch(None), {"offset-regress": 1}),
    "a reset that is undone": (Offsets().commit(5).reset(1).fetch(5), {"offset-stale": 1}),
    "never committed": (Offsets().commit(3).fetch(4), {"offset-phantom": 1}),
    "committed only later": (Offsets().fetch(4).commit(4), {"offset-phantom": 1}),
    "the concurrent one that was replaced since": (
        concurrent(5).commit(9).fetch(7),
        {"offset-regress": 1},
    ),
}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    verdict = check(GOOD[name].ops, BOTH)
    assert verdict.outcome == "valid", verdict.text(GOOD[name].ops)


@each_row("name", BAD)
def test_bad(name: str) -> None:
    script, expected = BAD[name]
    verdict = check(script.ops, OFFSETS)
    assert verdict.counts == expected, verdict.text(script.ops)
    assert all(1 <= len(anomaly.ops) <= 4 for anomaly in verdict.anomalies)
    assert check(script.ops, BOTH).result("linearizable").counts == {"nonlinearizable": 1}


def test_only_the_search_sees_two_fetches_that_contradict_each_other() -> None:
    """New, then old, while the newer commit is under way: each answer alone could be right."""
    script = Offsets().commit(5)
    newer = script.under_way(7)
    verdict = check(script.fetch(7).fetch(5).done(newer).ops, BOTH)
    assert verdict.result("offsets").outcome == "valid"
    assert verdict.counts == {"nonlinearizable": 1}


def test_the_fast_passes_raise_no_false_alarm() -> None:
    """The histories are random, and what the fast passes report is not linearizable."""
    caught = 0
    for seed in range(150):
        rng = random.Random(seed)
        script = Offsets()
        open_ops: list[Op] = []
        for _ in range(12):
            if open_ops and rng.random() < 0.5:
                op = open_ops.pop(rng.randrange(len(open_ops)))
                if op.f == "fetch_offset":
                    script.end(op, offset=rng.choice([None, 1, 2, 3]))
                else:
                    script.end(op, rng.choice(["ok", "ok", "info", "fail"]))
            elif rng.random() < 0.5:
                open_ops.append(script.invoke("fetch_offset", **PLACE))
            else:
                open_ops.append(script.under_way(rng.choice([1, 2, 3])))
        verdict = check(script.ops, BOTH)
        if verdict.result("offsets").outcome == "invalid":
            caught += 1
            assert verdict.result("linearizable").outcome == "invalid", (seed, verdict.text(script.ops))
    assert caught > 20


def test_a_commit_beyond_what_was_read() -> None:
    rows = ((0, "a"), (1, "b"))
    reader: dict[str, Any] = {"group": "g", "end": False}
    read = Script().sent("a", "b", "c").poll("c1", 0, *rows, **reader)
    assert check(read.did("commit_offset", **PLACE, offset=2).ops, OFFSETS).outcome == "valid"
    assert check(read.did("commit_offset", **PLACE, offset=3).ops, OFFSETS).counts == {"commit-beyond-read": 1}


def test_a_commit_before_the_poll_was_answered_is_beyond() -> None:
    script = Script().sent("a")
    poll = script.invoke("poll", consumer="c1", group="g", topic="t", queue_id=0, offset=0)
    commit = script.invoke("commit_offset", **PLACE, offset=1)
    script.end(poll, messages=[[0, "a"]]).end(commit)
    assert check(script.ops, OFFSETS).counts == {"commit-beyond-read": 1}


def test_a_reset_or_an_answered_offset_entitles_too() -> None:
    script = Script().did("reset_offset", **PLACE, offset=9).poll("c1", 9, group="g")
    assert check(script.did("commit_offset", **PLACE, offset=9).ops, OFFSETS).outcome == "valid"


def test_a_group_whose_polls_were_not_recorded_is_not_judged_by_them() -> None:
    assert check(Offsets().commit(7).fetch(7).ops, OFFSETS).outcome == "valid"
