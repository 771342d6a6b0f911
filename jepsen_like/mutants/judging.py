"""Judges one mutant: does it count, do the unit tests of its layer notice it, does the simulator?"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jepsen_like.mutants.reach import Reach, chunk_name
from jepsen_like.mutants.records import KILLED, NOT_COUNTED, SURVIVED, TIMED_OUT, Row
from jepsen_like.mutants.workshop import Workshop
from jepsen_like.seeded_bugs.unit_tests import TIMEOUT_S, requested_of

CORE_CHUNKS, FULL_CHUNKS = (10, 40, 100), (2, 6, 12)
"""Random seeds, a process for each number: most of what dies dies at once."""
FIRST_SEED = 900_000
SEARCH_TIMEOUT_S = 600
TEST_TIMEOUT_S = 60
"""Six times what the slowest takes, so that it is an endless loop and not a busy machine that makes a test end."""
ALSO = {"cluster/peer/": "tests/cluster/peer", "cluster/replication/": "tests/cluster/replication"}
"""Mutated files -> tests beside those of a planted bug of the same layer, whose column in the record stays as it is."""


def judge(row: Row, workshop: Workshop, reach: Reach) -> Row:
    """Tries it: the row with what became of it. Nothing is left in the workshop. Raises ValueError if its lines are not
    there."""
    started = time.monotonic()
    after = row.applied((workshop.root / row.file).read_text())
    if after is None:
        raise ValueError(f"{row.name}: its lines are no longer there")
    with workshop.holding(row.file, after):
        status, by = _judged(row, workshop, reach)
    return row._replace(status=status, by=by, seconds=round(time.monotonic() - started, 1))


def measure(rows: Sequence[Row], workshop: Workshop, reach: Reach) -> None:
    """Finds out what runs where these rows are changed, as far as it is not known."""
    tests = sorted({test for row in rows for test in _tests(row.file, workshop.root)})
    engines = {engine: chunks for row in rows for engine, chunks in _engines(row.file).items()}
    chunks = [chunk_name(engine, *chunk) for engine in sorted(engines) for chunk in _ranges(engines[engine])]
    reach.measure(rows, tests, chunks, workshop)


def _judged(row: Row, workshop: Workshop, reach: Reach) -> tuple[str, str]:
    error = workshop.import_error(row.file)
    if error:
        return NOT_COUNTED, f"import: {error}"
    errors = workshop.type_errors()
    if errors:
        return NOT_COUNTED, f"types: {errors.splitlines()[0]}"
    try:
        return _by_unit_tests(row, workshop, reach) or _by_simulator(row, workshop, reach) or (SURVIVED, "")
    except subprocess.TimeoutExpired:
        return TIMED_OUT, "a process that does not end"


def _by_unit_tests(row: Row, workshop: Workshop, reach: Reach) -> tuple[str, str] | None:
    paths = _likely_first(row.file, reach.tests(row, _tests(row.file, workshop.root)))
    if not paths:
        return None
    request = {
        "paths": paths,
        "ignored": [],
        "failures_max": 1,
        "test_timeout_s": TEST_TIMEOUT_S,
        "timeout_method": "thread",  # it ends the process: a node may take an exception for its own failure, and go on
    }
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


def _tests(file: str, root: Path) -> list[str]:
    """The test files that judge it."""
    request = requested_of([file], root, searches=True)
    found = [
        str(test.relative_to(root))
        for path in judges_of(file, request["paths"])
        for test in ([root / path] if path.endswith(".py") else sorted((root / path).rglob("test_*.py")))
    ]
    return [test for test in dict.fromkeys(found) if test not in request["ignored"]]


def _likely_first(file: str, tests: Sequence[str]) -> list[str]:
    """Those whose names share a word with the mutated file's come first."""
    words = set(Path(file).stem.split("_"))
    return sorted(tests, key=lambda test: -len(words & set(Path(test).stem.split("_"))))


def _engines(file: str) -> dict[str, tuple[int, ...]]:
    return {"core": CORE_CHUNKS, "full": FULL_CHUNKS} if file.startswith("raftlog/") else {"full": FULL_CHUNKS}


def _ranges(chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First seed and how many, of each chunk."""
    first = FIRST_SEED
    for seeds in chunks:
        yield first, seeds
        first += seeds


def _by_simulator(row: Row, workshop: Workshop, reach: Reach) -> tuple[str, str] | None:
    for engine, chunks in _engines(row.file).items():
        for first, seeds in _ranges(chunks):
            if not reach.reaches(row, chunk_name(engine, first, seeds)):
                continue
            found = _searched(engine, first, seeds, workshop)
            if found:
                return KILLED, f"{engine} simulator: {found}"
    return None


def _searched(engine: str, first: int, seeds: int, workshop: Workshop) -> str:
    request: dict[str, Any] = {
        "engine": engine,
        "schedules": [],
        "first_seed": first,
        "seeds": seeds,
        "kills_enough": 1,
        "checkers": [],
        "black_box": False,
    }
    try:
        search = workshop.call("jepsen_like.seeded_bugs.worker", request, SEARCH_TIMEOUT_S)["search"]
    except RuntimeError as error:
        return f"crash: {str(error).splitlines()[-1]}"
    return f"seed {search['others'][0][0]}: {search['others'][0][1]}" if search["others"] else ""
