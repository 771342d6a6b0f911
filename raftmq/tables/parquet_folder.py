"""Plain Parquet files of an export, in folders by day: the names of the files are the record of what was exported.

The name of a visible file has the topic, the queue, the file's first offset, and the identity of the topic in which the
offset counts; its footer says how many rows follow. Tasks write files under hidden names, which readers of such folders
ignore. The driver makes each visible with a hard link, in the order of the offsets; the link fails if the name is
taken. So the visible files of a queue always contain each message below some offset once, and the next run continues
there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from raftmq.arrow.columns import arrow_schema
from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import LostRace, TableError
from raftmq.tables.local_folder import sync_folder
from raftmq.tables.missing import Queue
from raftmq.tables.table_folder import TablePlace
from raftmq_wire.errors import ExitCode
from raftmq_wire.topic_identity import Position, TopicIdentity, parse_identity

HIDDEN = "_"
"""The prefix of hidden files: Spark, pyarrow and other readers ignore files whose names begin with it."""
_VISIBLE = "part-"
_IN = "@"
"""The character before the identity in a file's name; no topic's name contains it."""
_LOCK = "_raftmq.lock"


def _name(queue: Queue, start: int, identity: TopicIdentity | None) -> str:
    """Returns the name of a visible file."""
    counted_in = "" if identity is None else f"{_IN}{identity}".replace("/", ".")
    return f"{_VISIBLE}{quote(queue[0], safe='')}-{queue[1]}-{start}{counted_in}.parquet"


def folder_of(where: TablePlace) -> Path:
    """Returns the folder. Raises TableError for an object store."""
    if isinstance(where, Path):
        return where
    raise TableError(
        f"{where} cannot have files of --format parquet",
        "an export makes such files visible one by one, with hard links, which no object store has",
        f"raftmq spark export TOPIC --to {where} --format delta",
        ExitCode.USAGE,
    )


class ParquetTarget:
    """A snapshot of the folder, which is read once and committed to once. It has the interface of `DeltaTarget`."""

    hidden = HIDDEN

    def __init__(self, where: TablePlace, columns: Sequence[str]) -> None:
        """Reads the folder. Raises TableError for a Delta table, for files with other columns, and for an object
        store."""
        self._folder = folder = folder_of(where)
        if (folder / "_delta_log").exists():
            raise TableError(
                f"{folder} is a Delta table",
                "its files are not all part of it, so they cannot be told from those of a Parquet folder",
                "Take another folder, or --format delta",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._reached = self._ends()
        self._check_columns(columns)

    def reached(self, topic: str, queue_id: int, met: TopicIdentity | None = None) -> Position | None:
        """Returns the position to read next. `met`: the identity of the present topic. If the folder has no messages of
        it, returns the position in an earlier topic of the same name; None if it has no messages of the queue at
        all."""
        ends = self._reached.get((topic, queue_id), {})
        if met is None or met not in ends:  # files without an identity are older than the first file with one
            named = [identity for identity in ends if identity is not None]
            met = max(named, key=lambda each: each.topic_id, default=None)
        return Position(ends[met], met) if met in ends else None

    def commit(self, files: Sequence[DayFile], reached: Mapping[Queue, Position]) -> None:
        """Makes the files visible, one by one. Files of an earlier release have no identity in their names: if a queue
        of `reached` gets no new file, its last file is renamed to have the identity. Raises LostRace if another export
        has added messages of the same queue first; its `kept` are the files that became visible nevertheless."""
        kept: list[DayFile] = []
        with self._locked():
            now = self._ends()
            lost = {queue for queue in reached if now.get(queue) != self._reached.get(queue)}
            for file in sorted(files, key=lambda each: each[2:5]):
                queue = file.topic, file.queue_id
                if queue in lost or not self._show(file, reached[queue].counted_in):
                    lost.add(queue)
                else:
                    kept.append(file)
            self._complete({queue: reached[queue] for queue in reached.keys() - lost - {each[2:4] for each in files}})
        if lost:
            raise LostRace(f"another export wrote {', '.join(f'{each[0]}/{each[1]}' for each in sorted(lost))}", kept)

    def discard(self, files: Sequence[DayFile]) -> None:
        """Removes the files of a failed commit that are not visible."""
        for file in files:
            (self._folder / file.path).unlink(missing_ok=True)

    def _show(self, file: DayFile, identity: TopicIdentity | None) -> bool:
        """Makes a file visible; returns False if a file that begins at the same offset is already visible."""
        written = self._folder / file.path
        try:
            os.link(written, written.with_name(_name((file.topic, file.queue_id), file.start, identity)))
        except FileExistsError:
            return False
        sync_folder(written.parent)
        written.unlink()
        return True

    def _complete(self, reached: Mapping[Queue, Position]) -> None:
        """Renames the last file of each queue, if it has no identity in its name, to have the position's identity. A
        rename is atomic, so a reader always sees the rows exactly once."""
        last = self._last() if reached else {}
        for queue, position in reached.items():
            start, path = last.get(queue, {}).get(None, (0, None))
            if path is not None and position.counted_in is not None:
                path.rename(path.with_name(_name(queue, start, position.counted_in)))
                sync_folder(path.parent)

    def _ends(self) -> dict[Queue, dict[TopicIdentity | None, int]]:
        """Returns queue -> identity of the topic (None in old names) -> the offset after the last message in a visible
        file. Only the last file of each is opened."""
        import pyarrow.parquet as pq

        return {
            queue: {each: start + pq.read_metadata(path).num_rows for each, (start, path) in files.items()}
            for queue, files in self._last().items()
        }

    def _last(self) -> dict[Queue, dict[TopicIdentity | None, tuple[int, Path]]]:
        """Returns queue -> identity of the topic (None in old names) -> (first offset, path) of the last visible
        file."""
        last: dict[Queue, dict[TopicIdentity | None, tuple[int, Path]]] = {}
        for path in self._visible():
            place, _, identity = path.stem.removeprefix(_VISIBLE).partition(_IN)
            topic, queue_id, start = place.rsplit("-", 2)
            of_queue = last.setdefault((unquote(topic), int(queue_id)), {})
            counted_in = parse_identity(identity.replace(".", "/")) if identity else None
            of_queue[counted_in] = max(of_queue.get(counted_in, (-1, path)), (int(start), path))
        return last

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
                "Take another folder, or the columns of these files",
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
