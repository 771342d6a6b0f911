"""The bugs of registry_bugs.toml: each fits the code, and the test that is named notices it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, Edit, make_copy, patched
from jepsen_like.seeded_bugs.unit_tests import NOT_COPIED
from tests.support.pace import at_most

HERE = Path(__file__).parent
FOUND: list[dict[str, Any]] = tomllib.loads((HERE / "registry_bugs.toml").read_text())["bugs"]
IDS = [each["id"] for each in FOUND]


def bug_of(planted: dict[str, Any]) -> Bug:
    edits = tuple(Edit(**edit) for edit in planted["edits"])
    return Bug(planted["id"], planted["title"], planted["pedigree"], "full", ("unit tests",), "", "", edits)


@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_the_registry_fits_the_code(planted: dict[str, Any]) -> None:
    for file, text in patched(bug_of(planted)).items():
        compile(text, file, "exec")
    assert (HERE / planted["test"].partition("::")[0]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("planted", FOUND, ids=IDS)
def test_a_planted_bug_of_the_registry_is_noticed(planted: dict[str, Any], tmp_path: Path) -> None:
    make_copy(tmp_path, bug_of(planted))
    shutil.copytree(SOURCE_ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns(*NOT_COPIED))
    shutil.copy(SOURCE_ROOT / "pyproject.toml", tmp_path)
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not live", f"--timeout={at_most(60):.0f}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/cluster/registry/{planted['test']}", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=at_most(180),
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, (done.stdout + done.stderr)[-2000:]
