"""A calm run, like a plain load test: default settings, no fault or one crash of the leader, every monitor on.

It finds only blatant bugs. The seeded bugs are measured against it to show that most of them need more than that.
"""

from __future__ import annotations

from jepsen_like.core_sim import health_checks
from jepsen_like.core_sim.run_options import TICK_US, Knobs
from jepsen_like.core_sim.violation import Violation
from jepsen_like.core_sim.world import World

_ELECTION_TICKS = 10
_DOWN_TICKS = 3 * _ELECTION_TICKS
_TICKS_MAX = 4_000

KNOBS = Knobs(
    nodes=3,
    raft={"group_id": 1, "election_ticks": _ELECTION_TICKS},
    fifo=True,
    link_us=200,
    jitter_us=100,
    disk_us=500,
    ack_last_only=False,
    clients=4,
    burst=5,
    reads=0.1,
    payload=100,
    timeout_us=15 * TICK_US,
    think_us=2 * TICK_US,
    fault_gap_us=TICK_US,
    faults=(),
    triggers=(),
    play=None,
    acked_goal=0,
)


def run_calm(seed: int, operations: int, *, crash: bool) -> Violation | None:
    """Runs `operations` without a fault, or with one crash of the leader half-way; returns the violation, None if there
    is none."""
    world = World(seed, KNOBS)
    try:
        health_checks.calm_start(world)
        if crash:
            _write(world, operations // 2)
            leader = world.leader()
            if leader is not None:
                world.crash(leader)
                world.at(_DOWN_TICKS * TICK_US, world.start, leader)
        _write(world, operations)
        world.writing = False
        world.run_until(lambda: len(world.up()) == len(world.machines), world.now + _DOWN_TICKS * TICK_US)
        health_checks.final(world)
    except Violation as violation:
        return violation
    return None


def _write(world: World, goal: int) -> None:
    acked = world.history.acked
    if not world.run_until(lambda: len(acked) >= goal, world.now + _TICKS_MAX * TICK_US):
        raise Violation("no-progress", f"{len(acked)} of {goal} acknowledged in {_TICKS_MAX} ticks")
