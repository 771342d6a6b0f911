"""`make mutants`: draws mutants from a seed, and has Cosmic Ray try each in a clone. A run continues where the last one
ended."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from cosmic_ray.work_db import use_db

from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT
from jepsen_like.seeded_bugs.unit_tests import requested_of

CONFIG = Path(__file__).with_name("cosmic-ray.toml")
HARMLESS = Path(__file__).with_name("harmless.toml")
TYPES = (
    "-m",
    "mypy",
    "--no-error-summary",
    "-p",
    "raftmq_wire",
    "-p",
    "raftlog",
    "-p",
    "statemachine",
    "-p",
    "cluster",
)
SEARCH = {"schedules": [], "first_seed": 900_000, "kills_enough": 1, "checkers": [], "black_box": False}
ALSO = {"cluster/peer/": "tests/cluster/peer", "cluster/replication/": "tests/cluster/replication"}
"""Mutated files -> tests that are run in addition to those of a planted bug of the same layer."""
LAYERS = ("raftlog/core/state/quorum.py", "raftlog/frame.py", "statemachine/rows/kv.py", "cluster/peer/wire.py")
MEMORY_MAX = 6 << 30  # address space of a process, bytes: an endless loop may fill a list


def draw(items: Iterable[Any], seed: int, count: int) -> list[Any]:
    """Draws `count` places in an order that depends on the seed, each with one of its changes.

    It draws places instead of mutants, because a comparison has nine changes and would be drawn nine times as often.
    """
    places: dict[tuple[str, tuple[int, int]], list[Any]] = defaultdict(list)
    for item in sorted(items, key=lambda item: str(item.mutations[0])):
        places[str(item.mutations[0].module_path), item.mutations[0].start_pos].append(item)
    chance = random.Random(seed)
    return [chance.choice(places[place]) for place in chance.sample(sorted(places), min(count, len(places)))]


def requests_of(file: str, root: Path) -> list[tuple[str, dict[str, Any]]]:
    """Returns the judges of a mutant in `file`, in their order: modules of `jepsen_like.seeded_bugs`, each with its
    request."""
    tests = requested_of([file], root, searches=True)
    own = [folder for source, folder in ALSO.items() if file.startswith(source)]
    # A thread ends the process: a node may take an exception for its own failure. No test takes more than 10 s.
    limits = {"failures_max": 1, "test_timeout_s": 60, "timeout_method": "thread"}
    core = [("worker", SEARCH | {"engine": "core", "seeds": 150})] if file.startswith("raftlog/") else []
    full = ("worker", SEARCH | {"engine": "full", "seeds": 20})
    return [("unit_tests", tests | {"paths": own + tests["paths"]} | limits), *core, full]


def verdict(file: str, root: Path) -> str:
    """Judges the mutant in `file`; returns "not counted", "timed out" or "killed", with the reason; "" if it
    survives."""
    module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    for what, arguments in (("import", ("-c", f"import {module}")), ("types", TYPES)):
        done = _run(*arguments)
        if done.returncode:
            return f"not counted: {what}: {((done.stdout + done.stderr).splitlines() or ['?'])[-1]}"
    for judge, request in requests_of(file, root):
        done = _run("-m", f"jepsen_like.seeded_bugs.{judge}", str(root), json.dumps(request))
        if "+ Timeout +" in done.stdout:  # pytest prints this before it ends the process
            return f"timeout: {judge}"
        last = (done.stdout.splitlines() or [""])[-1]
        found: dict[str, Any] = json.loads(last) if last[:1] == "{" else {"note": f"crash: {done.stderr[-99:]!r}"}
        if noticed := found.get("failed") or found.get("note") or found.get("search", {}).get("others"):
            return f"killed: {judge}: {request.get('engine', '')} {noticed}"
    return ""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def judge_here() -> None:
    """Runs as the test command in the clone; exit code 0 if the mutant survives. The last line of its output is the
    verdict."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    changed = subprocess.run(["git", "diff", "--name-only"], capture_output=True, text=True, check=True).stdout.split()
    for path in changed:  # mypy believes size and time: without this it tells of a mutant that is gone
        os.utime(path, (time.time() - 1e6, time.time() - 1e6))
    said = verdict(changed[0], Path.cwd()) if changed else "not counted: no change"
    click.echo(said or "survived")
    raise SystemExit(1 if said else 0)


