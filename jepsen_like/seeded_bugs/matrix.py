"""The kill matrix: each bug in a copy of its own, on its schedule and on random seeds; beside it the unmutated code.

A bug is caught when one of the checkers it names fires; a crash, a timeout or another checker does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.seeded_bugs.catalogue import Bug, make_copy

KILLS_ENOUGH = 20
"""After so many kills the rate is known well enough."""
_TIMEOUT_S = 300


class Row(NamedTuple):
    """One bug in the matrix."""

    name: str
    title: str
    engine: str
    caught: bool
    """By the schedule or by a seed."""
    checker: str | None
    """Who fired in the schedule, else in the first killing seed."""
    scheduled: bool
    """The schedule kills it."""
    seed: int | None
    """First killing seed of the random search."""
    seeds: int
    kills: int
    kills_per_1000: float
    """Of the random seeds tried."""
    seconds: float
    """Until the first kill by a seed, else of everything."""
    note: str
    """Why it is not caught, or what else fired."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()


def run_in_copy(bug: Bug | None, request: dict[str, Any]) -> dict[str, Any]:
    """The worker's findings in a fresh copy with `bug` in it."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bug-") as folder:
        root = Path(folder)
        make_copy(root, bug)
        return worker(root, request)


def worker(root: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the worker against the packages under `root`."""
    try:
        done = _worker_process(root, request)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"failed": (done.stderr or done.stdout).strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _worker_process(root: Path, request: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jepsen_like.seeded_bugs.worker", str(root), json.dumps(request)],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=_TIMEOUT_S,
        check=False,
    )  # fmt: skip


def request_for(bug: Bug | None, seeds: int, *, first_seed: int = 0, black_box: bool = False) -> dict[str, Any]:
    """What the worker is asked to do."""
    return {
        "schedule": bug.schedule if bug else "", "checkers": list(bug.checkers) if bug else [],
        "first_seed": first_seed, "seeds": seeds, "kills_enough": KILLS_ENOUGH, "black_box": black_box,
    }  # fmt: skip


def row(bug: Bug, seeds: int, *, first_seed: int = 0, black_box: bool = False) -> Row:
    """Runs one bug."""
    started = time.monotonic()
    found = run_in_copy(bug, request_for(bug, seeds, first_seed=first_seed, black_box=black_box))
    if "failed" in found:
        return Row(
            bug.id, bug.title, bug.engine, False, None, False, None, 0, 0, 0.0, time.monotonic() - started,
            f"the worker failed: {found['failed']}",
        )  # fmt: skip
    played = found["schedule"]
    search = found["search"] or {"seeds": 0, "kills": [], "others": [], "first_kill_seconds": None}
    kills = search["kills"]
    scheduled = played["checker"] in bug.checkers
    checker = played["checker"] if scheduled else (kills[0][1] if kills else None)
    note = "" if scheduled else f"schedule: {played['checker']}: {played['detail']}"
    if search["others"]:
        note += f" also: {sorted({name for _, name in search['others']})}"
    return Row(
        bug.id, bug.title, bug.engine, scheduled or bool(kills), checker, scheduled, kills[0][0] if kills else None,
        search["seeds"], len(kills), 1000 * len(kills) / search["seeds"] if search["seeds"] else 0.0,
        search["first_kill_seconds"] or time.monotonic() - started, note,
    )  # fmt: skip


def rows(bugs: Sequence[Bug], seeds: int, *, jobs: int, first_seed: int = 0, black_box: bool = False) -> Iterator[Row]:
    """Runs all, `jobs` at a time, in the order given."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda bug: row(bug, seeds, first_seed=first_seed, black_box=black_box), bugs)


def clean(bugs: Sequence[Bug], seeds: int, *, first_seed: int = 0) -> list[str]:
    """The unmutated code on the same schedules and seeds: what fired there (a false alarm), empty if nothing."""
    with tempfile.TemporaryDirectory(prefix="raftmq-clean-") as folder:
        root = Path(folder)
        make_copy(root, None)
        alarms = []
        for bug in bugs:
            found = worker(root, request_for(bug, 0))
            if "failed" in found or found["schedule"]["checker"] is not None:
                alarms.append(f"schedule of {bug.id}: {found}")
        found = worker(root, request_for(None, seeds, first_seed=first_seed))
        if "failed" in found:
            alarms.append(str(found))
        else:
            alarms += [f"seed {seed}: {checker}" for seed, checker in found["search"].get("others", [])]
        return alarms
