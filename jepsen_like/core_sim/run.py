"""One run from its seed to its verdict: a calm start within a message budget, faults, heal, progress, a failover
without writes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from jepsen_like.core_sim import health_checks
from jepsen_like.core_sim.churn import Churn
from jepsen_like.core_sim.faults import Faults
from jepsen_like.core_sim.run_options import TICK_US, Knobs, draw
from jepsen_like.core_sim.staged_faults import Plays
from jepsen_like.core_sim.triggered_faults import Triggers
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.core_sim.world import MID_APPEND, CoreWorld

_FAULTS_MIN = 6
_SAFETY_TICKS = 1_500
"""The most ticks with faults. Faults go on until enough operations were acknowledged and enough faults were injected.
"""


@dataclass(slots=True)
class CoreResult:
    """The result of one seed."""

    seed: int
    checker: str | None
    """The name of the checker that found a violation; None if none did."""
    detail: str
    events: int
    acked: int
    fault_kinds: int
    leader_changes: int
    trace: str
    cpu_s: float
    """Processor time in seconds; the only field that differs between runs of one seed."""
    seen: Counter[str] = field(repr=False)

    @property
    def valid(self) -> bool:
        """True if no checker found a violation."""
        return self.checker is None


def run_seed(
    seed: int, *, black_box: bool = False, lines: list[str] | None = None, knobs: Knobs | None = None
) -> CoreResult:
    """Runs one seed. `lines` receives the replay, event by event. With `black_box`, only what clients see is judged."""
    started = time.process_time()
    knobs = draw(seed) if knobs is None else knobs
    world = CoreWorld(seed, knobs, black_box=black_box, keep_trace=lines is not None)
    faults: Faults | None = None
    checker, detail = None, ""
    try:
        health_checks.calm_start(world)
        world.network.fifo = knobs.fifo
        faults = Faults(world)
        Triggers(faults)
        Plays(faults)
        Churn(faults)
        deadline = world.now + _SAFETY_TICKS * TICK_US
        goal = knobs.acked_goal
        history = world.history
        counts = world.seen
        world.run_until(
            lambda: len(history.acked) >= goal and faults.begun >= _FAULTS_MIN and counts[MID_APPEND] > 0, deadline
        )
        faults.stop()
        health_checks.progress(world, goal)
        health_checks.quiescent_failover(world)
        health_checks.settle(world)
        health_checks.rejoin(world)
        health_checks.handover(world)
        health_checks.final(world)
    except PromiseBroken as violation:
        # No client sees how many events a run takes, and virtual time is never short.
        if not (black_box and violation.checker == "event-budget"):
            checker, detail = violation.checker, violation.detail
    if lines is not None and world.lines is not None:
        lines.extend(world.lines)
    seen = world.seen
    return CoreResult(
        seed,
        checker,
        detail,
        world.events,
        len(world.history.acked),
        len(faults.kinds) if faults else 0,
        max(len(world.leader_terms) - 1, 0),
        world.trace_hash(),
        time.process_time() - started,
        seen,
    )
