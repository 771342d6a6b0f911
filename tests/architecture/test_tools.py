"""docs/testing.md has each tool of tests/support/tools.py with the tests that want it; a run says which it missed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.pace import SLOWNESS, at_most, slowness
from tests.support.tools import TOOLS, how_to_get
from tests.support.tree import sources

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
TABLE = re.compile(r"^\| Tool \| .*\n(?:\|.*\n)+", re.MULTILINE)
NAMED = re.compile(r"\b(?:needs|lack|how_to_get)\(([^)]*)\)")
OWN = {"tests/support/tools.py", "tests/architecture/test_tools.py", "tests/conftest.py"}
"""These are about tools, and want none."""


# --- the table --------------------------------------------------------------------------------------


@cache
def texts() -> dict[str, str]:
    """The files below tests/ by name."""
    return {name: text for name, text in sources("tests") if name not in OWN}


@cache
def namings() -> dict[str, str]:
    """File -> the names of all tools in it, in quotes."""
    return {name: " ".join(NAMED.findall(text)) for name, text in texts().items()}


@cache
def wanting(tool: str) -> list[str]:
    """Files with a test that names the tool, or that import a helper which does; for a conftest.py its folder."""
    naming = {name for name, names in namings().items() if f'"{tool}"' in names}
    for helper in [name for name in naming if name.startswith("tests/support/")]:
        naming.remove(helper)
        module = helper.removesuffix(".py").replace("/", ".")
        naming |= {n for n, text in texts().items() if f"from {module} import" in text and "/support/" not in n}
    found = {name.removesuffix("conftest.py") for name in naming}
    return sorted(n for n in found if not any(n != folder and n.startswith(folder) for folder in found))


def table() -> str:
    """Returns the table as docs/testing.md has it."""
    lines = ["| Tool | How to get it (Debian) | What for | Tests |", "|---|---|---|---|"]
    for name, tool in TOOLS.items():
        tests = " ".join(f"`{test}`" for test in wanting(name))
        lines.append(f"| {name} | {how_to_get(name)} | {tool.purpose} | {tests} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_every_tool_with_the_tests_that_want_it(rewrite: bool) -> None:
    text = PAGE.read_text()
    if rewrite:
        PAGE.write_text(TABLE.sub(lambda _: table(), text))
    elif TABLE.findall(text) != [table()]:
        pytest.fail("docs/testing.md has another table: run this test with --rewrite and read what changed")


def test_every_tool_is_wanted() -> None:
    assert [name for name in TOOLS if not wanting(name)] == []


def test_no_test_looks_for_a_tool_by_itself() -> None:
    """It would not be in the table, and a complete run would not miss it."""
    looks = re.compile(r"skipif\([^\n]*which|which\([^\n]*\) is (not )?None[^\n]*\n\s+pytest\.skip")
    assert [name for name, text in texts().items() if looks.search(text)] == []


# --- what a run says --------------------------------------------------------------------------------


SUITE = """
import pytest
from tests.support.tools import lack, needs

@pytest.fixture
def used_first():
    raise AssertionError("a fixture of a test that is skipped")

@needs("promtool")
@pytest.mark.parametrize("n", [1, 2])
def test_wants(n): pass

@needs("promtool", "chromium")
def test_wants_two(used_first): pass

def test_finds_out():
    lack("mvn", why="nothing was built with it")

def test_wants_nothing(): pass
"""


def run(folder: Path, *args: str, path: Path | None = None) -> tuple[int, str]:
    """SUITE under the real conftest.py, with `path` as PATH."""
    (folder / "tests" / "support").mkdir(parents=True, exist_ok=True)
    for name in ("conftest.py", "support/pace.py", "support/tools.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    (folder / "tests" / "test_a.py").write_text(SUITE)
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *args]
    env = {"PATH": str(path or ""), "CI": "true", SLOWNESS: str(slowness())}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=at_most(600), env=env)
    return done.returncode, done.stdout


def told(output: str) -> dict[str, int]:
    """The list at the end: tool -> number of tests."""
    listed = output.partition("tools are missing")[2]
    return {tool: int(count) for tool, count in re.findall(r"^(\w+) +(\d+) tests?   apt-get install", listed, re.M)}


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one", "two"])
def test_a_run_without_tools_passes_and_lists_them(tmp_path: Path, processes: list[str]) -> None:
    code, output = run(tmp_path, *processes)
    assert (code, told(output)) == (0, {"promtool": 3, "chromium": 1, "mvn": 1}), output
    assert "1 passed, 4 skipped" in output


def test_a_complete_run_without_tools_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--complete")
    assert (code, told(output)) == (1, {"promtool": 3, "chromium": 1, "mvn": 1}), output


def test_a_tool_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "promtool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "promtool").chmod(0o755)
    code, output = run(tmp_path, path=tmp_path / "bin")
    assert (code, told(output)) == (0, {"chromium": 1, "mvn": 1}), output
    code, output = run(tmp_path, "--complete", "-k", "test_wants and not two", path=tmp_path / "bin")
    assert (code, told(output)) == (0, {}), output
    assert "3 passed" in output
