"""Limits of time are those of a quiet machine times one figure, and a test that hangs still fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import SLOWEST, SLOWNESS, at_most, figure, slowness
from tests.support.tree import ROOT

HANGS = """
import threading
import pytest

def test_hangs(): threading.Event().wait()

@pytest.mark.timeout(0.25)
def test_by_mark(): threading.Event().wait()

def test_is_done(): pass
"""

NOTES = """
from pathlib import Path
import pytest
from tests.support.pace import slowness

@pytest.mark.parametrize("n", range(4))
def test_notes(n, worker_id): Path(f"{worker_id}.txt").write_text(f"{slowness():.2f}")
"""


def run(folder: Path, suite: str, *args: str, **env: str) -> str:
    """The suite under the real conftest.py; the figure of this run is not handed on."""
    (folder / "tests" / "support").mkdir(parents=True)
    for name in ("conftest.py", "support/pace.py", "support/tools.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    (folder / "tests" / "test_a.py").write_text(suite)
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", *args]
    inherited = {name: value for name, value in os.environ.items() if name != SLOWNESS}
    return subprocess.run(
        command, cwd=folder, env=inherited | env, capture_output=True, text=True, timeout=at_most(60), check=False
    ).stdout


def test_a_test_that_hangs_fails_after_its_limit(tmp_path: Path) -> None:
    told = run(tmp_path, HANGS, "--timeout=0.5", **{SLOWNESS: "2"})
    failed = re.findall(r"^FAILED tests/test_a\.py::(\w+) - Failed: Timeout \(>([\d.]+)s", told, re.MULTILINE)
    assert failed == [("test_hangs", "1.0"), ("test_by_mark", "0.5")], told
    assert "1 passed" in told


def test_all_workers_use_one_figure(tmp_path: Path) -> None:
    told = run(tmp_path, NOTES, "-n", "2")
    assert "4 passed" in told
    noted = {path.name: path.read_text() for path in tmp_path.glob("gw*.txt")}
    assert set(noted) == {"gw0.txt", "gw1.txt"}
    assert len(set(noted.values())) == 1


@pytest.mark.parametrize(("took_s", "times"), [(0.001, 1.0), (1e6, SLOWEST)], ids=["fast", "stuck"])
def test_the_figure_has_bounds(took_s: float, times: float) -> None:
    """A fast machine shortens no limit, and a hang is found on the slowest."""
    assert figure(took_s) == times


def test_the_figure_grows_with_the_time_of_the_work() -> None:
    assert figure(0.8) == 2 * figure(0.4)


def test_a_limit_is_one_of_a_quiet_machine() -> None:
    assert at_most(60) == 60 * slowness()
    assert 1.0 <= slowness() <= SLOWEST
