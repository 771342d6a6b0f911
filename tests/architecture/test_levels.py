"""Levels stand in one list, docs/levels.toml says what it says, and nobody counts from the newest one."""

from __future__ import annotations

import runpy
import tomllib

from raftlog.format_versions import BASELINE
from statemachine import levels
from statemachine.levels import LEVEL, LEVELS
from tests.support.tree import ROOT

SCRIPT = runpy.run_path(str(ROOT / ".ci" / "levels.py"))
PAGE = ROOT / "docs" / "levels.toml"


def test_levels_follow_each_other_and_each_has_a_constant() -> None:
    assert [level.number for level in LEVELS] == list(range(BASELINE, LEVEL + 1))
    assert len({level.name for level in LEVELS}) == len(LEVELS)
    assert all(getattr(levels, f"{level.name.upper()}_LEVEL") == level.number for level in LEVELS[1:])


def test_the_page_has_the_list() -> None:
    assert PAGE.read_text() == SCRIPT["written"](), "run .venv/bin/python .ci/levels.py"
    assert [tuple(level.values()) for level in tomllib.loads(PAGE.read_text())["level"]] == list(LEVELS)


def test_the_older_build_of_tests_knows_one_level_less() -> None:
    """Fast, while the tests that build it are slow: a new level names another commit."""
    assert tomllib.loads(PAGE.read_text())["start"]["level"] == LEVEL - 1
