"""Every kind of anomaly of the log checker in a history that shows it, and near misses that do not.

The coarser table in tests/jepsen_like/test_checker_log.py holds for the same code: it is judged here once more.
"""

from __future__ import annotations

import pytest

from jepsen_like.checkers import Workload, check
from jepsen_like.checkers.history_builder import Script
from raftmq_wire.queue_numbers import number_of
from tests.support.rows import each_row

LOG = Workload("log", ("log",))
FAR = number_of(2, 0)
"""A queue of the second group of brokers, which nodes from 2001 on have."""
ORDERED = LOG._replace(ordered=True)


def concurrent_acks(first: int, second: int) -> Script:
    script = Script()
    a = script.invoke("send", topic="t", id="a", producer="p")
    b = script.invoke("send", topic="t", id="b", producer="p")
    script.end(b, queue_id=0, queue_offset=second)
    return script.end(a, queue_id=0, queue_offset=first)


def outcome_of(outcome: str) -> Script:
    script = Script().send("a", 0)
    script.end(script.invoke("send", topic="t", id="x"), outcome)  # type: ignore[arg-type]
    return script


def end_asked(answered: int) -> Script:
    return Script().sent("a", "b").did("max_offset", {"offset": answered}, topic="t", queue_id=0)


def end_asked_meanwhile() -> Script:
    script = Script().send("a", 0)
    asked = script.invoke("max_offset", topic="t", queue_id=0)
    return script.send("b", 1).end(asked, offset=1)


GOOD: dict[str, Script] = {
    "repeated sends are told where the message is": outcome_of("info")
    .did("repeat", {"queue_id": 0, "queue_offset": 0}, topic="t", id="a")
    .did("repeat", {"queue_id": 0, "queue_offset": 1}, topic="t", id="x")
    .read(1, "a", "x"),
    "concurrent sends of a producer that is not ordered": concurrent_acks(1, 0).read(1, "b", "a"),
    "a queue that only the nodes of its group of brokers have": Script()
    .sent("a")
    .send("b", 0, FAR)
    .read(1, "a")
    .read(2001, "b", queue=FAR)
    .read(2002, "b", queue=FAR),
    "an unknown send that is stored": outcome_of("info").read(1, "a", "x"),
    "an unknown send that is not stored": outcome_of("info").read(1, "a"),
    "the end of a queue": end_asked(2).read(1, "a", "b"),
    "the end of a queue, beyond what anybody knows of": end_asked(3).read(1, "a", "b"),
    "the end of a queue, asked while the send was under way": end_asked_meanwhile().read(1, "a", "b"),
}

BAD: dict[str, tuple[Script, dict[str, int]]] = {
    "a repeated send is told another queue": (
        Script().sent("a", "b").did("repeat", {"queue_id": 1, "queue_offset": 1}, topic="t", id="b").read(1, "a", "b"),
        {"offset-mismatch": 1},
    ),
    "a repeat of a send of unknown outcome is told another offset": (
        outcome_of("info").did("repeat", {"queue_id": 0, "queue_offset": 0}, topic="t", id="x").read(1, "a", "x"),
        {"offset-mismatch": 1},
    ),
    "a repeat is acknowledged, and nobody has the message": (
        outcome_of("info").did("repeat", {"queue_id": 0, "queue_offset": 1}, topic="t", id="x").read(1, "a"),
        {"lost-write": 1},
    ),
    "lost on one replica": (Script().sent("a", "b").read(1, "a", "b").read(2, "a"), {"lost-on-node": 1}),
    "lost on all of its group of brokers": (
        Script().sent("a").send("b", 0, FAR).read(1, "a").read(2, "a").read(2001, queue=FAR).read(2002, queue=FAR),
        {"lost-write": 1},
    ),
    "lost on one replica of a further group of brokers": (
        Script().sent("a").send("b", 0, FAR).read(1, "a").read(2001, "b", queue=FAR).read(2002, queue=FAR),
        {"lost-on-node": 1},
    ),
    "lost on all": (Script().sent("a", "b").read(1, "a").read(2, "a"), {"lost-write": 1}),
    "aborted": (outcome_of("fail").read(1, "a", "x"), {"aborted-read": 1}),
    "phantom": (Script().sent("a").read(1, "a", "who"), {"phantom": 1}),
    "two acknowledgements for one place": (
        Script().send("a", 0).send("b", 0).read(1, "a"),
        {"inconsistent-offset": 1, "lost-write": 1},
    ),
    "duplicate of an unknown send in two queues": (
        outcome_of("info").read(1, "a", "x").read(1, "x", queue=1),
        {"duplicate": 1},
    ),
    "duplicate only on one replica": (
        outcome_of("info").read(1, "a", "x").read(2, "a", "x", "x"),
        {"duplicate": 1},
    ),
    "an acknowledged message that strayed into a queue of its own": (
        Script().sent("a").read(1, "a").read(1, "a", queue=1),
        {"duplicate": 1, "offset-mismatch": 1},
    ),
    "the end of a queue lies behind an acknowledgement": (end_asked(1).read(1, "a", "b"), {"stale-read": 1}),
    "order of real time": (
        Script().send("a", 1).send("b", 0).read(1, "b", "a"),
        {"realtime-order": 1},
    ),
}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    verdict = check(GOOD[name].ops, LOG)
    assert verdict.outcome == "valid", verdict.text(GOOD[name].ops)


