"""Where the tables of the benchmarks go."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """As wide as the terminal; in a file or a pipe, wide enough for every row."""
    return Console(width=None if sys.stdout.isatty() else 160)
