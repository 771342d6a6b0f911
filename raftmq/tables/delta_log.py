"""Follows the Delta log of a table, for the process that keeps the table up to date.

To find one transaction, deltalake reads all commits since the last checkpoint. On disk that is cheap. On an object
store it would take thousands of requests a round, so there this module reads only new commits, and each once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raftmq.tables.errors import TableError
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace, delta_table, delta_told

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TOPICS = "raftmqTopics"
"""The key in a commit's `commitInfo` that lists the topics of the table."""
_COMMITS_READ = 50
"""The number of newest commits that are searched for one by RaftMQ; other programs may have made the others."""
_FOLLOWED_MAX = 50
"""The most new commits that are read one by one. If there are more, deltalake is asked again."""


class DeltaLog:
    """The newest snapshot of a table that was read, and the transactions at its version. To be used by one thread."""

    def __init__(self, where: TablePlace) -> None:
        self._where = where
        self._table: DeltaTable | None = None
        self._at = -1
        self._transactions: dict[str, int | None] = {}
        self._topics: list[str] | None = None

    def read(self) -> DeltaTable | None:
        """Reads what is new; returns the table, None if there is none. Raises deltalake's errors, OSError and
        StoreFailed."""
        if self._table is None or not isinstance(self._where, StoreFolder):
            self._table = delta_table(self._where)
            self._at = -1
        else:
            with delta_told(self._where):
                self._table.update_incremental()
        return self._table

    def opened(self) -> DeltaTable:
        """Returns the table as it was last read; reads it if there was none then. Raises TableError if there is none,
        and as `read`."""
        if self._table is None:
            self._table = opened(self._where)
        return self._table

    def transaction(self, application: str) -> int | None:
        """Returns the version of the application's last transaction; None if there is none. Raises as `read`."""
        table = self._caught_up()
        if application not in self._transactions:
            with delta_told(self._where):
                self._transactions[application] = table.transaction_version(application)
        return self._transactions[application]

    def topics(self) -> list[str]:
        """Returns the topics of which the table has rows, in the order of their names. Raises as `read`."""
        table = self._caught_up()
        if self._topics is None:
            with delta_told(self._where):
                self._topics = topics_in(table)
        return self._topics

    def _caught_up(self) -> DeltaTable:
        """Returns the table, after updating the known transactions to the table's version."""
        table = self.opened()
        version = table.version()
        if version != self._at:
            commits = range(self._at + 1, version + 1)
            followed = isinstance(self._where, StoreFolder) and 0 <= self._at < version <= self._at + _FOLLOWED_MAX
            if not followed or not all(map(self._follow, commits)):
                self._transactions, self._topics = {}, None
            self._at = version
        return table

    def _follow(self, version: int) -> bool:
        """Takes over the transactions and topics of one commit. Returns False if the commit cannot be read any more.
        Raises StoreFailed."""
        assert isinstance(self._where, StoreFolder)
        text = self._where.commit(version)
        if text is None:
            return False
        for line in text.splitlines():
            action: dict[str, Any] = json.loads(line)
            if (transaction := action.get("txn")) is not None:
                self._transactions[transaction["appId"]] = transaction["version"]
            told = action.get("commitInfo", {}).get(_TOPICS)
            if told is not None:
                self._topics = sorted(json.loads(told))
        return True


def opened(where: TablePlace) -> DeltaTable:
    """Returns the newest version of the Delta table. Raises TableError if there is none, and as `delta_table`."""
    table = delta_table(where)
    if table is None:
        raise TableError(f"{where} is no Delta table", "it has no _delta_log", f"raftmq table run TOPIC --to {where}")
    return table


def topics_in(table: Any) -> list[str]:
    """Returns the topics of which the table has rows, sorted by name. Each commit that RaftMQ makes lists them."""
    for count in (1, _COMMITS_READ):  # the history reads a file for each commit
        for commit in table.history(count):
            if told := commit.get(_TOPICS):
                return sorted(json.loads(told))
    return []


def topics_told(topics: Iterable[str]) -> dict[str, str]:
    """Returns the `commitInfo` entry that lists the topics of the table."""
    return {_TOPICS: json.dumps(sorted(topics), ensure_ascii=False)}
