"""Options and the time budget shared by every test folder."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_REST = "rest"
BUDGET_SECONDS = {
    "raftlog": 60,
    "statemachine": 60,
    "cluster": 180,
    "jepsen_like": 90,
    "pyspark_raftmq": 120,
    _REST: 60,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register ``--rewrite``: golden files are written anew instead of compared."""
    parser.addoption("--rewrite", action="store_true", help="write the expected outcome of stories and goldens anew")


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be written anew."""
    return bool(pytestconfig.getoption("--rewrite"))


class TimeBudget:
    """Adds up what each top folder of tests/ took and prints it beside its budget.

    It reports and never fails: the machine that runs the suite is shared.
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
            over = "  over" if seconds > budget else ""
            terminalreporter.write_line(f"{folder:<16}{self._tests[folder]:>7}{seconds:>10.1f}{budget:>8}{over}")


def folder_of(nodeid: str) -> str:
    """The budget row of a test: the first folder under tests/, or ``rest``."""
    parts = Path(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 and parts[0] == _TESTS.name else ""
    return folder if folder in BUDGET_SECONDS else _REST


def pytest_configure(config: pytest.Config) -> None:
    """Install the time budget once; the terminal exists only in the main process."""
    config.pluginmanager.register(TimeBudget(), "raftmq-time-budget")
