"""Errors of tables that are made of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.tables.day_files import DayFile
from raftmq_wire.errors import LocalError


class TableError(LocalError):
    """The table cannot be used, or cannot go on where it ends; nothing was written to it."""


class LostRace(Exception):
    """Another writer has changed the table since the snapshot was read. `kept`: the files of this commit that became
    visible nevertheless; always empty for a Delta table."""

    def __init__(self, why: str, kept: Sequence[DayFile] = ()) -> None:
        super().__init__(why)
        self.kept = kept


class CatalogError(LocalError):
    """The catalog of a table did not answer as it should. The table is unchanged, unless `undecided` is True: then a
    commit may have happened, and the next round reads the table to find out."""

    def __init__(self, *told: Any, undecided: bool = False) -> None:
        super().__init__(*told)
        self.undecided = undecided
