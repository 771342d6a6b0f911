"""Deletions while messages wait, in the simulator: nothing is inherited."""

from __future__ import annotations

from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 legacies=1\nlead 1\ndemand 4\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_nothing_is_inherited_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_some_seeds_have_legacies() -> None:
    assert {draw(seed).legacies for seed in range(40)} == {0, 1}
