"""The log checker against a table of hand-made histories: every verdict it can give, good and bad."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jepsen_like.checker_log import LogVerdict, check_log, summary
from jepsen_like.history import Op
from tests.support.rows import each_row


class Story:
    """Builds a history step by step; each step takes one nanosecond. Messages go to topic `t` unless told."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._open: dict[str, tuple[int, dict[str, Any]]] = {}
        self._processes = 0

    def step(self, process: int, kind: Any, f: str, value: Any) -> None:
        self.ops.append(Op(len(self.ops), process, kind, f, value, len(self.ops)))

    def invoke(self, message_id: str, topic: str = "t") -> Story:
        self._processes += 1
        value = {"topic": topic, "id": message_id}
        self._open[message_id] = (self._processes, value)
        self.step(self._processes, "invoke", "send", value)
        return self

    def ok(self, message_id: str, offset: int, queue: int = 0) -> Story:
        process, value = self._open.pop(message_id)
        self.step(process, "ok", "send", {**value, "queue_id": queue, "queue_offset": offset})
        return self

    def end(self, message_id: str, kind: str) -> Story:
        process, value = self._open.pop(message_id)
        self.step(process, kind, "send", value)
        return self

    def send(self, message_id: str, offset: int, queue: int = 0) -> Story:
        return self.invoke(message_id).ok(message_id, offset, queue)

    def read(
        self, node: int, *rows: tuple[int, str], queue: int = 0, topic: str = "t", start: int = 0, end: bool = True
    ) -> Story:
        self._processes += 1
        asked = {"node": node, "topic": topic, "queue_id": queue, "offset": start}
        self.step(self._processes, "invoke", "read", asked)
        self.step(self._processes, "ok", "read", {"messages": [list(row) for row in rows], "end": end})
        return self

    def everywhere(self, *rows: tuple[int, str], queue: int = 0) -> Story:
        for node in (1, 2, 3):
            self.read(node, *rows, queue=queue)
        return self


def found(verdict: LogVerdict) -> dict[str, int]:
    counts = {kind: verdict.count(kind) for kind in ("lost", "duplicated", "reordered", "phantom")}
    return {kind: count for kind, count in counts.items() if count}


AB = ((0, "a"), (1, "b"))

GOOD = {
    "nothing happened": Story(),
    "two sends, three replicas": Story().send("a", 0).send("b", 1).everywhere(*AB),
    "two queues": Story().send("a", 0).send("b", 0, queue=1).everywhere((0, "a")).everywhere((0, "b"), queue=1),
    "concurrent sends may land either way": Story()
    .invoke("a")
    .invoke("b")
    .ok("b", 0)
    .ok("a", 1)
    .everywhere((0, "b"), (1, "a")),
    "unknown and absent": Story().send("a", 0).invoke("u").end("u", "info").everywhere((0, "a")),
    "unknown and stored everywhere": Story().invoke("u").end("u", "info").send("a", 1).everywhere((0, "u"), (1, "a")),
    "unknown, stored after a later send": Story()
    .invoke("u")
    .send("a", 0)
    .end("u", "info")
    .everywhere((0, "a"), (1, "u")),
    "never answered and stored": Story().invoke("u").everywhere((0, "u")),
    "failed and absent": Story().invoke("f").end("f", "fail").send("a", 0).everywhere((0, "a")),
    "one replica in several pulls": Story()
    .send("a", 0)
    .send("b", 1)
    .read(1, (0, "a"), end=False)
    .read(1, (1, "b"), start=1, end=False)
    .read(1, start=2),
    "a late ack says nothing about order": Story()
    .invoke("a")
    .send("b", 0)
    .ok("a", 1)
    .send("c", 2)
    .everywhere((0, "b"), (1, "a"), (2, "c")),
}