@each_row("name", BAD)
def test_bad(name: str) -> None:
    script, expected = BAD[name]
    verdict = check(script.ops, LOG)
    assert verdict.counts == expected, verdict.text(script.ops)
    assert verdict.outcome == "invalid"
    for anomaly in verdict.anomalies:
        assert 1 <= len(anomaly.ops) <= 4
        assert all(0 <= op < len(script.ops) for op in anomaly.ops)


def test_the_order_of_a_producer_counts_where_it_is_promised() -> None:
    ops = concurrent_acks(1, 0).read(1, "b", "a").ops
    assert check(ops, ORDERED).counts == {"producer-order": 1}
    assert check(concurrent_acks(0, 1).read(1, "a", "b").ops, ORDERED).outcome == "valid"


def test_other_producers_may_land_between() -> None:
    script = Script()
    first = script.invoke("send", topic="t", id="a", producer="p")
    other = script.invoke("send", topic="t", id="b", producer="q")
    script.end(first, queue_id=0, queue_offset=1).end(other, queue_id=0, queue_offset=0)
    assert check(script.read(1, "b", "a").ops, ORDERED).outcome == "valid"


@pytest.mark.parametrize(
    ("survivors", "part"),
    [((), "everything"), (("m2", "m3"), "prefix"), (("m0", "m3"), "middle"), (("m0", "m1"), "postfix")],
)
def test_which_part_of_a_producer_is_lost(survivors: tuple[str, ...], part: str) -> None:
    script = Script()
    for i in range(4):
        script.send(f"m{i}", i, producer="p")
    log = check(script.read(1, *survivors).ops, LOG).result("log")
    lost = 4 - len(survivors)
    assert log.counts["lost-write"] == lost
    assert log.stats[f"lost_{part}"] == lost
    assert all(f"{part} of producer 'p'" in a.what for a in log.anomalies if a.kind == "lost-write")


def test_one_lost_disk_is_counted_in_full_and_shown_in_part() -> None:
    script = Script().sent(*(f"m{i}" for i in range(500)))
    verdict = check(script.read(1, *(f"m{i}" for i in range(500))).read(2).ops, LOG)
    assert verdict.counts == {"lost-on-node": 500}
    assert len(verdict.anomalies) == 20


@each_row(
    ("script", "why"),
    [
        (Script().sent("a"), "none was read back"),
        (Script().read(1), "only 0 operations were acknowledged"),
        (Script().sent("a").read(1, "a"), "only nodes [1] were read"),
        (Script().send("a", 0, FAR).read(2001, "a", queue=FAR).read(1).read(2).read(3), "only nodes [2001] were read"),
        (Script().send("a", 0, FAR).read(1).read(2).read(3), "was not read to its end on node 1"),
    ],
)
def test_what_was_not_looked_at_is_unknown(script: Script, why: str) -> None:
    verdict = check(script.ops, LOG._replace(replicas=3))
    assert verdict.outcome == "unknown"
    assert any(why in doubt for doubt in verdict.doubts), verdict.doubts


def test_an_allowed_kind_is_counted_and_does_not_condemn() -> None:
    ops = outcome_of("info").read(1, "a", "x", "x").ops
    verdict = check(ops, LOG._replace(allowed=frozenset({"duplicate"})))
    assert verdict.outcome == "valid"
    assert verdict.result("log").counts == {"duplicate": 1}
    assert verdict.counts == {}
    assert "duplicate: 1 (allowed)" in verdict.text(ops)


def test_a_replica_that_holds_another_message_in_its_place_lost_it_even_if_the_read_was_cut_there() -> None:
    script = Script().unsure("send", topic="t", id="x").send("a", 0)
    asked = {"node": 1, "topic": "t", "queue_id": 0, "offset": 0}
    verdict = check(script.did("read", {"messages": [[0, "x"]], "end": False}, **asked).ops, LOG)
    assert verdict.counts == {"lost-write": 1}
    assert verdict.doubts
