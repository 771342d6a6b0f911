"""Measures how obvious a bug is: which checker reports it in a calm run, of 1,000 operations without a fault or with
one crash of the leader.

python -m jepsen_like.seeded_bugs.calm_verdicts ROOT ENGINE     inside a copy: one JSON line
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jepsen_like.seeded_bugs.catalogue import Bug, make_copy, require_copy, run_inside

OPERATIONS = 1_000
CALM_MAX = 15
"""Most bugs that a calm run may find: the others must need a search."""
_TIMEOUT_S = 300
_KILLS_THE_LEADER = 1
"""Seed of a fault for which the nemesis picks the leader."""
_NO_OPERATOR = 1
"""A seed whose operator changes no members."""
_CRASHES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, AssertionError)


class CalmRow(NamedTuple):
    """The checker that reported in each of a bug's two calm runs; None if none did. Any checker counts here, and so
    does a crash of the mutated code."""

    name: str
    fault_free: str | None
    single_crash: str | None

    @property
    def dies(self) -> bool:
        """True if a calm run finds the bug."""
        return self.fault_free is not None or self.single_crash is not None


def calm_row(bug: Bug) -> CalmRow:
    """Does both calm runs in a fresh copy with `bug` in it. A copy that hangs or cannot run counts as "crash"."""
    with tempfile.TemporaryDirectory(prefix="raftmq-calm-") as name:
        make_copy(Path(name), bug)
        try:
            done = run_inside(Path(name), "calm_verdicts", name, bug.engine, timeout_s=_TIMEOUT_S)
            done.check_returncode()
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return CalmRow(bug.id, "crash", "crash")
    return CalmRow(bug.id, *json.loads(done.stdout.splitlines()[-1]))


def calm_rows(bugs: Sequence[Bug], jobs: int) -> Iterator[CalmRow]:
    """Yields the rows of all bugs, in the order given; `jobs` run at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(calm_row, bugs)


# -- inside the copy


def fired(engine: str, *, crash: bool) -> str | None:
    """Returns the checker that reports in a calm run of the packages that are imported; None if none does."""
    run = _RUNS[engine]
    try:
        return run(crash=crash)
    except _CRASHES:
        return "crash"


def _core(*, crash: bool) -> str | None:
    from jepsen_like.core_sim.calm_run import run_calm

    violation = run_calm(0, OPERATIONS, crash=crash)
    return None if violation is None else violation.checker


def _full(*, crash: bool) -> str | None:
    from jepsen_like.sim.faults.fault_plan import Fault
    from jepsen_like.sim.options import draw
    from jepsen_like.sim.world import World

    killed = Fault(1, 0.5, "kill", 1.0, _KILLS_THE_LEADER)
    options = draw(_NO_OPERATOR)._replace(
        nodes=3,
        tick_ms=25,
        election_ticks=10,
        latency_s=(0.0001, 0.0002),
        split=0.0,
        disk_s=(0.0003, 0.0006),
        apply_s=(0.0001, 0.0005),
        segment_size=1 << 20,
        checkpoint_every_ms=2000,
        retained_bytes=0,
        retained_ms=0,
        producers=3,
        window=6,
        foreign=1,
        think_s=0.01,
        acked_min=OPERATIONS,
        fault_phase_s=1.0,
        event_budget=1_000_000,
    )
    verdict = World(options, (killed,) if crash else ()).run()
    if verdict.violations:
        return verdict.violations[0].checker
    return None if verdict.acked >= OPERATIONS else "too few operations"


_RUNS: dict[str, Callable[..., str | None]] = {"core": _core, "full": _full}
"""Engine that a bug names -> function that does a calm run with it."""


def main(root: str, engine: str) -> int:
    """Prints the checkers that reported; returns exit code 3 if the packages are not those under `root`."""
    require_copy(root)
    sys.stdout.write(json.dumps([fired(engine, crash=False), fired(engine, crash=True)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
