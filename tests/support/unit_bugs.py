"""Bugs that are planted in copies of the packages, each of which a named unit test notices."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, Edit, make_copy, patched
from tests.support.pace import at_most

NOT_COPIED = ("compat", "architecture", "jepsen_like", "pyspark_raftmq", "__pycache__")
"""Folders of tests that a copy goes without."""
Planted = dict[str, Any]
"""A table `[[bugs]]`: id, title, pedigree, edits, and `test`: the test's file below tests/, and its name."""


def all_planted() -> list[Planted]:
    """Returns the bugs of every table `*_bugs.toml` below tests/."""
    tables = sorted((SOURCE_ROOT / "tests").rglob("*_bugs.toml"))
    return [each for table in tables for each in tomllib.loads(table.read_text())["bugs"]]


def bug_of(planted: Planted) -> Bug:
    edits = tuple(Edit(**edit) for edit in planted["edits"])
    return Bug(planted["id"], planted["title"], planted["pedigree"], "full", ("unit tests",), "", edits)


def assert_fits(planted: Planted) -> None:
    """Each edit fits the code exactly once, and the test is there."""
    for file, text in patched(bug_of(planted)).items():
        compile(text, file, "exec")
    file, _, name = planted["test"].partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    assert re.search(rf"def {function}\b", (SOURCE_ROOT / "tests" / file).read_text()), f"no {function} in {file}"


def assert_noticed(planted: Planted, copy: Path) -> None:
    """The test fails in a copy of the packages with the bug, made in the folder `copy`."""
    make_copy(copy, bug_of(planted))
    shutil.copytree(SOURCE_ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns(*NOT_COPIED))
    shutil.copy(SOURCE_ROOT / "pyproject.toml", copy)
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not live", f"--timeout={at_most(60):.0f}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/{planted['test']}", *words],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=at_most(180),
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, (done.stdout + done.stderr)[-2000:]
