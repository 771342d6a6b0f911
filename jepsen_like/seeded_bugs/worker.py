"""Runs inside a copy of the packages: plays a bug's schedule, then random seeds; one JSON line of findings.

    python -m jepsen_like.seeded_bugs.worker ROOT '{"schedule": ..., "first_seed": 0, "seeds": 200, ...}'
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import raftlog
from jepsen_like.core_sim.run import run_seed
from jepsen_like.core_sim.stage import Stage
from jepsen_like.core_sim.violation import Violation

_CRASHES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, AssertionError)
"""What mutated code may raise besides violations: noted as "crash", which catches nothing."""


def play(schedule: str) -> dict[str, Any]:
    """The checker that fires in the schedule (None: nobody), and what it says."""
    started = time.monotonic()
    checker, detail = None, ""
    try:
        Stage().play(schedule)
    except Violation as violation:
        checker, detail = violation.checker, violation.detail
    except _CRASHES as error:
        checker, detail = "crash", repr(error)
    return {"checker": checker, "detail": detail, "seconds": time.monotonic() - started}


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Random seeds until enough kills, or all; what fired where. `named`: the checkers that count as caught."""
    named = set(request["checkers"])
    kills: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    first_kill_seconds = None
    started = time.monotonic()
    seed = request["first_seed"]
    end = seed + request["seeds"]
    while seed < end and len(kills) < request["kills_enough"]:
        try:
            checker: str | None = run_seed(seed, black_box=request["black_box"]).checker
        except _CRASHES as error:
            checker = f"crash: {error!r}"
        if checker is not None and (checker in named or request["black_box"]):
            kills.append((seed, checker))
            first_kill_seconds = first_kill_seconds or time.monotonic() - started
        elif checker is not None:
            others.append((seed, checker))
        seed += 1
    return {
        "seeds": seed - request["first_seed"], "kills": kills, "others": others[:5], "other_count": len(others),
        "first_kill_seconds": first_kill_seconds, "seconds": time.monotonic() - started,
    }  # fmt: skip


def main(root: str, request: dict[str, Any]) -> int:
    """Prints the findings; exit code 3 if the packages are not those under `root`."""
    if not Path(raftlog.__file__).resolve().is_relative_to(Path(root).resolve()):
        sys.stderr.write(f"raftlog comes from {raftlog.__file__}, not from the copy {root}\n")
        return 3
    found = {"schedule": play(request["schedule"])} if request["schedule"] else {}
    found["search"] = search(request) if request["seeds"] else {}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
