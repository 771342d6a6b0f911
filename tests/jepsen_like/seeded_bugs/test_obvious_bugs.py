"""The bugs that need no search: the calm run and the unit tests in a mutated copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.core_sim.calm_run import run_calm
from jepsen_like.seeded_bugs import catalogue, recorded_results
from jepsen_like.seeded_bugs.calm_verdicts import CALM_MAX, OPERATIONS, calm_row, calm_rows, fired
from jepsen_like.seeded_bugs.catalogue import Bug, Edit, load_all
from jepsen_like.seeded_bugs.cli import bugs as command
from jepsen_like.seeded_bugs.recorded_results import Recorded
from jepsen_like.seeded_bugs.unit_tests import folders, outcome, outcomes, requested

pytestmark = pytest.mark.ci

BUGS = {bug.id: bug for bug in load_all()}
_AGREED = """`values` has one number per voter.\"""
    ordered = sorted(values)
    return ordered[(len(ordered) {} 1) // 2]"""
BLATANT = replace(
    BUGS["C11b"],
    id="C00",
    title="one vote less than a majority commits",
    edits=(Edit("raftlog/core/state/quorum.py", _AGREED.format("-"), _AGREED.format("+")),),
)
"""Not in the catalogue, which holds what unit tests pass."""


@pytest.mark.parametrize("crash", [False, True], ids=["fault-free", "one crash"])
def test_the_product_stands_the_calm_run(crash: bool) -> None:
    assert run_calm(0, OPERATIONS, crash=crash) is None


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True], ids=["fault-free", "one crash"])
def test_full_nodes_stand_the_calm_run(crash: bool) -> None:
    assert fired("full", crash=crash) is None


def test_an_engine_without_a_calm_run_is_no_crash_of_a_bug() -> None:
    with pytest.raises(KeyError, match="live"):
        fired("live", crash=False)


def test_a_blatant_bug_dies_in_the_calm_run_and_a_subtle_one_does_not() -> None:
    blatant, subtle = calm_row(BLATANT), calm_row(BUGS["C05"])
    assert blatant.fault_free == "majority-durable"
    assert blatant.dies
    assert not subtle.dies, subtle


def test_unit_tests_notice_a_blatant_bug_and_pass_a_subtle_one() -> None:
    blatant, subtle = outcome(BLATANT), outcome(BUGS["C05"])
    assert any("test_story[election]" in name for name in blatant.failed), blatant
    assert not blatant.unnoticed
    assert subtle.unnoticed, subtle
    assert subtle.passed > 70


def test_a_copy_whose_tests_cannot_be_collected_does_not_pass() -> None:
    broken = Bug(
        "X", "", "", "core", ("x",), "", (Edit("raftlog/core/state/quorum.py", "def majority(", "def other("),)
    )
    assert not outcome(broken).unnoticed


def test_what_starts_nodes_is_left_out_also_where_files_are_named(tmp_path: Path) -> None:
    for name in ("test_dedup_table.py", "test_other.py"):
        (tmp_path / "tests/cluster" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests/cluster" / name).touch()
    asked = requested(BUGS["Q07"], tmp_path, searches=False)
    assert asked["paths"] == ["tests/cluster/test_other.py"]
    assert "tests/raftlog/core/test_raft_search.py" in asked["ignored"]
    assert "tests/raftlog/core/test_raft_search.py" not in requested(BUGS["Q07"], tmp_path, searches=True)["ignored"]


def test_the_layers_of_a_bug_decide_which_tests_run() -> None:
    def touches(*files: str) -> tuple[str, ...]:
        return folders(files)

    assert touches("raftlog/core/state/log.py") == ("tests/raftlog/core",)
    assert touches("raftlog/storage/files/fs.py", "raftmq/client/connection.py") == (
        "tests/raftlog/storage",
        "tests/raftmq/client",
    )
    assert "tests/cluster/sim" in touches("cluster/node/node.py")
    assert touches("statemachine/rows/kv.py", "statemachine/apply.py") == ("tests/statemachine",)


def test_one_measure_at_a_time() -> None:
    result = CliRunner().invoke(command, ["--only", "C05", "--calm", "--unit-tests"])
    assert result.exit_code == 2
    assert "two different measures" in result.output


def test_the_calm_measure_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_all", lambda: [BLATANT])
    monkeypatch.setattr(recorded_results, "load", lambda: {BLATANT.id: Recorded(calm="majority-durable")})
    result = CliRunner().invoke(command, ["--only", BLATANT.id, "--calm", "--json", "--jobs", "1"])
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "calm": [{"name": BLATANT.id, "fault_free": "majority-durable", "single_crash": "majority-durable"}],
        "dead": 1,
        "allowed": CALM_MAX,
        "not as recorded": [],
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_few_bugs_die_in_the_calm_run() -> None:
    dead = [row for row in calm_rows(list(BUGS.values()), 1) if row.dies]
    assert len(dead) <= CALM_MAX, dead


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_most_core_bugs_pass_the_unit_tests() -> None:
    core = [bug for bug in BUGS.values() if bug.engine == "core"]
    found = list(outcomes(core, 1))
    assert [row for row in found if row.note] == []
    assert 2 * sum(row.unnoticed for row in found) > len(core)
