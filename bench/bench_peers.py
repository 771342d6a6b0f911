"""`make bench-peers`: compares RaftMQ with other systems on this machine, in alternating rounds.

Prints tables; with JSON=1 in the environment only the document. Other settings: SYSTEMS (names, separated by commas),
ROUNDS (5), SECONDS_PER_ROW (3), OPEN_SECONDS (10, for each share of the open loop in a round; 0 for none), WARM_S
(seconds of load before the first round, instead of each system's own time),
FAILOVERS (3; 0 for none), OUT (a folder for plots and the document).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench_disk_floor import Floor
from bench.peers import all_systems, cut, failover, fetch, open_loop, plots, report, rounds
from bench.peers.processes import ended_at_exit
from bench.peers.rounds import Field
from bench.peers.system import HERE, Unavailable
from bench.tables import console

DISK_BYTES = 40 << 30


def chosen() -> list[str]:
    """Returns the names of the systems in the environment, or those of all_systems.DEFAULT."""
    names = [name for name in os.environ.get("SYSTEMS", "").split(",") if name] or list(all_systems.DEFAULT)
    if unknown := [name for name in names if name not in all_systems.ALL]:
        raise SystemExit(f"SYSTEMS: {', '.join(unknown)} is none of {', '.join(all_systems.ALL)}")
    return names


def get(names: list[str], tell: Callable[[str], None]) -> tuple[list[Field], dict[str, str]]:
    """Returns (the systems that could be fetched, name of each other system -> reason why it could not)."""
    fields, missing = [], {}
    for name in names:
        tell(f"getting {name}")
        try:
            system = all_systems.CUTTABLE[name](HERE) if name in all_systems.CUTTABLE else all_systems.LOCAL[name]()
            fields.append(Field(system, float(os.environ.get("WARM_S") or 0)))
        except (Unavailable, OSError) as error:
            missing[name] = str(error)
            tell(f"{name}: {error}")
    return fields, missing


def start(fields: list[Field], place: Path, tell: Callable[[str], None]) -> None:
    """Starts and warms up one system after the other; each is stopped until its first turn."""
    for field in fields:
        tell(f"starting {field.name} and warming it for {field.warm_s:.0f} s")
        rounds.attempt(field, partial(field.start, place / field.name), tell)


def fail_over(fields: list[Field], times: int, place: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Runs the last part of the benchmark, the failovers. It first stops the systems that have no part in them. A
    system that fails gets a row that says so.

    Network cuts come last, when no system runs any more: each system is started again below `place`, in namespaces.
    """
    found: list[dict[str, Any]] = []
    for field in fields:
        if field.name not in all_systems.FAILOVER or not times:
            field.system.stop()
    for field in fields:
        if field.name in all_systems.FAILOVER and times and not field.failed:
            if rounds.attempt(field, field.resume, tell):
                found += failover.repeated(field.system, times, failover.of_processes(field.system), tell)
            field.system.stop()
    names = [field.name for field in fields if field.name in all_systems.FAILOVER and times and not field.failed]
    found += [cut.measured(name, times, place / f"{name}-cut", tell) for name in names]
    return sorted(found, key=lambda row: all_systems.FAILOVER.index(row["system"]))


def main() -> None:
    """Fetches and starts the systems, measures them, ends them, and reports."""
    began = time.monotonic()
    names, quiet = chosen(), bool(os.environ.get("JSON"))
    number, seconds = int(os.environ.get("ROUNDS") or 5), float(os.environ.get("SECONDS_PER_ROW") or 3)
    open_seconds, times = float(os.environ.get("OPEN_SECONDS") or 10), int(os.environ.get("FAILOVERS") or 3)
    out = Path(os.environ["OUT"]).absolute() if os.environ.get("OUT") else None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # now, so that a wrong OUT fails before the measurement

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", file=sys.stderr, flush=True)

    with fetch.folder_of_a_run() as place, ended_at_exit():
        if (free := shutil.disk_usage(place).free) < DISK_BYTES:
            tell(f"only {free >> 30} GiB are free on the disk; a whole run needs up to {DISK_BYTES >> 30}")
        fields, missing = get(names, tell)
        floor = Floor(place)
        start(fields, place, tell)
        rounds.play(fields, number, seconds, floor, tell)
        arriving = open_loop.rows(open_loop.play(fields, number if open_seconds else 0, open_seconds, tell))
        found = fail_over(fields, times, place, tell)
        settings = {
            "rounds": number,
            "seconds_per_row": seconds,
            "open_seconds": open_seconds,
            "load_average": os.getloadavg(),
        }
        result = report.document(fields, missing, found, floor.medians(), settings, arriving)
    if quiet:
        print(json.dumps(result), flush=True)
    else:
        report.show(result, console())
    if out is not None:
        (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        for file in plots.draw(result, out):
            tell(f"drew {file}")


if __name__ == "__main__":
    main()
