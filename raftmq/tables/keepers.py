"""Chooses what makes a run the keeper of a table: a lock on disk (`local_keeper.py`), a lease on an object store
(`store_keeper.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from raftmq.tables.day_files import DayFile
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.local_keeper import LocalKeeper, has_lock
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace
from raftmq_wire.topic_identity import Position


class Keeper(Protocol):
    """The part of keeping a table that depends on where it is."""

    hidden: str
    """The prefix of the names under which files of a round are written."""

    def take(self) -> None:
        """Takes the table. Raises TableError if another run keeps it, OSError and StoreFailed."""

    def give_back(self) -> None:
        """Lets the next run take the table."""

    def check(self, target: DeltaTarget) -> None:
        """Raises TableError if another run has taken the table over."""

    def commit(self, target: DeltaTarget, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position]) -> int:
        """Shows the files and commits them (`DeltaTarget.commit`)."""

    def shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        """Gives the files the names under which the table has them. Raises OSError."""

    def remove_strays(self) -> None:
        """Has files of runs removed that no version of the table names, now or after the next commit. Raises OSError
        and deltalake's errors."""


def keeper_of(where: TablePlace) -> Keeper:
    """Returns the keeper of the table there."""
    if not isinstance(where, StoreFolder):
        return LocalKeeper(where)
    from raftmq.tables.store_keeper import StoreKeeper  # loads what an object store needs

    return StoreKeeper(where)


def is_kept(where: TablePlace) -> bool:
    """Returns True if a run keeps the table there now. On a store: if its lease was renewed lately, by the store's
    clock and this machine's. Raises OSError and StoreFailed."""
    if not isinstance(where, StoreFolder):
        return has_lock(where)
    from raftmq.tables.store_keeper import has_lease

    return has_lease(where)


def check_store(folder: StoreFolder) -> None:
    """Makes sure that a table can be on the store. Raises StoreFailed."""
    from raftmq.tables.store_keeper import probe_store

    probe_store(folder)
