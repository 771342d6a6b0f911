"""Writes a range of a queue as Parquet files in folders by day: the output of a task of an export, or of a round of
`raftmq table run`.

A file contains consecutive messages of one queue and one day (UTC, log time). Its name has the topic, the queue, the
first offset, and a unique part, so that two attempts never write the same file. On disk the name also has the offset
after the last.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from raftmq.tables.table_folder import TableFolder, TablePlace, folder_at

DAY_MS = 86_400_000
ERROR = "_error"
"""The name of the column with the reason why a row's body does not fit the columns; null if it fits."""
ROW_GROUP_ROWS = 1 << 17


class DayFile(NamedTuple):
    """A complete file with the messages of one queue from offset `start` up to, not including, `end`. `path` is
    relative to the table's folder, with `/` between the parts. `bytes`: the size of the file."""

    path: str
    day: str
    topic: str
    queue_id: int
    start: int
    end: int
    bytes: int
    errors: int | None = None
    """The rows whose bodies do not fit the table's columns; None if the table has no columns of fields."""


def write_day_files(
    where: TablePlace, topic: str, queue_id: int, batches: Iterable[Any], prefix: str = ""
) -> Iterator[DayFile]:
    """Writes all batches, whose rows are consecutive messages of one queue with the columns `queue_offset` and
    `store_ms`; yields each complete file. Names of files begin with `prefix`.

    Each file is durable before it is yielded. Raises OSError and StoreFailed; files that were completed before the
    error stay, even if they were not yielded.
    """
    folder = folder_at(where)
    open_file: _OpenFile | None = None
    try:
        for day, part in _by_day(batches):
            if open_file is not None and open_file.day != day:
                yield open_file.finish()
                open_file = None
            if open_file is None:
                open_file = _OpenFile(folder, topic, queue_id, day, part, prefix)
            open_file.write(part)
        if open_file is not None:
            yield open_file.finish()
            open_file = None
    finally:
        if open_file is not None:
            open_file.give_up()


def _by_day(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Splits the batches by day; yields (day, consecutive rows of that day)."""
    import numpy as np

    for batch in batches:
        days = batch.column("store_ms").to_numpy() // DAY_MS
        bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
        for at, end in itertools.pairwise(bounds):
            day = datetime.date(1970, 1, 1) + datetime.timedelta(days=int(days[at]))
            yield day.isoformat(), batch.slice(at, end - at)


class _OpenFile:
    """A file that is being written."""

    def __init__(self, folder: TableFolder, topic: str, queue_id: int, day: str, first: Any, prefix: str) -> None:
        import pyarrow.parquet as pq

        self.day = day
        self._topic = topic
        self._queue_id = queue_id
        self._start = self._end = int(first.column("queue_offset")[0].as_py())
        self._file = folder.new_file(f"day={day}", prefix, f"{quote(topic, safe='')}-{queue_id}-{self._start}")
        self._writer = pq.ParquetWriter(self._file.sink, first.schema, compression="zstd")
        self._group: list[Any] = []
        self._errors: int | None = None

    def write(self, part: Any) -> None:
        self._group.append(part)
        if ERROR in part.schema.names:
            self._errors = (self._errors or 0) + part.num_rows - part.column(ERROR).null_count
        self._end += part.num_rows
        if sum(each.num_rows for each in self._group) >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._group)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._group = []

    def finish(self) -> DayFile:
        if self._group:
            self._flush()
        self._writer.close()
        name, size = self._file.finish(self._end)
        path = f"day={self.day}/{name}"
        return DayFile(path, self.day, self._topic, self._queue_id, self._start, self._end, size, self._errors)

    def give_up(self) -> None:
        self._writer.close()
        self._file.give_up()
