"""The simulator's check of the meter: a callback of a node, or a drain of a lane, with too much work is a violation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from cluster.members.changes import DiskLag
from cluster.replication.apply_lane import ApplyLane
from cluster.runtime import environment
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.turn_bounds import (
    DRAIN_BOUND,
    SEND_BYTES,
    TURN_BOUND,
    drain_bound,
    name_of,
    turn_bound,
    unmetered,
)
from jepsen_like.sim.options import draw
from jepsen_like.sim.world import World
from raftlog.work import METER, charge
from tests.support.sim_cluster import SimCluster

SEED = 31


def violations() -> list[tuple[str, str]]:
    """Returns the findings of a run without faults."""
    options = draw(SEED)._replace(fault_phase_s=0.5, acked_min=0, hostile=0)
    return [(violation.checker, violation.what) for violation in World(options, ()).run().violations]


def test_a_callback_above_the_bound_is_a_violation_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DiskLag.tick

    def works(chore: DiskLag, now_ms: int) -> None:
        charge(TURN_BOUND + 1)
        real(chore, now_ms)

    monkeypatch.setattr(DiskLag, "tick", works)
    found = violations()
    assert {checker for checker, _ in found} == {"work"}
    assert all(what.endswith(f"at most {TURN_BOUND}: Chores._on_timer") for _, what in found)


def test_a_drain_above_the_bound_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ApplyLane.drain

    def works(lane: ApplyLane, batch: Sequence[Any]) -> Any:
        charge(drain_bound("apply") + 1)
        return real(lane, batch)

    monkeypatch.setattr(ApplyLane, "drain", works)
    found = violations()
    assert {checker for checker, _ in found} == {"work"}
    assert any("lane apply, 1 jobs" in what for _, what in found)


def test_only_what_a_callback_charges_itself_counts() -> None:
    loop = SimLoop(100)
    loop.turn_bound = 10
    long: list[tuple[str, int]] = []
    loop.on_long_turn = lambda process, callback, units: long.append((name_of(callback), units))
    process = Process("node1", "10.0.0.1")

    def short() -> None:
        charge(10)

    def other_thread() -> None:
        loop.run_in_executor(None, charge, 100)

    async def task() -> None:
        charge(11)

    for callback in (short, other_thread, short, partial(charge, 12)):
        loop.call_soon(callback, context=process.context)
    process.run(loop.create_task, task())
    loop.call_outside(1.0, loop.stop)
    loop.run_forever()
    assert long == [("charge", 12), (task.__qualname__, 11)]
    loop.bury([process])


def test_a_run_that_is_over_lets_its_tasks_end_however_much_they_do() -> None:
    loop = SimLoop(1_000)
    loop.turn_bound = 10
    loop.on_long_turn = lambda process, callback, units: loop.stop()
    process = Process("node1", "10.0.0.1")
    ended: list[str] = []

    async def task(name: str) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            charge(100)
            ended.append(name)
            raise

    for name in ("one", "two", "three"):
        process.run(loop.create_task, task(name))
    loop.call_outside(1.0, loop.stop)
    loop.run_forever()
    loop.bury([process])
    assert ended == ["one", "two", "three"]


def test_what_the_simulator_reads_is_not_counted() -> None:
    before = METER.units
    unmetered(charge)(100)
    assert METER.units == before


def test_a_name_that_is_not_listed_has_the_general_bound() -> None:
    assert turn_bound("anything") == TURN_BOUND
    assert drain_bound("anything") == DRAIN_BOUND


def test_a_simulated_node_sends_less_in_a_turn_than_a_real_one() -> None:
    with SimCluster(5) as sim:
        assert {node.raw.raft.config.turn_bytes_max for node in sim.nodes.values()} == {SEND_BYTES}
    assert SEND_BYTES < environment.SEND_BYTES
