"""Chooses how a run becomes the only keeper of a table: with a lock on disk (`local_keeper.py`), or with a lease on an
object store (`store_keeper.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from raftmq.tables.day_files import DayFile
from raftmq.tables.delta_table import DeltaTarget
from raftmq.tables.local_keeper import LocalKeeper, has_lock
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace
from raftmq_wire.topic_identity import Position

if TYPE_CHECKING:
    from raftmq.tables.store_keeper import Keepable


class Keeper(Protocol):
    """The part of keeping a table that depends on where it is."""

    hidden: str
    """The prefix of the names under which files of a round are written."""

    def take(self) -> None:
        """Makes this run the keeper of the table. Raises TableError if another run keeps it, OSError and
        StoreFailed."""

    def give_back(self) -> None:
        """Lets the next run take the table."""

    def check(self, target: Keepable) -> None:
        """Raises TableError if another run has taken the table over."""

    def commit(self, target: DeltaTarget, files: Sequence[DayFile], reached: Mapping[tuple[str, int], Position]) -> int:
        """Commits files that `shown` has returned, and the positions; returns the table's version
        (`DeltaTarget.commit`)."""

    def shown(self, files: Sequence[DayFile]) -> list[DayFile]:
        """Gives the files the names under which the table has them. Raises OSError."""

    def remove_strays(self) -> None:
        """Removes the files of runs that no version of the table names, either now or after the next commit. Raises
        OSError and deltalake's errors."""


def keeper_of(where: TablePlace) -> Keeper:
    """Returns the keeper for a table at `where`."""
    if not isinstance(where, StoreFolder):
        return LocalKeeper(where)
    from raftmq.tables.store_keeper import StoreKeeper  # loads the libraries of an object store

    return StoreKeeper(where)


def is_kept(where: TablePlace) -> bool:
    """Returns True if a run keeps the table at `where` now. On a store, that is so if its lease was renewed lately,
    judged by the store's clock and this machine's. Raises OSError and StoreFailed."""
    if not isinstance(where, StoreFolder):
        return has_lock(where)
    from raftmq.tables.store_keeper import has_lease

    return has_lease(where)


def check_store(folder: StoreFolder) -> None:
    """Checks that the store suits a table. Raises StoreFailed if it does not."""
    from raftmq.tables.store_keeper import probe_store

    probe_store(folder)
