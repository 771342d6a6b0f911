"""A topic whose number of queues goes up and down, in the simulator: the product passes."""

from __future__ import annotations

from jepsen_like.sim.options import RESIZED_FROM, draw
from jepsen_like.sim.scripted import play

SCRIPT = "nodes 3 resized=1\nlead 1\ndemand 6\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_fewer_queues_lose_nothing_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_a_quarter_of_the_later_seeds_has_such_a_topic() -> None:
    assert {draw(seed).resized for seed in range(RESIZED_FROM, RESIZED_FROM + 40)} == {0, 1}
    assert not any(draw(seed).resized for seed in range(RESIZED_FROM - 40, RESIZED_FROM))
