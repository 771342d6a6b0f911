"""Prints the figures of the benchmarks: as tables, or with JSON=1 in the environment as one document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Returns a console as wide as the terminal. If the output is a file or a pipe, the console is wide enough for
    every row."""
    return Console(width=None if sys.stdout.isatty() else 160)


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Prints the rows, which have the same keys: as a table, or as {"rows": [...]} with JSON=1."""
    if os.environ.get("JSON"):
        print(json.dumps({"rows": rows}))
        return
    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left")
    for row in rows:
        table.add_row(*[f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()])
    console().print(table)
