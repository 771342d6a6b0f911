"""Messages that wait on a log too small for them: they are carried forward, and the model of what pins it judges."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.sim.options import draw
from jepsen_like.sim.scripted import play
from statemachine.delivery.half_messages import HalfMessages
from statemachine.delivery.timers import Timers

NODES = "nodes 3 segment_size=8192 checkpoint_every_ms=300 retained_bytes=8192 carried=1 delayed=1 transactions=1"
SHORT = f"{NODES} producers=1 foreign=1 window=1 think_s=0.05\nlead 1\nload 1\ndemand 4\n"
"""Little beside what waits."""
LONG = f"{NODES}\nlead 1\nload 2\ndemand 6\n"


def found(script: str = SHORT + "settle\n") -> list[str]:
    return [violation.checker for violation in play(script).violations]


def counted(patch: pytest.MonkeyPatch, kind: Any) -> list[int]:
    """The names of the rows that any node moved."""
    names: list[int] = []
    carry = kind.carry

    def noted(rows: Any, stage: Any, name: int, items: bytes) -> None:
        names.append(name)
        carry(rows, stage, name, items)

    patch.setattr(kind, "carry", noted)
    return names


@pytest.mark.ci
@pytest.mark.parametrize("script", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"])
def test_what_waits_is_carried_and_ends_once_across_a_killed_leader(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, halves = counted(monkeypatch, Timers), counted(monkeypatch, HalfMessages)
    assert found(script + "kill 1\nwait 3\nstart 1\nsettle\n") == []
    assert len(timers) > 3 * len(set(timers)), "some of them more than once"
    assert halves


def test_some_seeds_have_such_a_log() -> None:
    drawn = [draw(seed) for seed in range(60)]
    assert {one.carried for one in drawn} == {0, 1}
    assert all(one.delayed and one.retained_bytes for one in drawn if one.carried)
