"""The columns of a table: those that a user names, which must include those that every table needs."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS
from raftmq_wire.errors import ExitCode, LocalError

NEEDED = ("topic", "queue_id", "queue_offset", "store_ms")
"""Columns that a table always has: they say which message a row is, and on which day it was stored."""


def table_columns(text: str | None, command: str) -> tuple[str, ...]:
    """Returns the columns of an option `--columns`, names separated by commas; the usual ones for None. Raises
    LocalError, whose advice begins with `command`."""
    if text is None:
        return DEFAULT_COLUMNS
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in COLUMNS]:
        raise LocalError(
            f"there is no column {unknown[0]}",
            f"the columns are {', '.join(COLUMNS)}",
            f"{command} --columns {','.join(name for name in names if name in COLUMNS) or ','.join(NEEDED)}",
            ExitCode.USAGE,
        )
    check_needed(names, command)
    return names


def check_needed(names: Sequence[str], command: str) -> None:
    """Raises LocalError unless the columns include those that a table needs."""
    if missing := [name for name in NEEDED if name not in names]:
        raise LocalError(
            f"--columns lacks {', '.join(missing)}",
            "these columns say which message a row is",
            f"{command} --columns {','.join((*missing, *names))}",
            ExitCode.USAGE,
        )
