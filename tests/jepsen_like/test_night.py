"""The plan of a night, and the table of docs/chaos.md that it fills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jepsen_like import night
from jepsen_like.live.nemeses import scenarios
from jepsen_like.live.nemeses.scenarios import SCENARIOS, Scenario
from jepsen_like.night import VERDICTS, NightStep, full_runs, plan, table_lines

CHAOS = Path(__file__).parents[2] / "docs/chaos.md"
HEAD = "| Scenario | Date | Commit | Seed | Verdict |"
NEVER = "no full run yet"


def rows_of(text: str) -> list[list[str]]:
    """The cells of the rows of the table."""
    lines = text.partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def wrong_rows(rows: list[list[str]]) -> list[str]:
    """What is wrong with the table: every scenario is in it, in order, and tells of a run or that there was none."""
    named = [row[0].strip("`") for row in rows]
    wrong = [] if named == list(SCENARIOS) else [f"rows are {named}, the list is {list(SCENARIOS)}"]
    for name, (_, *run, verdict) in zip(named, rows, strict=True):
        scenario = SCENARIOS.get(name)
        if scenario is not None and scenario.waits_for is not None:
            right = (run, verdict) == (["-"] * 3, f"waits for {scenario.waits_for}")
        elif verdict == NEVER:
            right = run == ["-"] * 3
        else:
            shapes = (r"\d{4}-\d\d-\d\d", r"[0-9a-f]{8}", r"\d+")
            right = verdict in VERDICTS.values() and all(map(re.fullmatch, shapes, run))
        wrong += [] if right else [f"{name}: {run} {verdict}"]
    return wrong


def test_the_table_has_every_scenario_and_says_when_it_was_played() -> None:
    assert wrong_rows(rows_of(CHAOS.read_text("utf-8"))) == []


def test_a_scenario_without_a_row_and_a_row_without_a_run_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(CHAOS.read_text("utf-8"))
    assert wrong_rows([["`quiet`", "-", "-", "-", "valid"], *rows[1:]]) == ["quiet: ['-', '-', '-'] valid"]
    monkeypatch.setitem(scenarios.SCENARIOS, "planted", Scenario("planted", "a scenario that nobody runs"))
    assert "planted" in wrong_rows(rows)[0]
    assert ("--scenario", "planted") in [command[-2:] for command in plan(7, 1, 1, 600, 1)]


def test_a_night_plays_each_scenario_in_full() -> None:
    played = [command[-1] for command in plan(7, 10, 10, 600, 2) if "--scenario" in command]
    assert played == [scenario.name for scenario in SCENARIOS.values() if scenario.waits_for is None]
    assert not any("--scale" in command for command in plan(7, 10, 10, 600, 2))
    assert not any("--scenario" in command for command in plan(7, 10, 10, 600, 2, scenarios=False))


def test_the_lines_of_a_night_are_rows_of_the_table() -> None:
    steps = [NightStep(command, 0, 1.0) for command in plan(7, 10, 10, 600, 2)]
    lines = table_lines(steps, "2026-11-26", "a4ed1dfdce74e43d")
    waiting = [row for row in rows_of(CHAOS.read_text("utf-8")) if row[-1].startswith("waits for")]
    assert wrong_rows([*rows_of("\n".join([HEAD, "|---|", *lines])), *waiting]) == []
    assert lines[0] == "| `quiet` | 2026-11-26 | a4ed1dfd | 7 | valid |"
    (missed,) = table_lines([NightStep((*steps[-1].arguments[:-1], "graceful"), 7, 1.0)], "2026-11-26", "")
    assert missed == "| `graceful` | 2026-11-26 | - | 7 | valid, but a gate was missed |"


def test_a_scenario_is_played_for_the_time_of_its_own_full_run() -> None:
    steps = [NightStep(command, 0, 1.0) for command in plan(7, 10, 10, 600, 2)]
    times = {step.option("--scenario"): step.option("--time") for step in steps if step.arguments[0] == "chaos"}
    assert (times["quiet"], times["hostile"], times[""]) == ("180", "600", "600"), "the mix has no scenario"


def test_a_short_night_has_full_runs_of_scripts_alone() -> None:
    steps = [NightStep(command, 0, 1.0) for command in plan(7, 10, 10, 60, 2)]
    assert len(table_lines(steps, "2026-11-26", "c0ffee00")) == sum(each.is_scripted for each in full_runs())


def test_every_exit_code_of_a_run_is_a_verdict() -> None:
    assert {0, 1, 3, 6, 7} == night.VERDICTS.keys()