BAD: dict[str, tuple[Story, dict[str, int]]] = {
    "acknowledged, on no replica": (Story().send("a", 0).everywhere(), {"lost": 3}),
    "acknowledged, missing on one replica": (
        Story().send("a", 0).send("b", 1).read(1, *AB).read(2, *AB).read(3, (0, "a")),
        {"lost": 1},
    ),
    "unknown, on some replicas only": (
        Story().invoke("u").end("u", "info").read(1, (0, "u")).read(2).read(3, (0, "u")),
        {"lost": 1},
    ),
    "lost, and its place taken by the next": (
        Story().send("a", 0).send("b", 1).send("c", 2).everywhere((0, "a"), (1, "c")),
        {"lost": 3, "reordered": 3},  # c was acknowledged at 2 and found at 1
    ),
    "lost on a replica that was read past its offset but not to the end": (
        Story().send("a", 0).send("b", 1).send("c", 2).read(1, (0, "a"), (2, "c"), end=False),
        {"lost": 1, "reordered": 1},
    ),
    "stored twice in a queue": (
        Story().send("a", 0).send("b", 1).everywhere(*AB, (2, "a")),
        {"duplicated": 3, "reordered": 3},
    ),
    "stored in two queues": (
        Story().send("a", 0).everywhere((0, "a")).everywhere((0, "a"), queue=1),
        {"duplicated": 3, "reordered": 3},
    ),
    "three copies are two too many": (
        Story().invoke("u").end("u", "info").read(1, (0, "u"), (1, "u"), (2, "u")),
        {"duplicated": 2},
    ),
    "an unknown send stored twice by its retry": (
        Story().invoke("u").end("u", "info").send("a", 1).everywhere((0, "u"), (1, "a"), (2, "u")),
        {"duplicated": 3},
    ),
    "a failed send that is there": (
        Story().invoke("f").end("f", "fail").everywhere((0, "f")),
        {"phantom": 3},
    ),
    "nobody sent it": (Story().everywhere((0, "x")), {"phantom": 3}),
    "read before it was sent": (
        Story().read(1, (0, "a")).send("a", 0),
        {"phantom": 1},
    ),
    "in another topic than it was sent to": (
        Story().invoke("a").end("a", "info").read(1, (0, "a"), topic="other"),
        {"phantom": 1},
    ),
    "a gap in the offsets": (
        Story().send("a", 0).send("b", 2).everywhere((0, "a"), (2, "b")),
        {"reordered": 3},
    ),
    "a gap at the start": (Story().send("a", 1).everywhere((1, "a")), {"reordered": 3}),
    "a gap between two pulls": (
        Story().send("a", 0).send("b", 2).read(1, (0, "a"), end=False).read(1, (2, "b"), start=2),
        {"reordered": 1},
    ),
    "one offset served twice": (
        Story().send("a", 0).send("b", 1).read(1, (0, "a"), (0, "a"), (1, "b")),
        {"reordered": 1},
    ),
    "a queue that runs backwards": (
        Story().send("a", 0).send("b", 1).read(1, (1, "b"), (0, "a")),
        {"reordered": 2},
    ),
    "replicas that hold different messages at one offset": (
        Story().invoke("u").end("u", "info").invoke("v").end("v", "info").read(1, (0, "u")).read(2, (0, "v")),
        {"lost": 2, "reordered": 1},
    ),
    "found at another offset than acknowledged": (
        Story().invoke("a").invoke("b").ok("a", 1).ok("b", 0).everywhere(*AB),
        {"reordered": 6},
    ),
    "acknowledged before the other was sent, yet behind it": (
        Story().send("a", 1).send("b", 0).everywhere((0, "b"), (1, "a")),
        {"reordered": 1},
    ),
    "the same, across a send that was under way all the time": (
        Story().invoke("a").send("c", 2).send("b", 1).ok("a", 0).everywhere((0, "a"), (1, "b"), (2, "c")),
        {"reordered": 1},
    ),
    "the same, hidden behind a later acknowledgement of a lower offset": (
        Story().invoke("c").send("a", 2).ok("c", 0).send("b", 1).everywhere((0, "c"), (1, "b"), (2, "a")),
        {"reordered": 1},
    ),
    "an unknown send that overtook an older acknowledged one": (
        Story().send("a", 1).invoke("u").end("u", "info").everywhere((0, "u"), (1, "a")),
        {"reordered": 1},
    ),
}


@each_row("name", GOOD)
def test_good(name: str) -> None:
    verdict = check_log(GOOD[name].ops)
    assert found(verdict) == {}, summary(verdict)
    assert verdict.valid is True, summary(verdict)


@each_row("name", BAD)
def test_bad(name: str) -> None:
    story, expected = BAD[name]
    verdict = check_log(story.ops)
    assert found(verdict) == expected, summary(verdict)
    assert verdict.valid is False
    for anomaly in verdict.anomalies:
        assert anomaly.what
        assert all(0 <= op < len(story.ops) for op in anomaly.ops)


