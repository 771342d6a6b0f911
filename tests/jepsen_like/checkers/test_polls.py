"""The poll checker: what a consumer may and may not see, with and without a rebalance between."""

from __future__ import annotations

from jepsen_like.checkers import Workload, check
from jepsen_like.checkers.history_builder import Script
from tests.support.rows import each_row

POLLS = Workload("polls", ("log", "polls"))
DRAIN = POLLS._replace(must_drain=True)

ABCD = ((0, "a"), (1, "b"), (2, "c"), (3, "d"))


def sent() -> Script:
    return Script().sent("a", "b", "c", "d")


def moved(script: Script, consumer: str = "c1") -> Script:
    return script.did("rebalance", consumer=consumer, group="g", queues=[["t", 0]])


def committed(script: Script, offset: int) -> Script:
    return script.did("commit_offset", group="g", topic="t", queue_id=0, offset=offset)


def reset(script: Script, offset: int) -> Script:
    return script.did("reset_offset", group="g", topic="t", queue_id=0, offset=offset)


def read_early() -> Script:
    """x is polled while its send is under way, and the answer of the send gets lost."""
    script = sent()
    sending = script.invoke("send", topic="t", id="x")
    script.poll("c1", 3, (3, "d"), (4, "x"))
    return script.end(sending, "info")


def from_the_future() -> Script:
    return sent().poll("c1", 3, (3, "d"), (4, "x")).send("x", 4)


def rebalanced_to(asked: int, commit: int) -> Script:
    """c1 reads three messages and commits; c2 takes over and asks for `asked`."""
    script = committed(sent().poll("c1", 0, *ABCD[:3], group="g"), commit)
    return moved(script, "c2").poll("c2", asked, *ABCD[asked:], group="g")


GOOD: dict[str, Script] = {
    "in one poll": sent().poll("c1", 0, *ABCD, end=True),
    "in several, with an empty one": sent().poll("c1", 0, *ABCD[:2]).poll("c1", 2).poll("c1", 2, *ABCD[2:]),
    "two consumers": sent().poll("c1", 0, *ABCD).poll("c2", 0, *ABCD),
    "stored though its send was never answered": read_early(),
    "a hole where nothing ever was": Script().send("a", 0).send("c", 2).poll("c1", 0, (0, "a"), (2, "c")),
    "rebalanced, on from the commit": rebalanced_to(2, commit=2),
    "rebalanced, on from where the group was": rebalanced_to(3, commit=2),
    "reset to the start, and read again": reset(sent().poll("c1", 0, *ABCD, group="g"), 0).poll(
        "c1", 0, *ABCD, group="g"
    ),
}

BAD: dict[str, tuple[Script, dict[str, int]]] = {
    "a message left out inside a poll": (sent().poll("c1", 0, *ABCD[:2], ABCD[3]), {"int-poll-skip": 1}),
    "a message twice inside a poll": (sent().poll("c1", 0, ABCD[0], ABCD[0]), {"int-poll-nonmonotonic": 1}),
    "backwards inside a poll": (
        sent().poll("c1", 0, ABCD[0], ABCD[2], ABCD[1]),
        {"int-poll-skip": 1, "int-poll-nonmonotonic": 1},
    ),
    "not what was asked for, but later": (sent().poll("c1", 0, *ABCD[1:]), {"poll-skip": 1}),
    "not what was asked for, but earlier": (sent().poll("c1", 1, *ABCD), {"poll-nonmonotonic": 1}),
    "the consumer jumped forward": (sent().poll("c1", 0, ABCD[0]).poll("c1", 2, *ABCD[2:]), {"poll-skip": 1}),
    "the consumer jumped back": (sent().poll("c1", 0, *ABCD).poll("c1", 1, *ABCD[1:]), {"poll-nonmonotonic": 1}),
    "rebalanced, back behind the commit": (rebalanced_to(1, commit=2), {"poll-nonmonotonic": 1}),
    "rebalanced, past what the group had read": (
        moved(sent().poll("c1", 0, ABCD[0], group="g"), "c2").poll("c2", 2, *ABCD[2:], group="g"),
        {"poll-skip": 1},
    ),
    "another message at the offset that was acknowledged": (
        sent().poll("c1", 0, (0, "b")),
        {"inconsistent-offset": 1, "offset-mismatch": 1},
    ),
    "a phantom": (sent().poll("c1", 4, (4, "who")), {"phantom": 1}),
    "from the future": (from_the_future(), {"future-read": 1}),
    "polled, and then on no replica": (
        read_early().read(1, "a", "b", "c", "d"),
        {"lost-write": 1},
    ),
    "two consumers see different messages at one offset": (
        Script()
        .send("a", 0)
        .unsure("send", topic="t", id="x")
        .unsure("send", topic="t", id="y")
        .poll("c1", 1, (1, "x"))
        .poll("c2", 1, (1, "y")),
        {"inconsistent-offset": 1},
    ),
}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    verdict = check(GOOD[name].ops, POLLS)
    assert verdict.outcome == "valid", verdict.text(GOOD[name].ops)


@each_row("name", BAD)
def test_bad(name: str) -> None:
    script, expected = BAD[name]
    verdict = check(script.ops, POLLS)
    assert verdict.counts == expected, verdict.text(script.ops)
    assert all(1 <= len(anomaly.ops) <= 4 for anomaly in verdict.anomalies)


def test_a_failed_send_that_a_consumer_saw() -> None:
    script = sent()
    script.end(script.invoke("send", topic="t", id="x"), "fail")
    assert check(script.poll("c1", 4, (4, "x")).ops, POLLS).counts == {"aborted-read": 1}


def test_drained_means_everything_was_seen() -> None:
    assert check(sent().poll("c1", 0, *ABCD, end=True).ops, DRAIN).outcome == "valid"
    short = check(sent().poll("c1", 0, *ABCD[:3], end=True).ops, DRAIN)
    assert short.counts == {"unseen": 1}
    assert "'d'" in short.anomalies[0].what


def test_members_of_a_group_drain_together() -> None:
    script = moved(committed(sent().poll("c1", 0, *ABCD[:2], group="g"), 2), "c2")
    assert check(script.poll("c2", 2, *ABCD[2:], end=True, group="g").ops, DRAIN).outcome == "valid"


def test_not_drained_is_unknown() -> None:
    for script in (sent().poll("c1", 0, *ABCD[:3]), sent().poll("c1", 0, *ABCD, end=True).send("e", 4), sent()):
        verdict = check(script.ops, DRAIN)
        assert verdict.outcome == "unknown", verdict.text()
