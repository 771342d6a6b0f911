"""The gate over all planted bugs, and the record of what was measured of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.seeded_bugs import acceptance, classical_bugs, recorded_results
from jepsen_like.seeded_bugs.acceptance import Standing
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, load_all
from jepsen_like.seeded_bugs.cli import bugs as command
from jepsen_like.seeded_bugs.matrix import Row
from jepsen_like.seeded_bugs.recorded_results import NOTHING, PASS, KillRate, Recorded

BUGS = load_all()


def rows(bugs: Sequence[Bug], *, scheduled: bool = True, kills: int = 0) -> list[Row]:
    known = recorded_results.load()

    def row(bug: Bug) -> Row:
        clients = known.get(bug.id, NOTHING).clients
        return Row(
            bug.id, bug.title, bug.engine, scheduled, None, scheduled, clients, None, 9, kills, 0.0, 0.0, 0.0, ""
        )

    return list(map(row, bugs))


def standing(number: int, *lacks: str, kills: int = 1, calm: str | None = "") -> Standing:
    found = KillRate(kills, 9)
    return Standing(f"X{number}", ("a.py", number), True, lacks, found, found, None, calm)


def test_the_record_is_of_bugs_that_there_are() -> None:
    assert recorded_results.load().keys() <= {bug.id for bug in BUGS}


def test_the_recorded_bugs_are_enough_if_their_schedules_kill() -> None:
    """The verdict of the whole command, without its half hour."""
    found = acceptance.standings(BUGS, rows(BUGS), recorded_results.load())
    assert [condition.text for condition in acceptance.conditions(found) if not condition.holds] == []
    assert sum(not each.lacks for each in found) >= acceptance.COUNT_MIN


def test_the_classical_bugs_are_planted_or_say_why_not() -> None:
    found = classical_bugs.load()
    assert classical_bugs.planted() <= {bug.id for bug in BUGS}
    assert len({classic.id for classic in found if classic.bugs}) >= acceptance.SOURCED_MIN


@pytest.mark.parametrize("fields", ["bugs = []", "bugs = ['C01']\nwhy = 'it is planted'"])
def test_a_classical_bug_is_planted_or_has_a_reason(fields: str, tmp_path: Path) -> None:
    path = tmp_path / "classical_bugs.toml"
    path.write_text(f"[Z01]\ntitle = 'a bug'\n{fields}\n")
    with pytest.raises(ValueError, match="Z01"):
        classical_bugs.load(path)


def test_who_dies_in_its_schedule_before_clients_needs_no_random_seed() -> None:
    blind = [standing(number)._replace(black_box=None) for number in range(60)]
    seen = [each._replace(clients="lost-ack") for each in blind]
    assert not acceptance.conditions(blind)[3].holds
    assert acceptance.conditions(seen)[3].holds


@pytest.mark.parametrize(
    ("known", "scheduled", "lacks"),
    [
        (Recorded(PASS), True, ()),
        (Recorded(PASS), False, ("its schedule does not kill it",)),
        (Recorded(), True, ("unit tests not measured",)),
        (Recorded("3 fail"), True, ("unit tests notice it: 3 fail",)),
    ],
)
def test_what_a_bug_lacks(known: Recorded, scheduled: bool, lacks: tuple[str, ...]) -> None:
    (found,) = acceptance.standings(BUGS[:1], rows(BUGS[:1], scheduled=scheduled), {BUGS[0].id: known})
    assert found.lacks == lacks


def test_two_bugs_of_one_line_count_once() -> None:
    twins = [BUGS[0], BUGS[0]]
    first, second = acceptance.standings(twins, rows(twins), {BUGS[0].id: Recorded(PASS)})
    assert first.lacks == ()
    assert second.lacks == (f"the line is that of {BUGS[0].id}",)


def test_a_kill_of_today_goes_before_a_recorded_rate() -> None:
    known = {BUGS[0].id: Recorded(PASS, random=KillRate(3, 200))}
    assert acceptance.standings(BUGS[:1], rows(BUGS[:1]), known)[0].random == (3, 200)
    assert acceptance.standings(BUGS[:1], rows(BUGS[:1], kills=2), known)[0].random == (2, 9)


def test_the_line_of_a_bug_is_where_it_differs() -> None:
    bug = next(bug for bug in BUGS if bug.id == "C11")
    file, line = acceptance.line_of(bug)
    text = (Path(SOURCE_ROOT) / file).read_text().splitlines()
    assert "return" in text[line - 1], "a majority is computed there"


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({number: standing(number, "unit tests not measured") for number in range(10)}, []),
        ({number: standing(number, "unit tests not measured") for number in range(11)}, ["fulfil every column"]),
        ({number: standing(number)._replace(sourced=False) for number in range(20)}, []),
        ({number: standing(number)._replace(sourced=False) for number in range(21)}, ["are of the classical list"]),
        ({number: standing(number)._replace(random=KillRate(0, 9)) for number in range(12)}, []),
        ({number: standing(number)._replace(random=KillRate(0, 9)) for number in range(13)}, ["die in random seeds"]),
        ({number: standing(number)._replace(black_box=None) for number in range(20)}, []),
        ({number: standing(number)._replace(black_box=None) for number in range(21)}, ["what clients see alone"]),
        ({number: standing(number, calm="index") for number in range(15)}, []),
        ({number: standing(number, calm="index") for number in range(16)}, ["die in a calm run"]),
        ({number: standing(number, calm=None) for number in range(16)}, ["die in a calm run"]),
    ],
)
def test_each_condition_of_the_gate(change: dict[int, Standing], missed: list[str]) -> None:
    conditions = acceptance.conditions([change.get(number, standing(number)) for number in range(60)])
    texts = [condition.text for condition in conditions if not condition.holds]
    assert len(texts) == len(missed), texts
    assert all(part in text for part, text in zip(missed, texts, strict=True))


@pytest.mark.parametrize(
    "line", ["unit_test = 'pass'", "random = [3, 2]", "random = [1]", "calm = 3", "black_box = [-1, 2]"]
)
def test_a_wrong_record_is_an_error(line: str, tmp_path: Path) -> None:
    path = tmp_path / "recorded.toml"
    path.write_text(f"C01 = {{ {line} }}\n")
    with pytest.raises(ValueError, match="C01"):
        recorded_results.load(path)


@pytest.mark.ci
def test_the_matrix_says_what_a_bug_lacks_and_judges_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_results, "load", lambda: {"C11b": Recorded("3 fail"), "C01": Recorded(PASS)})
    told = CliRunner().invoke(command, ["--only", "C11b", "--only", "C01", "--seeds", "0"])
    assert told.exit_code == 0, told.output
    lacking = [line for line in told.output.splitlines() if line.startswith("C11b")][-1]
    assert "unit tests notice it" in lacking
    assert "wanted" not in told.output
    as_json = json.loads(CliRunner().invoke(command, ["--only", "C01", "--seeds", "0", "--json"]).output)
    assert as_json["gate"] is None
    assert as_json["bugs"][0]["lacks"] == []
    assert as_json["bugs"][0]["line"].startswith("raftlog/core/raw_node.py:")


def test_a_measure_that_is_not_as_recorded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_results, "load", lambda: {"C11b": Recorded(calm="majority-durable")})
    told = CliRunner().invoke(command, ["--only", "C11b", "--calm"])
    assert told.exit_code == 1
    assert "recorded otherwise, or not at all, in recorded.toml: C11b" in told.output
