"""The table that `make test` ends with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BUDGET_SECONDS
from tests.support.pace import at_most

ROOT = Path(__file__).parents[2]


def run_suite(folder: Path, *args: str) -> str:
    """Two tests in cluster/, one in raftmq/, one beside conftest.py, under the real conftest.py."""
    for name, tests in (("cluster/core/test_a.py", 2), ("raftmq/test_b.py", 1), ("test_c.py", 1)):
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(f"def test_{i}(rewrite): print('rewrite is', rewrite)" for i in range(tests)))
    (folder / "tests" / "support").mkdir()
    for name in ("conftest.py", "support/pace.py", "support/tools.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "no:schemathesis", *args]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=at_most(60)).stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_suite(tmp_path_factory.mktemp("suite"))


def test_every_folder_stands_beside_its_budget(told: str) -> None:
    rows = re.findall(r"^(\w+) +(\d+) +\d+\.\d +(\d+)$", told, re.MULTILINE)
    wanted = {"cluster": "2", "raftmq": "1", "rest": "1"}
    assert rows == [(folder, tests, str(BUDGET_SECONDS[folder])) for folder, tests in wanted.items()]
    assert "4 passed" in told.splitlines()[-1]


def test_rewrite_is_off_unless_asked_for(told: str, tmp_path: Path) -> None:
    assert "rewrite is True" not in told
    assert run_suite(tmp_path, "--rewrite").count("rewrite is True") == 4
