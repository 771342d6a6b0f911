"""Clients that know one thing that must hold each: the product passes."""

from __future__ import annotations

import pytest

from jepsen_like.sim.options import LATER_KINDS, draw
from jepsen_like.sim.scripted import play


def found(options: str, seconds: float = 4) -> list[tuple[str, str]]:
    script = f"nodes 3 queues=2 {options}\nlead 1\ndemand {seconds}\nsettle\n"
    return [(violation.checker, violation.what) for violation in play(script).violations]


@pytest.mark.parametrize("options", ["waits=1", "seekers=1", "repeats=1 batch_messages_max=16"])
def test_what_they_demand_holds(options: str) -> None:
    assert found(options) == []


def test_seeds_without_them_are_those_of_before() -> None:
    drawn = [draw(seed) for seed in range(200)]
    fields = ("waits", "seekers", "repeats", "tales")
    plain = [options for options in drawn if not any(getattr(options, name) for name in fields)]
    added = [options for options in plain if any(options.later[2:])]
    assert LATER_KINDS[2:] == ("crash-after-sync", "late-apply")
    assert 80 < len(plain) - len(added) < 130
