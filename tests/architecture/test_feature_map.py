"""docs/internals/feature-map.md has every row that was asked for, and names nothing that does not exist or run."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.pace import SLOWNESS, at_most, slowness
from tests.support.rows import each_row
from tests.support.tree import nodes, parsed, text_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "feature-map.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
TESTS = re.compile(r"`(tests/[\w/.-]+\.py)::(\w+(?:::\w+)*)(\[[^`]*\])?`( \[\w+\])?")
PATHS = re.compile(r"`([\w/.-]+(?:\.\w+|/))`")


WANTED = {
    f"{letter}{number}"
    for letter, count in {
        "A": 18,
        "B": 17,
        "C": 13,
        "D": 9,
        "E": 14,
        "F": 12,
        "G": 8,
        "H": 15,
        "I": 6,
        "J": 6,
        "K": 5,
        "L": 4,
        "M": 5,
        "N": 3,
    }.items()
    for number in range(1, count + 1)
}
"""All rows of the map, built or not."""


def test_every_row_is_there_once() -> None:
    ids = [row[0] for row in ROWS]
    assert sorted(set(ids)) == sorted(ids)
    assert set(ids) == WANTED
    assert len(WANTED) == int(re.search(r"All (\d+) rows", PAGE)[1])  # type: ignore[index]


@each_row("row", ROWS, ids=lambda row: row[0])
def test_a_row_that_is_built_in_part_says_what_is_missing(row: tuple[str, str, str, str]) -> None:
    does = row[1]
    assert does.startswith("In part: ") is (". Not yet: " in does), "the one needs the other"


@each_row("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: tuple[str, str, str, str]) -> None:
    _, does, where, tests = row
    wrong = [path for path in PATHS.findall(where) if not (ROOT / path).exists()]
    named = TESTS.findall(tests)
    wrong += [f"{path}::{name}" for path, name, _, tag in named if not is_test(path, name, tag.strip(" []"))]
    wrong += [f"{path}: no run of `make test` reaches it" for path, *_ in named if path.startswith("tests/compat/")]
    assert wrong == []
    assert tests.count("::") == len(named), "a test that this page's form does not fit"
    if not does.lower().startswith("not yet"):
        assert named, "what is built has a test"
        assert PATHS.findall(where), "what is built lives somewhere"


def is_test(path: str, name: str, tag: str) -> bool:
    """A test function of that name is in the file; a tag is the name of a mark that stands somewhere in the file."""
    if not (ROOT / path).is_file():
        return False
    return name in functions(parsed(text_of(ROOT / path))) and (not tag or tag in marks(path))


@cache
def marks(path: str) -> set[str]:
    return {node.attr for node in nodes(text_of(ROOT / path)) if isinstance(node, ast.Attribute)}


def functions(scope: ast.Module | ast.ClassDef, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.add(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            found |= functions(node, f"{prefix}{node.name}::")
    return found


def test_a_test_that_does_not_exist_is_found() -> None:
    here = "tests/architecture/test_feature_map.py"
    assert is_test(here, "test_every_row_is_there_once", "")
    assert not is_test(here, "test_no_such_thing", "")
    assert not is_test("tests/no_such_file.py", "test_x", "")
    assert not is_test("tests/architecture/test_style_of_nothing.py", "test_x", "slow")


# --- the hook in tests/conftest.py ------------------------------------------------------------------


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A tree with the real conftest.py, two tests (one skipped when asked) and a page that names both."""
    (tmp_path / "tests" / "support").mkdir(parents=True)
    (tmp_path / "docs" / "internals").mkdir(parents=True)
    for name in ("conftest.py", "support/pace.py", "support/tools.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "tests" / "test_a.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_runs(n): pass\n"
        "@pytest.mark.skipif('SKIP' in os.environ, reason='asked for')\n"
        "def test_may_skip(): pass\n"
        "@pytest.mark.slow\n"
        "def test_slow(): pass\n"
        "@pytest.mark.ci\n"
        "def test_long(): pass\n"
    )
    return tmp_path


def run(suite: Path, names: str, *args: str, **env: str) -> tuple[int, str]:
    (suite / "docs" / "internals" / "feature-map.md").write_text(names)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *args]
    given = {"PATH": "", SLOWNESS: str(slowness()), **env}
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=at_most(60), env=given)
    return done.returncode, done.stdout


GOOD = (
    "`tests/test_a.py::test_runs` `tests/test_a.py::test_may_skip` "
    "`tests/test_a.py::test_slow` [slow] `tests/test_a.py::test_long` [ci]"
)
BAD = GOOD + " `tests/test_a.py::test_runs[2]` `tests/test_a.py::test_runs[3]` `tests/test_a.py::test_slow`"


@pytest.mark.parametrize(
    ("args", "missing"),
    [([], {"test_slow", "test_runs[3]"}), (["--complete"], {"test_may_skip", "test_slow", "test_runs[3]"})],
    ids=["default", "complete"],
)
def test_named_tests_that_did_not_run_fail_a_whole_run(suite: Path, args: list[str], missing: set[str]) -> None:
    """Deselected, or of a parameter that there is not, and in a complete run also skipped; of slow tests only a slow
    run says anything."""
    code, output = run(suite, BAD, *args, SKIP="1")
    assert code == 1
    told = output.partition("did not run")[2]
    assert set(re.findall(r"^tests/test_a\.py::(\S+)$", told, re.MULTILINE)) == missing


def test_a_named_test_that_is_skipped_fails_only_a_complete_run(suite: Path) -> None:
    """Whatever the environment of CI says: a machine that lacks a tool is not at fault."""
    assert run(suite, GOOD, SKIP="1", CI="true")[0] == 0
    assert run(suite, GOOD, "--complete", SKIP="1")[0] == 1
    assert run(suite, GOOD, "--complete")[0] == 0


@pytest.mark.parametrize("mark", ["slow", "ci and not slow"])
def test_a_run_of_one_mark_must_have_the_tests_that_are_named_with_it(suite: Path, mark: str) -> None:
    tag = mark.partition(" ")[0]
    code, output = run(suite, f"{GOOD} `tests/test_a.py::test_gone` [{tag}] `tests/test_a.py::test_other`", "-m", mark)
    assert code == 1
    assert output.partition("did not run")[2].split()[1:2] == ["tests/test_a.py::test_gone"]
    assert "test_other" not in output


@pytest.mark.parametrize(
    "args",
    [[], ["-k", "runs"], ["-m", "slow"], ["-m", "ci and not slow"]],
    ids=["whole", "narrowed", "slow", "ci"],
)
def test_other_runs_pass(suite: Path, args: list[str]) -> None:
    code, output = run(suite, BAD if "-k" in args else GOOD, *args)
    assert (code, "did not run" in output) == (0, False), output
