"""Levels stand in one list, docs/levels.toml says what it says, and nobody counts from the newest one."""

from __future__ import annotations

import ast
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen_like.seeded_bugs.catalogue import load_all
from raftlog.format_versions import BASELINE
from statemachine import levels
from statemachine.levels import LEVEL, LEVELS
from tests.support.older_build import newest_level, older_commit
from tests.support.tools import needs
from tests.support.tree import PACKAGES, ROOT, nodes, sources

SCRIPT = runpy.run_path(str(ROOT / ".ci" / "levels.py"))
PAGE = ROOT / "docs" / "levels.toml"
PLACES = (*PACKAGES, "bench", "tests")
# What is about the newest level, whichever it is: the level that rises, and what may be installed below it.
ABOUT_THE_NEWEST = {
    "jepsen_like/sim/options.py",
    "tests/architecture/test_levels.py",
    "tests/cluster/sim/test_sim_cluster_level.py",
    "tests/raftmq/commands/test_upgrade_command.py",
}


def test_levels_follow_each_other_and_each_has_a_constant() -> None:
    assert [level.number for level in LEVELS] == list(range(BASELINE, LEVEL + 1))
    assert len({level.name for level in LEVELS}) == len(LEVELS)
    assert all(getattr(levels, f"{level.name.upper()}_LEVEL") == level.number for level in LEVELS[1:])


def test_the_page_has_the_list() -> None:
    assert PAGE.read_text() == SCRIPT["written"](), "run .venv/bin/python .ci/levels.py"
    assert [tuple(level.values()) for level in tomllib.loads(PAGE.read_text())["level"]] == list(LEVELS)


@needs("git")
def test_the_older_build_of_tests_knows_one_level_less() -> None:
    """Fast, while the tests that build it are slow."""
    commit = older_commit()
    if commit is None:
        pytest.skip("the commit is not in this copy of the repository")
    show = ["git", "show", f"{commit}:docs/levels.toml"]
    page = subprocess.run(show, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert newest_level(page) == LEVEL - 1


@needs("git")
def test_the_older_build_is_found_before_the_newest_level_began(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]

    def commit() -> str:
        for words in (["add", "."], ["commit", "-q", "--allow-empty", "-m", "one more"]):
            subprocess.run([*git, *words], check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()

    def list_levels(*numbers: int) -> None:
        page.write_text("".join(f"\n[[level]]\nnumber = {number}\nwhat = 'words'\n" for number in numbers))

    page = tmp_path / "docs" / "levels.toml"
    page.parent.mkdir()
    list_levels(1)
    assert older_commit(tmp_path) is None, "not a repository"
    subprocess.run([*git, "init", "-q"], check=True)
    commit()
    assert older_commit(tmp_path) is None, "its first commit knows the newest level"
    first = commit()
    list_levels(1, 2)
    assert older_commit(tmp_path) == first, "the level is not committed yet"
    commit()
    page.write_text(page.read_text().replace("words", "other words"))
    commit()
    assert older_commit(tmp_path) == first
    last = commit()
    list_levels(1, 2, 13)
    commit()
    assert older_commit(tmp_path) == last


def counted_down(text: str) -> Iterator[int]:
    """Lines in which something is subtracted from the newest level."""
    for node in nodes(text):
        match node:
            case ast.BinOp(op=ast.Sub(), left=ast.Name(id="LEVEL") | ast.Attribute(attr="LEVEL"), lineno=line):
                yield line


def test_nobody_counts_from_the_newest_level() -> None:
    """`LEVEL - 2` means another level as soon as there is a newer one: the test goes on, and tests something else."""
    assert [*counted_down("a = LEVEL - 1\nb = OWNERS_LEVEL - 1\nc = f'{levels.LEVEL - 2}'\nd = LEVEL + 1")] == [1, 3]
    found = {name for name, text in sources(*PLACES) if "LEVEL -" in text and [*counted_down(text)]}
    assert found == ABOUT_THE_NEWEST


def test_schedules_name_the_level_with_which_nodes_begin() -> None:
    first = [bug.schedule.strip().split("\n")[0].split() for bug in load_all() if bug.schedule]
    said = {word for words in first for word in words if word.startswith("levels=")}
    assert said == {"levels=1"}, "say levels=1 begins=LEVEL"
