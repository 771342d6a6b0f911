"""Changes of quotas: what is drawn as bad is refused by the API, what is drawn as good is taken, and a wrong answer is
noticed."""

from __future__ import annotations

import io
import json
import random
import urllib.error
from email.message import Message
from typing import Any

import msgspec

from cluster.admin.handlers.quotas import QuotasRequest
from jepsen_like.live.probes.quota_changes import Changes, QuotaChange, body_of, draw
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
