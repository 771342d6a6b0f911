"""Seeds that tests drew stand at the end of the output, also when all is well: they can be repeated."""

from __future__ import annotations

import pytest

SEEDS = "seeds"
"""Property of a test (`record_property`): which seeds it ran, and what came of it."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints them."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = [text for report in reports for name, text in report.user_properties if name == SEEDS]
    for line in dict.fromkeys(map(str, lines)):
        terminalreporter.write_line(line)
