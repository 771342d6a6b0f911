"""The gates of a full run, the table of faults, and the deck that makes the gates hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jepsen_like.checkers.verdict import Verdict as Checked
from jepsen_like.live.conclusion import Conclusion
from jepsen_like.live.judge import Judgement
from jepsen_like.live.nemeses.coverage_gates import FELT as FELT_WANTED
from jepsen_like.live.nemeses.coverage_gates import Gate, applied_and_felt, gates, rounds_due, scenario_gates
from jepsen_like.live.nemeses.nemesis_interface import Counts, Effect
from jepsen_like.live.nemeses.scenarios import NEMESES, SCENARIOS, nemeses_named
from jepsen_like.live.outcome import RunFindings
from jepsen_like.live.plan import AGAIN_MAX, PACE_MIN, Deck, Plan, pace
from jepsen_like.live.summary import last_line, lines
from tests.support.rows import each_row

FELT, NOTHING = Effect(True, "felt"), Effect(False, "nothing")
ENOUGH = {"kill-one": (5, 5), "swizzle": (7, 5)}


def test_a_fault_that_nobody_felt_comes_again_in_its_round_but_not_for_ever() -> None:
    first, second = nemeses_named("kill-one,kill-all")
    deck = Deck((first, second), random.Random(1), {})
    dealt = []
    while deck.rounds < 2:
        nemesis = deck.deal()
        assert nemesis is not None
        dealt.append(nemesis)
        if nemesis is first:
            deck.again(nemesis)
    assert dealt[:-1].count(second) == 1
    assert dealt[:-1].count(first) == 1 + AGAIN_MAX


def test_a_fault_dealt_again_comes_after_some_others() -> None:
    deck = Deck(tuple(NEMESES.values()), random.Random(3), {})
    first = deck.deal()
    assert first is not None
    deck.again(first)
    assert first not in [deck.deal() for _ in range(3)]
    assert deck.deal() is first


def test_cards_still_due() -> None:
    deck = Deck(tuple(nemeses_named("kill-one,kill-all")), random.Random(1), {"kill-all": 2})
    assert deck.due(5) == 15
    deck.deal()
    assert deck.due(5) == 14
    for _ in range(14):
        deck.deal()
    assert deck.due(5) == 0


@each_row(
    ("left_s", "due", "each_s", "expected"),
    [(600, 140, 3.7, 1.0), (600, 0, 3.7, 1.0), (600, 140, 0.0, 1.0), (100, 140, 3.7, PACE_MIN), (100, 20, 6.0, 0.775)],
)
def test_faults_last_shorter_if_time_runs_out(left_s: float, due: float, each_s: float, expected: float) -> None:
    assert pace(left_s, due, each_s) == pytest.approx(expected)


def test_every_fault_stands_in_the_table_also_one_never_dealt() -> None:
    played = [("kill-one", FELT), ("kill-one", NOTHING), ("swizzle", FELT)]
    assert applied_and_felt(["kill-one", "ring"], played) == {"kill-one": (2, 1), "ring": (0, 0), "swizzle": (1, 1)}


@each_row(
    ("counts", "faults", "changes", "cuts", "missed"),
    [
        (Counts(500_000, 0, 0, 0), ENOUGH, 30, 100, []),
        (Counts(500_000, 0, 0, 0), ENOUGH, 30, None, []),
        (Counts(499_999, 0, 0, 0), ENOUGH, 30, 100, ["acknowledged"]),
        (Counts(500_000, 0, 0, 0), ENOUGH | {"ring": (9, 4)}, 30, 100, ["every fault felt"]),
        (Counts(500_000, 0, 0, 0), {}, 30, 100, ["every fault felt"]),
        (Counts(500_000, 0, 0, 0), ENOUGH, 29, 99, ["leader changes", "power failures"]),
        (Counts(500_000, 0, 11_000, 0), ENOUGH, 30, 100, ["unknown percent"]),
    ],
)
def test_gates_of_a_full_run(
    counts: Counts, faults: dict[str, tuple[int, int]], changes: int, cuts: int | None, missed: list[str]
) -> None:
    found = gates(600.0, counts, faults, changes, cuts)
    assert [gate.name for gate in found if not gate.holds] == missed
    assert len(found) == (4 if cuts is None else 5)
    assert all(gate.line.startswith("MISSED" if gate.name in missed else "ok") for gate in found)


def test_shorter_runs_have_smaller_gates() -> None:
    assert all(gate.holds for gate in gates(120.0, Counts(100_000, 0, 0, 0), {"kill-one": (1, 1)}, 6, 20))
    assert rounds_due(120.0) == 1
    assert gates(6000.0, Counts(0, 0, 0, 0), {}, 0, 0)[0].wanted == 500_000, "longer runs have those of 600 s"


def test_a_scenario_is_to_feel_each_of_its_faults() -> None:
    (held,) = scenario_gates({"kill-one": (5, 5), "swizzle": (9, 7)})
    assert held.holds
    (missed,) = scenario_gates({"kill-one": (5, 5), "swizzle": (9, 4)})
    assert missed.line == "MISSED every fault felt 4 >= 5 (swizzle 4)"
    assert not scenario_gates({}), "a scenario without faults has none to feel"


def test_a_full_run_of_each_scenario_has_time_for_its_faults() -> None:
    """A fault takes 6 s in the mix, recovery and pause included (docs/chaos.md: 35 faults, five rounds, 600 s)."""
    for scenario in SCENARIOS.values():
        dealt = [NEMESES[name] for name in scenario.nemeses if not NEMESES[name].is_hostile]
        assert scenario.is_scripted or scenario.full_s >= 6 * FELT_WANTED * len(dealt), scenario.name
        run = plan(scenario.full_s)._replace(scenario=scenario)
        assert run.gates_count
        assert scenario.is_scripted or not run._replace(time_s=scenario.full_s - 1).gates_count


def outcome(found: list[Gate], verdict: Conclusion = Conclusion.VALID) -> RunFindings:
    judgement = Judgement([], [], Checked("log", ()))
    return RunFindings(verdict, [], Counts(1, 0, 0, 0), [], 1, 0, 0, 3, judgement, {}, 1.0, [], ENOUGH, found)


def plan(time_s: float) -> Plan:
    return Plan("raftmq", None, (NEMESES["kill-one"],), time_s, 7, 100, False)


@each_row(
    ("time_s", "value", "verdict", "code"),
    [
        (600.0, 99, Conclusion.VALID, 7),
        (600.0, 100, Conclusion.VALID, 0),
        (599.0, 99, Conclusion.VALID, 0),
        (600.0, 99, Conclusion.INVALID, 1),
        (600.0, 99, Conclusion.UNKNOWN, 3),
    ],
)
def test_a_missed_gate_has_its_own_exit_code_and_never_changes_a_verdict(
    time_s: float, value: int, verdict: Conclusion, code: int
) -> None:
    made = outcome([Gate("power failures", value, 100)], verdict)
    assert made.exit_code(plan(time_s)) == code
    assert made.to_json(plan(time_s))["verdict"] == verdict.value
    assert ("less than a full run" in last_line(made, plan(time_s), Path("x"))) == (time_s >= 600 and value < 100)


def test_the_table_and_the_gates_are_printed() -> None:
    text = "\n".join(lines(outcome([Gate("every fault felt", 4, 5, told="ring 4")]), plan(600.0)))
    assert "swizzle        7       5" in text
    assert "gates: 0 of 1 hold" in text
    assert "MISSED every fault felt 4 >= 5 (ring 4)" in text
    assert "they do not count yet" in "\n".join(lines(outcome([Gate("x", 1, 1)]), plan(60.0)))
