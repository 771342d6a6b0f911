"""Each commit runs seeds of its own, so that the suite explores something new; which ones, its output ends with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like import night
from jepsen_like.commit_seed import WITHOUT_GIT, commit_seed
from jepsen_like.core_sim.campaign import run_range as run_core
from jepsen_like.sim.campaign import run_range as run_full
from tests.support.tools import needs

MANY = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=MANY)])
def test_core_seeds_of_this_commit(seeds: int, record_property: Callable[[str, object], None]) -> None:
    seed = commit_seed()
    summary = run_core(seed.first_seed, seeds)
    record_property("seeds", f"{seed.origin}: {summary.line()}")
    assert [(v.seed, v.checker, v.detail) for v in summary.violations] == [], (
        f"raftmq sim replay --core {summary.violations[0].seed}"
    )


@pytest.mark.ci
@pytest.mark.parametrize("seeds", [2, pytest.param(10, marks=MANY)])
def test_full_node_seeds_of_this_commit(seeds: int, record_property: Callable[[str, object], None]) -> None:
    seed = commit_seed()
    summary = run_full(seed.first_seed, seeds)
    record_property("seeds", f"{seed.origin}: {summary.line()}")
    assert not summary.failing, f"raftmq sim replay {summary.failing[0].seed}"


@needs("git")
def test_the_seed_follows_the_commit_and_is_fixed_without_one(tmp_path: Path) -> None:
    assert commit_seed(tmp_path) == (WITHOUT_GIT, "no commit here, a fixed number")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for number in (1, 2):
        (tmp_path / "file").write_text(str(number))
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"number {number}"], check=True)
    last = commit_seed(tmp_path)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert last.first_seed == int(commit[:7], 16)
    assert last.origin == f"commit {commit[:7]}"
    subprocess.run([*git, "checkout", "-q", "HEAD~1"], check=True)
    assert commit_seed(tmp_path) != last


def test_the_night_runs_every_step_and_fails_if_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, ...]] = []

    def run(arguments: tuple[str, ...]) -> int:
        asked.append(arguments)
        return 1 if "--core" in arguments else 0

    steps = night.perform(night.plan(9, 5, 4, 3, 2), run)
    assert night.conclude(steps, "2026-01-01", "0123456789") == 1
    told = capsys.readouterr().out
    searches, played = asked[:4], asked[4:]
    assert [words[:2] for words in searches] == [("sim", "run"), ("sim", "run"), ("sim", "bugs"), ("chaos", "run")]
    assert [words[-1] for words in played] == [scenario.name for scenario in night.full_runs()]
    assert told.count("\nok ") == 3 + len(played)
    assert "exit 1" in told
    assert "| `graceful` | 2026-01-01 | 01234567 |" in told.partition("rows for the table of full runs:")[2]
    again = night.perform(night.plan(9, 5, 4, 3, 2, bugs=False), lambda arguments: 0)
    assert ("sim", "bugs") not in [step.arguments for step in again]
    assert night.conclude(again, "", "") == 0
    assert night.seeds_from(9) == (9, "as given")
    assert night.seeds_from(None) == commit_seed()
