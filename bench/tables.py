"""The console that prints the tables of the benchmarks."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """Returns a console as wide as the terminal; in a file or a pipe, wide enough for every row."""
    return Console(width=None if sys.stdout.isatty() else 160)
