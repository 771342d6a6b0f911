"""Keeps a Delta table small while rounds add to it: small files are merged into larger ones, and files that no version
of the table names any more are removed.

Both happen in separate commits. Neither changes an offset, so a round never loses a race against them.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from raftmq.tables.delta_table import topics_in, topics_told
from raftmq.tables.table_rows import DAY

SMALL_BYTES = 16 << 20
"""Bytes below which a file is small."""
TARGET_BYTES = 64 << 20
"""Bytes of a file that is made of small ones."""
KEEP_HOURS = 7 * 24
"""Hours for which files stay that the newest version does not name: readers of older versions need them."""


class Upkept(NamedTuple):
    """The result of a step: files that became others, those that they became, and files that were deleted."""

    merged: int = 0
    made: int = 0
    deleted: int = 0


def small_files(folder: Path) -> dict[str, int]:
    """Returns day -> the number of its small files in the newest version, without days that have none."""
    from deltalake import DeltaTable

    adds = DeltaTable(str(folder)).get_add_actions(flatten=True)
    found: dict[str, int] = {}
    for size, day in zip(adds.column("size_bytes"), adds.column(f"partition.{DAY}"), strict=True):
        if size.as_py() < SMALL_BYTES:
            name = day.as_py().isoformat()
            found[name] = found.get(name, 0) + 1
    return found


def compact(folder: Path, at_least: int = 2) -> Upkept:
    """Merges the small files of each day that has `at_least` of them, one day at a time: a day is one commit. Raises
    deltalake's errors and OSError."""
    from deltalake import CommitProperties, DeltaTable

    done = Upkept()
    for day, count in sorted(small_files(folder).items()):
        if count >= max(2, at_least):
            table = DeltaTable(str(folder))
            told = table.optimize.compact(
                partition_filters=[(DAY, "=", day)],
                target_size=TARGET_BYTES,
                max_concurrent_tasks=1,
                commit_properties=CommitProperties(topics_told(topics_in(table))),
            )
            done = Upkept(done.merged + told["numFilesRemoved"], done.made + told["numFilesAdded"])
    return done


def vacuum(folder: Path, keep_hours: int = KEEP_HOURS) -> Upkept:
    """Deletes files that the table has not named for `keep_hours`. Raises deltalake's errors and OSError."""
    from deltalake import DeltaTable

    table = DeltaTable(str(folder))
    return Upkept(deleted=len(table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)))


class Upkeep:
    """Upkeep in another thread, one step at a time, for `with`. Rounds continue during a step."""

    def __init__(self, folder: Path, every: int, keep_hours: int) -> None:
        """`every`: the small files of a day at which they are merged."""
        self._folder = folder
        self._every = every
        self._keep_hours = keep_hours
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._running: Future[Upkept] | None = None

    def __enter__(self) -> Upkeep:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def tend(self) -> Upkept:
        """Starts a step in the background unless one is running; returns the result of the last one. Raises its error
        once; the next call starts a new step."""
        if self._running is not None and not self._running.done():
            return Upkept()
        ended, self._running = self._running, self._pool.submit(self._step)
        return Upkept() if ended is None else ended.result()

    def _step(self) -> Upkept:
        merged = compact(self._folder, self._every)
        return merged._replace(deleted=vacuum(self._folder, self._keep_hours).deleted)
