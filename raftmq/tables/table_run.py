"""Keeps a table up to date with topics, in one process and without Java: `raftmq table run`.

A round reads messages that the table lacks, at most `round_messages`, writes files by day, and commits them together
with the offsets that they reach. The offsets are kept only in the table. So each message is in the table exactly once,
even if a run is killed or another process writes to the table.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from raftmq.arrow.ranges import QueueRange
from raftmq.arrow.tables import BATCH_ROWS, READERS, QueueReads
from raftmq.arrow.undecodable import Undecodable
from raftmq.client.sync import Client
from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import LostRace
from raftmq.tables.formats import kept
from raftmq.tables.json_fields import Met, merge
from raftmq.tables.keepers import Keeper
from raftmq.tables.kept_table import Round, TableOptions, ends_of
from raftmq.tables.missing import first_of, missing, moved
from raftmq.tables.table_folder import TablePlace
from raftmq.tables.table_rows import TableRows, Written

if TYPE_CHECKING:
    from raftmq.tables.formats import Kind

logger = logging.getLogger(__name__)


class TableRun:
    """The rounds of one run, for `with`. Its methods block, and are called by one thread."""

    def __init__(
        self,
        mq: Client,
        topics: Sequence[str],
        folder: TablePlace,
        options: TableOptions,
        kind: Kind | None = None,
        *,
        keeper: Keeper | None = None,
    ) -> None:
        """`kind` and `keeper`: used instead of the usual classes of the format and the place."""
        self._mq = mq
        self._topics = topics
        self._kept = kept(folder, options, kind, keeper=keeper)
        self._options = options

    def __enter__(self) -> TableRun:
        """Locks the table, see `KeptTable`. Raises TableError and OSError."""
        self._kept.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.__exit__()

    def round(self) -> Round:
        """Adds messages that the table lacks, in one commit. Raises TableError if the table cannot be continued where
        it ends, Unreadable and other RaftMQErrors for messages that cannot be read now, and OSError. After an error
        nothing visible is left, and the next round finds out whether the commit happened."""
        accept_loss = self._options.accept_loss
        ends = ends_of(self._mq.admin, self._topics)
        target = self._kept.open()
        wanted = missing(target, ends, accept_loss=accept_loss)
        changed = moved(target, ends, accept_loss=accept_loss)
        chosen = first_of(wanted, self._options.round_messages) if wanted else []
        left = sum(each.end - each.start for each in wanted)
        if not chosen and not changed:
            return Round()
        try:
            with self._kept.attempt():
                written = self._kept.written(target, lambda rows: self._written(rows, chosen))
                done = self._kept.add(target, written.files, chosen, changed)
        except LostRace as error:
            logger.warning("another writer was faster, and the round begins again: %s", error)
            return Round(left=left)
        return done._replace(left=left - done.messages, undecoded=written.undecoded)

    def _written(self, rows: TableRows, chosen: Sequence[QueueRange]) -> Written:
        reads, undecodable = QueueReads(self._mq), Undecodable(self._options.on_undecodable)
        folder, prefix = self._kept.folder, self._kept.hidden

        def write(planned: QueueRange) -> tuple[list[DayFile], Met]:
            batches = reads.batches(planned, rows.read, BATCH_ROWS, undecodable)
            return rows.write(folder, planned.topic, planned.queue_id, batches, prefix)

        with ThreadPoolExecutor(READERS) as pool:
            found = [*pool.map(write, chosen)]
        undecodable.tell(", ".join(self._topics))
        return Written(
            [file for files, _ in found for file in files], merge([met for _, met in found]), undecodable.count
        )
