"""How blatant a bug is: who fires in a run of 1,000 operations without a fault, or with one crash of the leader.

    python -m jepsen_like.seeded_bugs.calm ROOT     inside a copy: one JSON line
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import raftlog
from jepsen_like.core_sim.calm import run_calm
from jepsen_like.seeded_bugs.catalogue import Bug, make_copy

ENGINES = ("core",)
"""Engines that have such a run."""
CALM_MAX = 15
"""Bugs that may die in it: the others have to be looked for."""
_TIMEOUT_S = 300
_CRASHES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, AssertionError)


class CalmRow(NamedTuple):
    """Who fired, None: nobody. Any checker counts here, and so does a crash of the mutated code."""

    name: str
    fault_free: str | None
    single_crash: str | None

    @property
    def dies(self) -> bool:
        """Found without looking for it."""
        return self.fault_free is not None or self.single_crash is not None


def calm_row(bug: Bug) -> CalmRow:
    """Both runs in a fresh copy with `bug` in it; a copy that hangs or cannot run dies of "crash"."""
    with tempfile.TemporaryDirectory(prefix="raftmq-calm-") as name:
        make_copy(Path(name), bug)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "jepsen_like.seeded_bugs.calm", name], cwd=name,
                env=os.environ | {"PYTHONPATH": name}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return CalmRow(bug.id, "crash", "crash")
    return CalmRow(bug.id, *json.loads(done.stdout.splitlines()[-1]))


def calm_rows(bugs: Sequence[Bug], jobs: int) -> Iterator[CalmRow]:
    """All bugs whose engine has such a run, `jobs` at a time, in the order given."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(calm_row, [bug for bug in bugs if bug.engine in ENGINES])


def _fired(*, crash: bool) -> str | None:
    try:
        violation = run_calm(0, crash=crash)
    except _CRASHES:
        return "crash"
    return None if violation is None else violation.checker


def main(root: str) -> int:
    """Prints who fired; exit code 3 if the packages are not those under `root`."""
    if not Path(raftlog.__file__).resolve().is_relative_to(Path(root).resolve()):
        sys.stderr.write(f"raftlog comes from {raftlog.__file__}, not from the copy {root}\n")
        return 3
    sys.stdout.write(json.dumps([_fired(crash=False), _fired(crash=True)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