def test_a_queue_not_read_to_its_end_leaves_the_verdict_open() -> None:
    story = Story().send("a", 0).send("b", 1)
    story.read(1, *AB).read(2, *AB).read(3, (0, "a"), end=False)
    verdict = check_log(story.ops)
    assert verdict.valid is None
    assert [tuple(item) for item in verdict.incomplete] == [(3, "t", 0)]


def test_a_queue_one_replica_was_never_asked_about_leaves_the_verdict_open() -> None:
    story = Story().send("a", 0).send("b", 0, queue=1).everywhere((0, "a")).read(1, (0, "b"), queue=1)
    verdict = check_log(story.ops)
    assert verdict.valid is None
    assert [tuple(item) for item in verdict.incomplete] == [(2, "t", 1), (3, "t", 1)]


def test_a_read_that_failed_proves_nothing() -> None:
    story = Story().send("a", 0)
    asked = {"node": 1, "topic": "t", "queue_id": 0, "offset": 0}
    story.step(90, "invoke", "read", asked)
    story.step(90, "info", "read", asked)
    assert check_log(story.ops).valid is None


def test_counts_keep_the_outcomes_apart() -> None:
    story = Story().send("a", 0).invoke("f").end("f", "fail").invoke("u").end("u", "info").invoke("v")
    story.everywhere((0, "a"), (1, "v"))
    verdict = check_log(story.ops)
    assert (verdict.acked, verdict.failed, verdict.unknown, verdict.unknown_stored) == (1, 1, 2, 1)
    assert verdict.read == {1: 2, 2: 2, 3: 2}


def test_ids_must_be_unique() -> None:
    with pytest.raises(ValueError, match=r"line 5: .*message id 'a' was sent before"):
        check_log(Story().send("a", 0).send("a", 1).ops)


def test_summary_is_json_and_shows_at_most_ten_of_a_kind() -> None:
    story = Story()
    for number in range(30):
        story.send(f"m{number}", number)
    result = summary(check_log(story.everywhere().ops))
    assert result["lost"] == 90
    assert len(result["anomalies"]) == 10
    assert result["valid"] is False


@each_row("seed", range(20))
def test_one_planted_fault_in_a_long_history_is_the_only_finding(seed: int) -> None:
    """A correct random run is valid; the same run with one fault has exactly that fault, on that replica."""
    rng = random.Random(seed)
    queues: dict[int, list[Any]] = {q: [] for q in range(4)}
    story, under_way = Story(), []
    for number in range(400):
        message_id = f"m{number}"
        story.invoke(message_id)
        under_way.append(message_id)
        while len(under_way) > rng.randrange(1, 16):
            done = under_way.pop(rng.randrange(len(under_way)))
            outcome = rng.choices(["ok", "fail", "info", "absent"], [90, 3, 4, 3])[0]
            queue = rng.randrange(4)
            if outcome in ("ok", "info"):
                queues[queue].append((len(queues[queue]), done))
            if outcome == "ok":
                story.ok(done, len(queues[queue]) - 1, queue)
            else:
                story.end(done, "fail" if outcome == "fail" else "info")
    clean = len(story.ops)
    fault = rng.choice(["none", "lost", "duplicated", "swapped"])
    queue = rng.randrange(4)
    for node in (1, 2, 3):
        for q, rows in queues.items():
            held = list(rows)
            if node == 2 and q == queue:
                if fault == "lost":
                    held = held[:-1]
                elif fault == "duplicated":
                    held.append((len(held), held[rng.randrange(len(held))][1]))
                elif fault == "swapped":
                    (i, a), (j, b) = held[7:9]
                    held[7:9] = [(i, b), (j, a)]
            story.read(node, *held, queue=q)
    verdict = check_log(story.ops)
    kinds = set(found(verdict))
    expected: dict[str, set[str]] = {"none": set(), "lost": {"lost"}, "swapped": {"reordered"}}
    if fault == "duplicated":
        assert verdict.count("duplicated") == 1
        assert kinds <= {"duplicated", "reordered"}, summary(verdict)
    else:
        assert kinds == expected[fault], (fault, clean, summary(verdict))
    assert {anomaly.node for anomaly in verdict.anomalies} <= {2, 3}
