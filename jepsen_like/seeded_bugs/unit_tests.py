"""Runs the unit tests of the touched layer against a mutated copy: a bug that they catch says little about the search.

Unit tests are the default tests of the layer's own folder: stories, contracts, models, tables. Left out are random
searches (they are simulators themselves, with the very invariants used here), tests that start processes or nodes with
sockets, and slow ones. Outside the core the first failure ends a measurement. A test fails (red) if it fails in the
copy; the default run shows that the same tests pass on the unmutated packages.

    python -m jepsen_like.seeded_bugs.unit_tests ROOT '{"paths": [], "ignored": [], ...}'    inside a copy
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, make_copy, require_copy, run_inside

_NODE = (
    "tests/cluster/sim",
    "tests/cluster/remoting",
    "tests/cluster/config",
    "tests/cluster/runtime",
    "tests/cluster/replication",
    "tests/cluster/node",
    "tests/cluster/test_*.py",
)
_FOLDERS = (
    ("raftmq_wire/", _NODE),
    ("raftlog/core/", ("tests/raftlog/core",)),
    ("raftlog/", ("tests/raftlog/storage",)),
    ("statemachine/", ("tests/statemachine",)),
    ("raftmq/client/", ("tests/raftmq/client",)),
    ("cluster/", _NODE),
)
"""(prefix of touched files, test folders of their layer); the first that fits counts. For a node these are, beside the
client's, the tests of its parts alone and of whole nodes on a loop of virtual time. The tests of its tools (admin,
backup, cli, recovery, ...) are left out."""
SEARCHES = (
    "tests/raftlog/core/test_raft_search.py",
    "tests/raftlog/storage/test_log_fuzz.py",
    "tests/raftlog/storage/test_segmented_log_model.py",
    "tests/statemachine/test_runs.py",
)
"""Test files with random searches among the default tests."""
_NODES_STARTED = (
    "tests/raftlog/storage/test_kill_nine.py",
    "tests/cluster/remoting/test_bad_frames.py",
    "tests/cluster/test_dedup_table.py",
)
"""Test files among the default tests that start processes, or nodes with sockets of their own."""
NOT_COPIED = ("compat", "architecture", "jepsen_like", "pyspark_raftmq", "__pycache__")
TEST_TIMEOUT_S = 60
TIMEOUT_S = 900
_ENDLESS = "a test that does not end"


class Outcome(NamedTuple):
    """The result of the unit tests on one mutated copy."""

    name: str
    passed: int
    failed: tuple[str, ...]
    """Names of the tests that fail, without their folder."""
    note: str
    """Reason why there is no result; "" if there is one."""

    @property
    def unnoticed(self) -> bool:
        """True if the copy with the bug passes its unit tests."""
        return not self.failed and not self.note


def folders(files: Iterable[str]) -> tuple[str, ...]:
    """Returns the test folders of the layers of these files."""
    found = (next(tests for source, tests in _FOLDERS if file.startswith(source)) for file in files)
    return tuple(dict.fromkeys(folder for tests in found for folder in tests))


def requested_of(files: Iterable[str], root: Path, *, searches: bool) -> dict[str, Any]:
    """Returns the arguments for pytest in the copy under `root`, for the layers of these changed files. `searches`:
    includes the random searches."""
    ignored = _NODES_STARTED if searches else _NODES_STARTED + SEARCHES
    paths = [str(path.relative_to(root)) for folder in folders(files) for path in sorted(root.glob(folder))]
    return {
        "paths": [path for path in paths if path not in ignored],  # pytest takes what is named whatever it ignores
        "ignored": ignored,
        "failures_max": 0,
        "test_timeout_s": TEST_TIMEOUT_S,
    }


def requested(bug: Bug, root: Path, *, searches: bool) -> dict[str, Any]:
    """Returns the arguments for pytest for a planted bug. Outside the core the first failure ends the run, because a
    node that fails one test often hangs in the others."""
    request = requested_of([edit.file for edit in bug.edits], root, searches=searches)
    return request | {"failures_max": 0 if bug.engine == "core" else 1}


def outcome(bug: Bug, *, searches: bool = False) -> Outcome:
    """Runs the unit tests of the bug's layers in a copy that contains it. `searches`: runs the random searches as
    well."""
    with tempfile.TemporaryDirectory(prefix="raftmq-units-") as name:
        root = Path(name)
        make_copy(root, bug)
        shutil.copytree(SOURCE_ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns(*NOT_COPIED))
        shutil.copy(SOURCE_ROOT / "pyproject.toml", root)
        shutil.copytree(SOURCE_ROOT / "docs", root / "docs")  # some tests compare a page with the code
        request = requested(bug, root, searches=searches)
        try:
            done = run_inside(root, "unit_tests", name, json.dumps(request), timeout_s=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Outcome(bug.id, 0, (_ENDLESS,), "")
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        if "Timeout" in done.stderr:
            return Outcome(bug.id, 0, (_ENDLESS,), "")
        return Outcome(bug.id, 0, (), (done.stderr or done.stdout).strip()[-300:] or "no output")
    return Outcome(bug.id, found["passed"], tuple(found["failed"]), found["note"])


def outcomes(bugs: Sequence[Bug], jobs: int, *, searches: bool = False) -> Iterator[Outcome]:
    """Yields the outcomes of all bugs, in the order given; `jobs` run at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda bug: outcome(bug, searches=searches), bugs)


# -- inside the copy


class _Heard:
    """Pytest plugin that collects the reports of the tests."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: dict[str, None] = {}
        self.timeouts: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            name = report.nodeid.rpartition("/")[2]
            self.failed[name] = None
            if "Failed: Timeout" in str(report.longrepr):
                self.timeouts.append(name)
        elif report.when == "call" and report.passed:
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid.rpartition("/")[2]] = None


def main(root: str, request: dict[str, Any]) -> int:
    """Runs pytest against the packages under `root`; returns exit code 3 if others would be imported."""
    require_copy(root)
    import pytest

    heard = _Heard()
    ignored = [f"--ignore={path}" for path in request["ignored"]]
    code = pytest.main(
        [
            *request["paths"],
            *ignored,
            f"--maxfail={request['failures_max']}",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",  # takes half of the start, and no unit test needs it
            "-m",
            "not slow and not live",
            f"--timeout={request['test_timeout_s']}",
            f"--timeout-method={request.get('timeout_method', 'signal')}",
        ],
        plugins=[heard],
    )
    ended = code == pytest.ExitCode.OK or heard.failed
    note = "" if ended else f"pytest ended with {code!r}"
    report = {"passed": heard.passed, "failed": list(heard.failed), "timeouts": heard.timeouts, "note": note}
    sys.stdout.write("\n" + json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
