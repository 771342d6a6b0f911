"""Delayed messages of the simulator: the product passes, and the judge by hand."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.sim.clients.delayed_messages import DelayedSend, found_wrong
from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play
from raftmq.client.message import Message

SCRIPT = "nodes 3 queues=2 delayed=1\nlead 1\ndemand 4\nkill 1\nwait 3\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_each_is_delivered_once_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_some_seeds_have_such_messages() -> None:
    assert {draw(seed).delayed for seed in range(40)} == {0, 1}


def message(name: str, store_ms: int = 100, **properties: Any) -> Message:
    known = {key: str(value) for key, value in properties.items()}
    return Message("later", 0, 0, 0, f"{name} .".encode(), None, None, known, name, 0, store_ms)


@pytest.mark.parametrize(
    ("outcome", "count", "trimmed", "wrong"),
    [
        ("ok", 1, False, False),
        ("ok", 0, False, True),
        ("ok", 0, True, False),
        ("ok", 2, True, True),
        ("unknown", 0, False, False),
        ("unknown", 1, False, False),
        ("unknown", 2, False, True),
        ("fail", 0, False, False),
        ("fail", 1, False, True),
    ],
)
def test_how_often_a_message_may_be_there(outcome: str, count: int, trimmed: bool, wrong: bool) -> None:
    said = list(found_wrong([DelayedSend("a", 1.0, outcome)], [message("a")] * count, trimmed))
    assert bool(said) == wrong


def test_early_is_before_the_time_that_the_message_names() -> None:
    sent = [DelayedSend("a", 1.0, "ok")]
    assert list(found_wrong(sent, [message("a", 100, TIMER_OUT_MS=100)], False)) == []
    (what,) = found_wrong(sent, [message("a", 100, TIMER_OUT_MS=101)], False)
    assert "1 ms before it was due" in what


@pytest.mark.parametrize(
    ("stands", "trimmed", "wrong"), [("a", False, False), ("b", False, True), ("", False, True), ("", True, False)]
)
def test_what_was_delayed_before_stands_where_its_answer_said(stands: str, trimmed: bool, wrong: bool) -> None:
    messages = [message(stands)] if stands else []
    assert bool(list(found_wrong([DelayedSend("a", 1.0, "unknown", (0, 0))], messages, trimmed))) == wrong
