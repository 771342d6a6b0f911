"""Whatever a history says, a checker answers: one value of another type never raises, and never passes unseen."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

from jepsen_like.checkers import Workload, check
from jepsen_like.checkers.history_builder import Script
from jepsen_like.history import Op
from jepsen_like.report import RunInfo, write_report
from tests.support.rows import each_row

EVERYTHING = Workload("everything", must_drain=True, ordered=True)

ODD: list[Any] = [None, -1, 1 << 70, 0.5, True, "", "x", [], [[]], [1, 2], {}, {"a": []}]


def everything() -> list[Op]:
    place: dict[str, Any] = {"group": "g", "topic": "t", "queue_id": 0}
    script = Script().did("phase", name="quiet").did("leader", node=1, term=1)
    script.send("a", 0, producer="p").send("b", 1, producer="p").unsure("send", topic="t", id="u")
    script.did("rebalance", consumer="c", group="g", queues=[["t", 0]])
    script.poll("c", 0, (0, "a"), (1, "b"), (2, "u"), group="g", end=True)
    script.did("commit_offset", **place, offset=2).did("fetch_offset", {"offset": 2}, **place)
    script.did("reset_offset", **place, offset=0).did("max_offset", {"offset": 3}, topic="t", queue_id=0)
    script.did("put", key="k", value=1).did("cas", {"swapped": True}, key="k", old=1, new=2)
    script.did("get", {"value": 2}, key="k").did("delete", key="k").did("create", {"created": True}, key="k", value=3)
    script.did("fault", kind="kill", nodes=[1], detail="-9").send("c", 3, producer="p")
    script.poll("c", 3, (3, "c"), group="g", end=True)
    for node in (1, 2):
        script.read(node, "a", "b", "u", "c").did("digest", {"applied": 9, "digest": "d"}, node=node)
    return script.ops


def spoil(value: Any, rng: random.Random) -> Any:
    """The value with one thing somewhere in it replaced, or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        spoilt: dict[str, Any] = dict(value)
        key = rng.choice(sorted(spoilt))
        if rng.random() < 0.1:
            del spoilt[key]
        else:
            spoilt[key] = spoil(spoilt[key], rng)
        return spoilt
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return [*value[:i], spoil(value[i], rng), *value[i + 1 :]]
    return copy.deepcopy(rng.choice(ODD))


def test_unspoilt_it_is_valid() -> None:
    verdict = check(everything(), EVERYTHING)
    assert verdict.outcome == "valid", verdict.text(everything())


@each_row("seed", range(8))
def test_one_spoilt_value_is_never_a_crash(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    outcomes: set[str] = set()
    for number in range(150):
        ops = everything()
        at = rng.randrange(len(ops))
        op = ops[at]
        ops[at] = Op(op.index, op.process, op.type, op.f, spoil(op.value, rng), op.time_ns)
        verdict = check(ops, EVERYTHING)
        outcomes.add(verdict.outcome)
        assert verdict.text(ops), ops[at]
        verdict.to_json()
        if number % 10 == 0:
            write_report(tmp_path / "r.html", RunInfo("spoilt", "-"), ops, verdict)
    assert outcomes == {"valid", "invalid", "unknown"}  # what nobody relies on may be anything
