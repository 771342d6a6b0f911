"""Judges one mutant: does it count, do the unit tests of its layer notice it, does the simulator?"""

from __future__ import annotations

import difflib
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.mutants.drawing import Mutant
from jepsen_like.mutants.workshop import Workshop
from jepsen_like.seeded_bugs.unit_tests import TIMEOUT_S, requested_of

KILLED, SURVIVED, TIMED_OUT, NOT_COUNTED = "killed", "survived", "timed out", "not counted"
CORE_CHUNKS, FULL_CHUNKS = (10, 40, 100), (2, 6, 12)
"""Random seeds, a process for each number: most of what dies dies at once."""
FIRST_SEED = 900_000
SEARCH_TIMEOUT_S = 600
ALSO = {"cluster/peer/": "tests/cluster/peer", "cluster/modes/": "tests/cluster/modes"}
"""Mutated files -> tests beside those of a planted bug of the same layer, whose column in the record stays as it is."""


class Judgement(NamedTuple):
    """What became of one mutant."""

    name: str
    file: str
    change: tuple[str, ...]
    """The lines that differ, as in a diff."""
    status: str
    by: str
    """Which test or checker noticed it, or why it does not count."""
    seconds: float


def judge(mutant: Mutant, workshop: Workshop) -> Judgement:
    """Tries it. Nothing is left of it afterwards."""
    started = time.monotonic()
    before = (workshop.root / mutant.site.file).read_text()
    try:
        after = mutant.applied(before)
    except ValueError as error:
        return Judgement(mutant.name, mutant.site.file, (), NOT_COUNTED, str(error), 0.0)
    with workshop.holding(mutant.site.file, after):
        status, by = _judged(mutant.site.file, workshop)
    seconds = round(time.monotonic() - started, 1)
    return Judgement(mutant.name, mutant.site.file, change(before, after), status, by, seconds)


def change(before: str, after: str) -> tuple[str, ...]:
    """The lines that differ: `- old`, `+ new`."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return tuple(f"{line[0]} {line[2:].strip()}" for line in lines if line[0] in "+-")


def _judged(file: str, workshop: Workshop) -> tuple[str, str]:
    error = workshop.import_error(file)
    if error:
        return NOT_COUNTED, f"import: {error}"
    errors = workshop.type_errors()
    if errors:
        return NOT_COUNTED, f"types: {errors.splitlines()[0]}"
    try:
        return _by_unit_tests(file, workshop) or _by_simulator(file, workshop) or (SURVIVED, "")
    except subprocess.TimeoutExpired:
        return TIMED_OUT, "a process that does not end"


def _by_unit_tests(file: str, workshop: Workshop) -> tuple[str, str] | None:
    request = requested_of([file], workshop.root, searches=True) | {"failures_max": 1, "test_timeout_s": 30}
    request["paths"] = _likely_first(file, workshop.root, judges_of(file, request["paths"]))
    try:
        found = workshop.call("jepsen_like.seeded_bugs.unit_tests", request, TIMEOUT_S)
    except RuntimeError as error:
        return KILLED, f"unit tests: {error}"
    if found["timeouts"]:
        return TIMED_OUT, found["timeouts"][0]
    if found["failed"] or found["note"]:
        return KILLED, f"unit tests: {(found['failed'] or [found['note']])[0]}"
    return None


def judges_of(file: str, paths: list[str]) -> list[str]:
    """`paths`, the tests of the file's layer, after those of its own folder."""
    return [tests for source, tests in ALSO.items() if file.startswith(source)] + paths


def _likely_first(file: str, root: Path, paths: list[str]) -> list[str]:
    """Test files instead of folders; those whose names share a word with the mutated file's come first."""
    tests = [
        str(test.relative_to(root))
        for path in paths
        for test in ([root / path] if path.endswith(".py") else sorted((root / path).rglob("test_*.py")))
    ]
    words = set(Path(file).stem.split("_"))
    return sorted(tests, key=lambda test: -len(words & set(Path(test).stem.split("_"))))


def _by_simulator(file: str, workshop: Workshop) -> tuple[str, str] | None:
    engines = {"core": CORE_CHUNKS, "full": FULL_CHUNKS} if file.startswith("raftlog/") else {"full": FULL_CHUNKS}
    for engine, chunks in engines.items():
        first = FIRST_SEED
        for seeds in chunks:
            found = _searched(engine, first, seeds, workshop)
            if found:
                return KILLED, f"{engine} simulator: {found}"
            first += seeds
    return None


def _searched(engine: str, first: int, seeds: int, workshop: Workshop) -> str:
    request: dict[str, Any] = {
        "engine": engine, "schedules": [], "first_seed": first, "seeds": seeds, "kills_enough": 1, "checkers": [],
        "black_box": False,
    }  # fmt: skip
    try:
        search = workshop.call("jepsen_like.seeded_bugs.worker", request, SEARCH_TIMEOUT_S)["search"]
    except RuntimeError as error:
        return f"crash: {str(error).splitlines()[-1]}"
    return f"seed {search['others'][0][0]}: {search['others'][0][1]}" if search["others"] else ""
