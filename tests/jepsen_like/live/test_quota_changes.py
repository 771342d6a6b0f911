"""Changes of quotas: what is drawn as bad is refused by the API, what is drawn as good is taken, and a wrong answer is
noticed. What the story about them judges can fail.
"""

from __future__ import annotations

import io
import json
import random
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import msgspec

from cluster.admin.handlers.quotas import QuotasRequest
from cluster.flow.quota_buckets import BURST_MS
from jepsen_like.live.probes.node_watch import NodeChange
from jepsen_like.live.probes.quota_changes import LIMITS, Changes, QuotaChange, body_of, draw
from jepsen_like.live.stories import story_quota_storm
from tests.support.rows import each_row

SUBJECT, OTHER = "topic=T", "topic=storm-1"
GOOD = QuotaChange(body_of({OTHER: {"send_messages": 1}}), {OTHER: {"send_messages": 1}}, "good")
BAD = QuotaChange({"quotas": []}, None, "none")


def refuse(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("", code, "", Message(), io.BytesIO(b"why"))


class Node:
    """Answers as it is told."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error

    def __call__(self, body: Any) -> Any:
        if self.error is not None:
            raise self.error


def changes(error: OSError | None = None) -> Changes:
    return Changes(Node(error), SUBJECT, random.Random(1))


def test_good_ones_can_be_decoded_and_all_kinds_come() -> None:
    rng, kinds = random.Random(3), set[str]()
    for _ in range(2_000):
        change = draw(SUBJECT, rng, 2)
        kinds.add(change.kind)
        if change.rows is not None:
            msgspec.json.decode(json.dumps(change.body), type=QuotasRequest)
    assert {"good", "zero", "below one", "2^62", "twice", "none", "no subject"} <= kinds


@each_row(
    ("change", "error", "calm", "wrong"),
    [
        (GOOD, None, True, ""),
        (BAD, refuse(400), True, ""),
        (BAD, None, True, "was accepted"),
        (BAD, refuse(500), True, "was answered 500: why"),
        (GOOD, refuse(400), True, "was answered 400: why"),
        (GOOD, OSError("gone"), True, "was not answered: gone"),
        (GOOD, OSError("gone"), False, ""),
        (GOOD, refuse(503), False, ""),
        (BAD, None, False, "was accepted"),
    ],
)
def test_a_wrong_answer_is_noticed(change: QuotaChange, error: OSError | None, calm: bool, wrong: str) -> None:
    made = changes(error)
    made.calm = calm
    made.make(change)
    assert len(made.wrong) == bool(wrong)
    assert wrong in "".join(made.wrong)


def test_quotas_are_what_was_accepted() -> None:
    made = changes()
    made.make(GOOD)
    one = {"send_messages": 1}
    assert not made.compare(lambda: {OTHER: one, SUBJECT: {"send_messages": 7}})
    assert "1 quotas are not what was accepted" in made.compare(dict)
    assert "topic=T-beside" in made.compare(lambda: {OTHER: one, "topic=T-beside": one})
    made.make(QuotaChange(body_of({OTHER: None}), {OTHER: None}, "good"))
    assert not made.compare(dict)


@each_row(
    ("what", "late_s", "terms", "broken", "doubts"),
    [
        ("node 2 ended by itself", 0.0, 0, ["node 2 ended by itself while nothing but quotas changed"], 0),
        ("node 2 ended by itself", 3.0, 1, ["node 2 ended by itself while nothing but quotas changed"], 1),
        ("node 2 leads term 4, after node 1 in term 3", 0.0, 1, ["1 terms began while nothing but quotas changed"], 0),
        ("node 2 leads term 4, after node 1 in term 3", 3.0, 1, [], 1),
    ],
)
def test_in_the_calm_no_node_ends_and_no_term_begins(
    what: str, late_s: float, terms: int, broken: list[str], doubts: int
) -> None:
    found: list[str] = []
    scene: Any = SimpleNamespace(demand=lambda holds, what: None if holds else found.append(what), doubts=[])
    watch: Any = SimpleNamespace(changes=[NodeChange(1.0, what)], late=[(1.0, late_s)])
    story_quota_storm.judge_calm(scene, watch, terms)
    assert (found, len(scene.doubts)) == (broken, doubts)


def test_no_limit_lets_the_sends_at_the_end_pass_in_time() -> None:
    for limit in LIMITS:
        at_once = limit * BURST_MS / 1000
        assert (story_quota_storm.AFTER - at_once) / limit > 1.2 * story_quota_storm.AFTER_S
