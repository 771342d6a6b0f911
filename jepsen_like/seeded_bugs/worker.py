"""Worker process that tests one copy of the packages with a seeded bug: it plays scripted schedules, then random seeds,
and prints which checkers reported something as one JSON line.

python -m jepsen_like.seeded_bugs.worker ROOT '{"engine": "core", "schedules": [...], "first_seed": 0, ...}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from jepsen_like.seeded_bugs.catalogue import require_copy
from jepsen_like.seeded_bugs.engines import ENGINES, Engine, Fired

_CRASHES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, AssertionError)
"""Errors that mutated code may raise besides violations. They are recorded as "crash", which never counts as caught."""


def play(engine: Engine, schedule: str, named: list[str]) -> dict[str, Any]:
    """Plays a schedule; returns the checker that reports (None if none does), its description, the checker that reports
    in a second run in which only checkers of what clients see may report, and the seconds that both took.
    """
    started = time.monotonic()
    fired = _played(engine, schedule, named, black_box=False)
    clients = _played(engine, schedule, named, black_box=True)
    return {
        "checker": fired.checker,
        "detail": fired.detail,
        "clients": clients.checker,
        "seconds": time.monotonic() - started,
    }


def _played(engine: Engine, schedule: str, named: list[str], *, black_box: bool) -> Fired:
    try:
        return engine.play(schedule, named, black_box=black_box)
    except _CRASHES as error:
        return Fired(None if black_box else "crash", repr(error))


def search(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Runs random seeds until there are enough kills, or all. Returns the numbers, times and (seed, checker) pairs that
    it found. A seed kills the bug if one of `checkers` in the request reports; with `black_box`, if any checker does. A
    crash of the changed code kills nothing.
    """
    named = set(request["checkers"])
    kills: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    first_kill_seconds = None
    started = time.monotonic()
    seed = request["first_seed"]
    end = seed + request["seeds"]
    while seed < end and len(kills) < request["kills_enough"]:
        try:
            checker = engine.seed(seed, named, black_box=request["black_box"]).checker
        except _CRASHES as error:
            others.append((seed, f"crash: {error!r}"))
            checker = None
        if checker is not None and (checker in named or request["black_box"]):
            kills.append((seed, checker))
            first_kill_seconds = first_kill_seconds or time.monotonic() - started
        elif checker is not None:
            others.append((seed, checker))
        seed += 1
    return {
        "seeds": seed - request["first_seed"],
        "kills": kills,
        "others": others[:5],
        "other_count": len(others),
        "first_kill_seconds": first_kill_seconds,
        "seconds": time.monotonic() - started,
    }


def main(root: str, request: dict[str, Any]) -> int:
    """Prints the findings as one JSON line; returns exit code 3 if the packages are not those under `root`."""
    require_copy(root)
    engine = ENGINES[request["engine"]]
    found = {
        "schedules": [play(engine, schedule, request["checkers"]) for schedule in request["schedules"]],
        "search": search(engine, request) if request["seeds"] else None,
        "cpu_seconds": time.process_time(),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
