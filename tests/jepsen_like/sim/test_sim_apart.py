"""A group whose members want different topics in the simulator: the product passes."""

from __future__ import annotations

from jepsen_like.sim.options import APART_FROM, draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 apart=1\nlead 1\ndemand 6\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_every_queue_of_a_wanted_topic_is_read_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_a_quarter_of_the_seeds_have_such_a_group() -> None:
    assert not any(draw(seed).apart for seed in range(APART_FROM - 20, APART_FROM))
    assert 10 < sum(draw(seed).apart for seed in range(APART_FROM, APART_FROM + 100)) < 40
