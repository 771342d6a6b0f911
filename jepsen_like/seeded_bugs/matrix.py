"""The kill matrix: runs each bug in its own copy of the code, on its schedule and on random seeds, and the unmutated
code on the same ones.

A bug is caught when one of the checkers that it names reports a violation; a crash, a timeout or another checker does
not count.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.seeded_bugs.catalogue import Bug, BugError, make_copy, run_inside

KILLS_ENOUGH = {"core": 20, "full": 10}
"""Engine -> number of kills (seeds that catch the bug) after which a bug's kill rate is known well enough."""
_TIMEOUT_S = 900
_CHUNKS = 4
"""Number of processes among which the seeds of the unmutated code are divided."""


class MatrixRow(NamedTuple):
    """The results of one bug in the matrix."""

    name: str
    title: str
    engine: str
    caught: bool = False
    """True if the schedule or a seed caught the bug."""
    checker: str | None = None
    """Checker that reported in the schedule, otherwise in the first killing seed; None if none did."""
    scheduled: bool = False
    """True if the schedule kills the bug."""
    clients: str | None = None
    """Checker that reports in the schedule when only what clients see may report; None if none does."""
    seed: int | None = None
    """First killing seed of the random search; None if none killed."""
    seeds: int = 0
    kills: int = 0
    kills_per_1000: float = 0.0
    """Kills per 1,000 of the random seeds tried."""
    seconds: float = 0.0
    """Time in seconds until the first kill by a seed; if no seed killed, the time of the whole row."""
    cpu_seconds: float = 0.0
    """CPU time of the whole row in seconds."""
    note: str = ""
    """The schedule's report if it did not catch the bug, and the other checkers that reported in the search; or the
    reason why the worker failed.
    """

    def as_dict(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        return self._asdict()


class Clean(NamedTuple):
    """The results of the unmutated code on the schedules and seeds of the matrix."""

    alarms: list[str]
    """Checkers that reported violations of the unmutated code: false alarms."""
    cpu_seconds: float


def run_in_copy(bug: Bug | None, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the worker in a fresh copy with `bug` in it, and returns its findings."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bug-") as folder:
        root = Path(folder)
        try:
            make_copy(root, bug)
        except BugError as error:  # if a changed kernel cannot be compiled here, only this bug's row fails
            return {"failed": str(error)}
        return worker(root, request)


def worker(root: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the worker process against the packages under `root`, and returns its findings."""
    try:
        done = run_inside(root, "worker", str(root), json.dumps(request), timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within {_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"failed": (done.stderr or done.stdout).strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def request_for(
    engine: str,
    schedules: Sequence[str],
    checkers: Sequence[str],
    seeds: int,
    first_seed: int,
    *,
    black_box: bool = False,
) -> dict[str, Any]:
    """Returns the request that a worker process carries out."""
    return {
        "engine": engine,
        "schedules": list(schedules),
        "checkers": list(checkers),
        "first_seed": first_seed,
        "seeds": seeds,
        "kills_enough": KILLS_ENOUGH[engine],
        "black_box": black_box,
    }


def row(bug: Bug, seeds: int, *, first_seed: int = 0, black_box: bool = False) -> MatrixRow:
    """Runs one bug on its schedule and on `seeds` random seeds."""
    started = time.monotonic()
    request = request_for(bug.engine, [bug.schedule], bug.checkers, seeds, first_seed, black_box=black_box)
    found = run_in_copy(bug, request)
    if "failed" in found:
        failed = f"the worker failed: {found['failed']}"
        return MatrixRow(bug.id, bug.title, bug.engine, seconds=time.monotonic() - started, note=failed)
    (played,) = found["schedules"]
    search = found["search"] or {"seeds": 0, "kills": [], "others": [], "first_kill_seconds": None}
    kills = search["kills"]
    scheduled = played["checker"] in bug.checkers
    checker = played["checker"] if scheduled else (kills[0][1] if kills else None)
    note = "" if scheduled else f"schedule: {played['checker']}: {played['detail']}"
    if search["others"]:
        note += f" also: {sorted({name for _, name in search['others']})}"
    return MatrixRow(
        bug.id,
        bug.title,
        bug.engine,
        scheduled or bool(kills),
        checker,
        scheduled,
        played["clients"],
        kills[0][0] if kills else None,
        search["seeds"],
        len(kills),
        1000 * len(kills) / search["seeds"] if search["seeds"] else 0.0,
        search["first_kill_seconds"] or time.monotonic() - started,
        found["cpu_seconds"],
        note,
    )


def rows(
    bugs: Sequence[Bug], seeds: Mapping[str, int], *, jobs: int, first_seed: int = 0, black_box: bool = False
) -> Iterator[MatrixRow]:
    """Yields the rows of all bugs, in the order given; `jobs` run at a time. `seeds`: engine -> number of seeds."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda bug: row(bug, seeds[bug.engine], first_seed=first_seed, black_box=black_box), bugs)


def clean(bugs: Sequence[Bug], seeds: Mapping[str, int], *, jobs: int, first_seed: int = 0) -> Clean:
    """Runs the unmutated code on the same schedules and seeds, with the engines that these bugs name."""
    alarms: list[str] = []
    cpu_seconds = 0.0
    with tempfile.TemporaryDirectory(prefix="raftmq-clean-") as folder, ThreadPoolExecutor(jobs) as pool:
        make_copy(Path(folder), None)
        names, requests = zip(*_clean_work(bugs, seeds, first_seed), strict=True)
        for ids, found in zip(names, pool.map(lambda request: worker(Path(folder), request), requests), strict=True):
            cpu_seconds += found.get("cpu_seconds", 0.0)
            alarms += _alarms(ids, found)
    return Clean(alarms, cpu_seconds)


def _clean_work(
    bugs: Sequence[Bug], seeds: Mapping[str, int], first_seed: int
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yields (ids of the schedules, request) for each engine: first one with all schedules, then those with seeds."""
    for engine in dict.fromkeys(bug.engine for bug in bugs):
        these = [bug for bug in bugs if bug.engine == engine]
        yield [bug.id for bug in these], request_for(engine, [bug.schedule for bug in these], [], 0, first_seed)
        step = -(-seeds[engine] // _CHUNKS)
        for start in range(0, seeds[engine], max(1, step)):
            count = min(step, seeds[engine] - start)
            yield [], request_for(engine, [], [], count, first_seed + start)


def _alarms(names: Sequence[str], found: dict[str, Any]) -> list[str]:
    if "failed" in found:
        return [f"the worker failed: {found['failed']}"]
    fired = [
        f"schedule of {name}: {played['checker'] or played['clients']}: {played['detail']}"
        for name, played in zip(names, found["schedules"], strict=True)
        if (played["checker"] or played["clients"]) is not None
    ]
    return fired + [f"seed {seed}: {checker}" for seed, checker in (found["search"] or {}).get("others", [])]
