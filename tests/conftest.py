"""Options, limits of time, the time budget, the list of missing tools, and what docs/internals/feature-map.md promises:
for every test folder."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from raftmq_wire import kernel
from tests.support.pace import at_most, slowness
from tests.support.tools import how_to_get, lacked, skip_without

EXAMPLES = 50
"""Examples of a property that names no number. Every run draws others."""

# How long an example takes says nothing about the product.
settings.register_profile(
    "shared machine", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

# Images often set it. Each of the hundreds of processes of a run would compile its modules again, and each worker would
# rewrite the assertions of all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collection makes ten thousand objects that stay: the collector would walk them again and again, a third of its time.
gc.disable()

_TESTS = Path(__file__).parent
_REST = "rest"
_SHARED = ("tests/pyspark_raftmq", "tests/architecture")
_LONG = ("tests/jepsen_like/sim/", "tests/cluster/sim/", "tests/cluster/tier/")
"""Folders whose files play whole clusters in simulated time."""
_PAGE = _TESTS.parent / "docs" / "internals" / "feature-map.md"
_NAMED = re.compile(r"`(tests/[\w/.-]+\.py::[^`]+)`( \[\w+\])?")
_TAGS = {
    "not slow and not ci and not compat and not browser": [""],
    "not slow and not compat and not browser": ["", " [ci]"],
    "ci and not slow": [" [ci]"],
    "slow": [" [slow]"],
}
"""`-m` of a run -> how the page marks the tests that it must contain."""
BUDGET_SECONDS = {
    "raftmq_wire": 60,
    "raftlog": 110,
    "statemachine": 110,
    "cluster": 1020,
    "raftmq": 400,
    "jepsen_like": 420,
    "pyspark_raftmq": 170,
    _REST: 210,
}
"""Of three processes on two cores, where a test takes about twice as long as alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register ``--rewrite``: golden files are written anew instead of compared; and ``--complete``."""
    parser.addoption("--rewrite", action="store_true", help="write the expected outcome of stories and goldens anew")
    parser.addoption(
        "--complete",
        action="store_true",
        help="fail if a test was skipped for want of a tool, or one that the feature map names for any reason",
    )


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """True if golden files are to be written anew."""
    return bool(pytestconfig.getoption("--rewrite"))


class SharedFolders(LoadFileScheduling):  # type: ignore[misc]
    """A file at a time in each process, and all files of a folder that shares something costly in one: a JVM and a
    cluster start once, the tree is read once. They are handed out in the order of the workers' collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedFolders | None:
    """Replaces what --dist loadfile would take."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # by the number of tests: the longest files have few, and would come last
    return SharedFolders(config, log)


def scope_of(file: str) -> str:
    """What one process runs from beginning to end: a shared folder, or the file."""
    return next((folder for folder in _SHARED if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: as `in_turns` says. Every worker collects the same."""
    if hasattr(config, "workerinput"):
        items[:] = in_turns(items)


