"""Sends at weaker levels: good and bad histories, each with what happened since, judged by their own promise."""

from __future__ import annotations

from jepsen_like.checker_log import check_log
from jepsen_like.checkers.history_builder import Script
from jepsen_like.checkers.weak_acks import cleared
from jepsen_like.history import Op
from tests.support.rows import each_row


def weak(script: Script, message_id: str, offset: int, level: str = "leader") -> Script:
    return script.send(message_id, offset, level=level)


def open_weak(outcome: str) -> Script:
    script = Script().send("a", 0)
    script.end(script.invoke("send", topic="t", id="w", level="quorum"), outcome)  # type: ignore[arg-type]
    return script


GOOD: dict[str, tuple[Script, bool]] = {
    "kept": (weak(Script().send("a", 0), "w", 1).read(1, "a", "w").read(2, "a", "w"), False),
    "lost, and something took it": (weak(Script().send("a", 0), "w", 1).read(1, "a").read(2, "a"), True),
    "lost, and its place is another's": (
        weak(Script().send("a", 0), "w", 1).send("b", 1).read(1, "a", "b").read(2, "a", "b"),
        True,
    ),
    "lost, and what came later stands before its place": (
        weak(Script().send("a", 0), "w", 5).send("b", 1).read(1, "a", "b"),
        True,
    ),
    "one lost, one kept": (
        weak(weak(Script().send("a", 0), "w", 1), "v", 1, "quorum").read(1, "a", "v").read(2, "a", "v"),
        True,
    ),
    "unknown, and not there": (open_weak("info").read(1, "a"), False),
    "unknown, and there": (open_weak("info").read(1, "a", "w"), False),
    "failed, and not there": (open_weak("fail").read(1, "a"), False),
}
"""Name -> (history, whether what happened since takes weakly acknowledged messages)."""

BAD: dict[str, tuple[Script, bool, str]] = {
    "lost, and nothing took it": (weak(Script().send("a", 0), "w", 1).read(1, "a"), False, "lost"),
    "lost on one replica only": (weak(Script().send("a", 0), "w", 1).read(1, "a", "w").read(2, "a"), True, "lost"),
    "there twice": (weak(Script().send("a", 0), "w", 1).read(1, "a", "w", "w"), True, "duplicated"),
    "in another place": (weak(Script().send("a", 0), "w", 2).read(1, "a", "w"), True, "reordered"),
    "before what was acknowledged before it": (
        weak(Script().send("a", 1), "w", 0).read(1, "w", "a"),
        True,
        "reordered",
    ),
    "kept, and its place acknowledged for another one too": (
        weak(Script().send("a", 0), "w", 1).send("b", 1).read(1, "a", "w"),
        True,
        "reordered",
    ),
    "failed, and there": (open_weak("fail").read(1, "a", "w"), True, "phantom"),
    "unknown, and there twice": (open_weak("info").read(1, "a", "w", "w"), True, "duplicated"),
    "a strong one lost beside it": (weak(Script().send("a", 0), "w", 1).read(1), True, "lost"),
    "one of level all lost": (weak(Script().send("a", 0), "w", 1, "all").read(1, "a"), True, "lost"),
    "one of the full level lost": (weak(Script().send("a", 0), "w", 1, "quorum+fsync").read(1, "a"), True, "lost"),
}
"""Name -> (history, as above, what must be found)."""


def kinds(ops: list[Op]) -> set[str]:
    return {anomaly.kind for anomaly in check_log(ops).anomalies}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    script, taken = GOOD[name]
    assert not kinds(cleared(script.ops, lambda sent, acked: taken).ops)


@each_row("name", BAD)
def test_bad(name: str) -> None:
    script, taken, expected = BAD[name]
    assert expected in kinds(cleared(script.ops, lambda sent, acked: taken).ops)


def test_the_judge_hears_of_both_steps_and_of_what_is_missing_alone() -> None:
    asked: list[tuple[str, str, str]] = []

    def may_vanish(sent: Op, acked: Op) -> bool:
        asked.append((sent.type, acked.type, acked.value["id"]))
        return True

    script = weak(weak(Script().send("a", 0), "w", 1), "v", 2).read(1, "a", "w")
    found = cleared(script.ops, may_vanish)
    assert asked == [("invoke", "ok", "v")]
    assert found.vanished == {"v"}
    assert [op.index for op in found.ops] == list(range(len(script.ops) - 2))


def test_a_history_without_weak_sends_stays_as_it_is() -> None:
    ops = Script().sent("a", "b").read(1, "a").ops
    assert cleared(ops, lambda sent, acked: True) == (ops, frozenset())
