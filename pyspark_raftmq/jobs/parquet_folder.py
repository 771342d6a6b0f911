"""Plain Parquet files of an export, in folders by day: the names of the files are the record of what was exported.

The name of a visible file has the topic, the queue and the file's first offset; its footer says how many rows follow.
Tasks write files under hidden names, which readers of such folders ignore. The driver makes each visible with a hard
link, which fails if the name is taken, in the order of the offsets. So the visible files of a queue always contain each
message below some offset once, and the next run continues there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pyspark_raftmq.jobs.day_files import DayFile, sync_folder
from pyspark_raftmq.jobs.delta_table import LostRace, TableError
from raftmq.arrow.columns import arrow_schema

HIDDEN = "_"
"""The prefix of hidden files: Spark, pyarrow and others take no file for data whose name begins with it."""
_VISIBLE = "part-"
_LOCK = "_raftmq.lock"
Queue = tuple[str, int]
"""(topic, queue_id)."""


class ParquetTarget:
    """A snapshot of the folder, which is read once and committed to once. It has the interface of `DeltaTarget`."""

    hidden = HIDDEN

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        """Reads the folder. Raises TableError for a Delta table, and for files with other columns."""
        self._folder = folder
        if (folder / "_delta_log").exists():
            raise TableError(
                f"{folder} is a Delta table",
                "its files are not all part of it, so they cannot be told from those of a Parquet folder",
                "export to another folder, or with --format delta",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._reached = self._ends()
        self._check_columns(columns)

    def next_offset(self, topic: str, queue_id: int) -> int | None:
        """Returns the offset to read next; None if the folder has no messages of this queue."""
        return self._reached.get((topic, queue_id))

    def commit(self, files: Sequence[DayFile], reached: Mapping[Queue, int]) -> None:
        """Makes the files visible, one by one. Raises LostRace if another export was faster with a queue; its `kept`
        are the files that became visible nevertheless."""
        kept: list[DayFile] = []
        with self._locked():
            now = self._ends()
            lost = {queue for queue in reached if now.get(queue) != self._reached.get(queue)}
            for file in sorted(files, key=lambda each: each[2:5]):
                queue = file.topic, file.queue_id
                if queue in lost or not self._show(file):
                    lost.add(queue)
                else:
                    kept.append(file)
        if lost:
            raise LostRace(f"another export wrote {', '.join(f'{each[0]}/{each[1]}' for each in sorted(lost))}", kept)

    def discard(self, files: Sequence[DayFile]) -> None:
        """Removes the files of a failed commit that are not visible."""
        for file in files:
            (self._folder / file.path).unlink(missing_ok=True)

    def _show(self, file: DayFile) -> bool:
        """Makes a file visible; returns False if there is a file that begins at the same offset."""
        written = self._folder / file.path
        name = f"{_VISIBLE}{quote(file.topic, safe='')}-{file.queue_id}-{file.start}.parquet"
        try:
            os.link(written, written.with_name(name))
        except FileExistsError:
            return False
        sync_folder(written.parent)
        written.unlink()
        return True

    def _ends(self) -> dict[Queue, int]:
        """Returns, for each queue, the offset after the last message in a visible file. Only the last file is
        opened."""
        import pyarrow.parquet as pq

        last: dict[Queue, tuple[int, Path]] = {}
        for path in self._visible():
            topic, queue_id, start = path.stem.removeprefix(_VISIBLE).rsplit("-", 2)
            queue = unquote(topic), int(queue_id)
            if queue not in last or int(start) > last[queue][0]:
                last[queue] = int(start), path
        return {queue: start + pq.read_metadata(path).num_rows for queue, (start, path) in last.items()}

    def _visible(self) -> Iterator[Path]:
        return self._folder.glob(f"day=*/{_VISIBLE}*.parquet")

    def _check_columns(self, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        there: Any = next((pq.read_schema(path).names for path in self._visible()), None)
        wanted = arrow_schema(columns).names
        if there is not None and there != wanted:
            raise TableError(
                f"the files in {self._folder} have other columns",
                f"they have {', '.join(there)}; the export has {', '.join(wanted)}",
                "export to another folder, or with the columns of these files",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Takes a lock, so that one driver at a time compares and links; the lock ends with its process."""
        descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