def in_turns(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests with those of shared folders first, which take longest. Then come, in turns, a file that starts
    processes or plays whole clusters, and two of the others: seldom do three files of live nodes run side by side, and
    the last files are short ones. A file's own tests keep their order."""
    scopes: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        scopes[scope_of(item.nodeid.partition("::")[0])].append(item)
    shared, long, short = list[str](), list[str](), list[str]()
    for scope in sorted(scopes, key=lambda name: -len(scopes[name])):
        is_long = scope.startswith(_LONG) or any(item.get_closest_marker("live") for item in scopes[scope])
        (shared if scope in _SHARED else long if is_long else short).append(scope)
    order = shared
    while long or short:
        order += long[:1] + short[:2]
        del long[:1], short[:2]
    return [item for scope in order for item in scopes[scope]]


class TimeBudget:
    """Adds up what each top folder of tests/ took and prints it beside its budget.

    Several folders run at a time. A slow machine may take longer by its figure (tests/support/pace.py). It reports and
    never fails: the machine that runs the suite is shared.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._tests: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.write_sep("-", "time per folder of tests/")
        terminalreporter.write_line(f"{'folder':<16}{'tests':>7}{'seconds':>10}{'budget':>8}")
        for folder, budget in BUDGET_SECONDS.items():
            if not self._tests[folder]:
                continue
            seconds = self._seconds[folder]
            over = "  over" if seconds > at_most(budget) else ""
            terminalreporter.write_line(f"{folder:<16}{self._tests[folder]:>7}{seconds:>10.1f}{budget:>8}{over}")


def folder_of(nodeid: str) -> str:
    """The budget row of a test: the first folder under tests/, or ``rest``."""
    parts = Path(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == _TESTS.name else ""
    return folder if folder in BUDGET_SECONDS else _REST


class MissingTools:
    """Lists at the end of a run what was skipped for want of a tool, by tool. With --complete, that fails the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._complete: bool = config.option.complete
        self._skipped: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for tool in lacked(report):
            self._skipped[tool].add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._complete and self._skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._skipped:
            return
        title = "incomplete: tools are missing" if self._complete else "not checked here: tools are missing"
        terminalreporter.write_sep("-", title, red=self._complete)
        for tool in sorted(self._skipped):
            skipped = len(self._skipped[tool])
            tests = f"{skipped} test{'s' * (skipped > 1)}"
            terminalreporter.write_line(f"{tool:<12}{tests:>10}   {how_to_get(tool)}")
        if not self._complete:
            terminalreporter.write_line("make test-all fails without them; docs/testing.md lists the tests")


class Counts:
    """Prints at the end of a run what tests counted for people, `record_property("count", text)`: pytest shows the
    output of failed tests alone."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._lines |= {str(value): None for name, value in report.user_properties if name == "count"}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._lines:
            terminalreporter.write_line(line)


class NamedTests:
    """After a run of everything, each test that the feature map names must be there, and with --complete it must have
    run: skipped is then not enough.

    Tests named with [slow] or [ci] are asked for by a run of all tests with that mark, the others by a run of the
    default suite. Any other run (folders, -k, --lf) promises nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._done: set[str] = set()
        self._missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        excused = report.skipped and not self._config.option.complete
        if excused or (report.when == "call" and not report.skipped):
            self._done |= {report.nodeid, report.nodeid.partition("[")[0]}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        tags = _TAGS.get(self._config.option.markexpr, []) if self._is_whole() else []
        if not tags or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        named = {name for name, given in _NAMED.findall(_PAGE.read_text(encoding="utf-8")) if given in tags}
        self._missing = sorted(named - self._done)
        if self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._missing:
            terminalreporter.write_sep("-", "named in docs/internals/feature-map.md and did not run", red=True)
            for name in self._missing:
                terminalreporter.write_line(name)

    def _is_whole(self) -> bool:
        """Nothing narrowed the run, and there is a page."""
        config, option = self._config, self._config.option
        narrowed = option.keyword or option.deselect or option.ignore or option.ignore_glob or option.maxfail
        narrowed = narrowed or option.collectonly or getattr(option, "lf", False) or getattr(option, "stepwise", False)
        return not narrowed and config.args_source is pytest.Config.ArgsSource.TESTPATHS and _PAGE.exists()


def pytest_collection_finish() -> None:
    """Freezes the objects of ten thousand collected tests: they stay until the end, and the collector need not look at
    them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures: they may want the tool."""
    skip_without(item.iter_markers("needs"))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """Replaces what would set the timer: every limit of a test, of its mark or of pyproject.toml, is one of a quiet
    machine."""
    scaled = settings._replace(timeout=at_most(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, scaled)


def pytest_report_header() -> list[str]:
    """Which kernel the product uses in this run, RAFTMQ_KERNEL=python chooses; and by how much limits are longer."""
    why = f" ({kernel.WHY})" if kernel.WHY else ""
    return [f"kernel: {kernel.NAME}{why}", f"limits of time: {slowness():.1f} times those of a quiet machine"]


def pytest_configure(config: pytest.Config) -> None:
    """Install each once; the terminal exists only in the main process."""
    slowness()  # before workers start: they find it in their environment
    if hasattr(config, "workerinput"):  # runs a part of the tests; their reports go to the main process
        return
    config.pluginmanager.register(TimeBudget(), "raftmq-time-budget")
    config.pluginmanager.register(MissingTools(config), "raftmq-missing-tools")
    config.pluginmanager.register(Counts(), "raftmq-counts")
    config.pluginmanager.register(NamedTests(config), "raftmq-named-tests")