def summary(judged: Iterable[tuple[Any, Any]], left: int) -> tuple[list[str], bool]:
    """Returns lines for people (every mutant that survived or timed out, then the figures), and True if enough were
    killed."""
    known = {(row["file"], tuple(row["change"])): row["why"] for row in tomllib.loads(HARMLESS.read_text())["mutant"]}
    lines, counts = [], Counter[str]()
    for item, result in judged:
        said = ((result.output or "").strip().splitlines() or [result.worker_outcome.value])[-1]
        kind = next((word for word in ("survived", "killed", "timeout") if said.startswith(word)), "not counted")
        counts[kind] += 1
        if kind in ("survived", "timeout"):
            file = str(item.mutations[0].module_path)
            diff = [
                line for line in result.diff.splitlines() if line[:1] in ("-", "+") and line[1:3] not in ("--", "++")
            ]
            change = tuple(f"{line[0]} {line[1:].strip()}" for line in diff)
            lines += [f"{said}: {file}:{item.mutations[0].start_pos[0]} {known.get((file, change), '')}", *change]
    figures = ", ".join(f"{counts[kind]} {kind}" for kind in ("killed", "survived", "timeout", "not counted"))
    return [*lines, f"{figures}, {left} left"], counts["killed"] >= 0.85 * (counts["killed"] + counts["survived"])


@click.command()
@click.option("--seed", default="6a2b3fae", show_default=True, help="Hexadecimal; the first digits of a commit.")
@click.option("--count", default=200, show_default=True, type=click.IntRange(min=1), help="Mutants that are drawn.")
@click.option("--judge", is_flag=True, help="Judge the mutant in this folder: Cosmic Ray's test command.")
def main(seed: str, count: int, *, judge: bool) -> None:
    """Draw mutants of the last commit, judge each by unit tests and simulator, list the survivors.

    What was drawn and judged stays in build/mutants/SEED-COUNT, and the next run goes on there. Remove the folder to
    begin anew. Exit code: 0 if 85 % of those that count were killed, 1 if not.
    """
    if judge:
        judge_here()
    if set(seed) - set("0123456789abcdef"):
        raise click.BadParameter("not a hexadecimal number", param_hint="--seed")
    folder = SOURCE_ROOT / "build" / "mutants" / f"{seed}-{count}"
    clone, session, made = folder / "clone", folder / "session.sqlite", folder / "made.sqlite"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # The native kernel would run in place of what is mutated; its tests are skipped only where there is no compiler.
    environment = os.environ | {"PYTHONPATH": str(clone), "PATH": path, "CC": "no-such-compiler"}
    if not clone.exists():
        subprocess.run(["git", "clone", "-q", "--shared", str(SOURCE_ROOT), str(clone)], check=True)
    subprocess.run(["git", "checkout", "-q", "."], cwd=clone, check=True)  # a run that was killed leaves its mutant
    if not session.exists():
        tests = dict.fromkeys(path for file in LAYERS for path in requests_of(file, clone)[0][1]["paths"])
        unmutated = ("-m", "pytest", "-q", "-x", "-m", "not slow and not live", *tests)  # else all would be killed
        init = ("cosmic-ray", "init", "--force", str(CONFIG), str(made))
        for command in ((sys.executable, *TYPES), (sys.executable, *unmutated), init):
            subprocess.run(command, cwd=clone, env=environment, check=True)
        with use_db(str(made)) as database:
            drawn = draw(list(database.work_items), int(seed, 16), count)
            database.clear()
            database.add_work_items(drawn)
        made.rename(session)
    subprocess.run(["cosmic-ray", "exec", str(CONFIG), str(session)], cwd=clone, env=environment, check=True)
    with use_db(str(session)) as database:
        lines, enough = summary(database.completed_work_items, len(list(database.pending_work_items)))
    click.echo("\n".join(lines))
    raise SystemExit(0 if enough else 1)


if __name__ == "__main__":
    main()
