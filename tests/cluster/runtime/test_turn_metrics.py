"""Long turns as metrics."""

from __future__ import annotations

import pytest

from cluster.runtime.turns.turn_watch import NAMES_MAX, OTHER, LongTurn, TurnMetrics
from tests.support.samples import sample


def turn(what: str, cpu_ms: float, units: int = 0) -> LongTurn:
    return LongTurn(cpu_ms, cpu_ms, units, what)


def test_the_longest_is_shown_with_what_ran() -> None:
    metrics = TurnMetrics()
    for what, cpu_ms in (("a", 30.0), ("b", 90.0), ("c", 40.0)):
        metrics.note(turn(what, cpu_ms))
    assert sample(metrics, "raftmq_turn_longest_seconds", what="b") == pytest.approx(0.09)
    assert sample(metrics, "raftmq_turn_longest_seconds", what="c") is None
    assert sample(metrics, "raftmq_turns_long_total", what="c") == 1


def test_one_that_only_waited_does_not_count() -> None:
    metrics = TurnMetrics()
    metrics.note(LongTurn(500.0, 10.0, 0, "a"))
    assert sample(metrics, "raftmq_turns_long_total", what="a") is None
    assert sample(metrics, "raftmq_turn_longest_seconds", what="a") is None


def test_those_that_the_meter_does_not_explain_are_counted() -> None:
    metrics = TurnMetrics()
    metrics.note(turn("a", 40.0, units=10_000))
    metrics.note(turn("a", 40.0, units=9_999))
    assert sample(metrics, "raftmq_turns_unexplained_total", what="a") == 1


def test_there_are_no_more_names_than_a_scrape_can_bear() -> None:
    metrics = TurnMetrics()
    for number in range(NAMES_MAX + 5):
        metrics.note(turn(f"f{number}", 30.0))
    assert sample(metrics, "raftmq_turns_long_total", what=OTHER) == 5
