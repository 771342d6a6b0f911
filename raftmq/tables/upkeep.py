"""Keeps a Delta table small while rounds add to it: small files are merged into larger ones, and files that no version
of the table names any more are removed.

Both happen in separate commits. Neither changes an offset, so a round never loses a race against them.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from raftmq.tables.delta_log import opened, topics_in, topics_told
from raftmq.tables.store_folder import StoreFolder
from raftmq.tables.table_folder import TablePlace, delta_told
from raftmq.tables.table_rows import DAY

SMALL_BYTES = 16 << 20
"""The size in bytes below which a file counts as small."""
TARGET_BYTES = 64 << 20
"""The size in bytes of the files into which small ones are merged."""
STORE_PAUSE_S = 60.0
"""Seconds between two steps on an object store: each step reads the table again, with requests that cost time and
money."""
KEEP_HOURS = 7 * 24
"""Hours for which files stay that the newest version does not name: readers of older versions need them."""


class Upkept(NamedTuple):
    """The result of a step: the number of files that were merged, of the files that they became, and of files that were
    deleted."""

    merged: int = 0
    made: int = 0
    deleted: int = 0


def small_files(folder: TablePlace) -> dict[str, int]:
    """Returns day -> the number of its small files in the newest version, without days that have none."""
    adds = opened(folder).get_add_actions(flatten=True)
    found: dict[str, int] = {}
    for size, day in zip(adds.column("size_bytes"), adds.column(f"partition.{DAY}"), strict=True):
        if size.as_py() < SMALL_BYTES:
            name = day.as_py().isoformat()
            found[name] = found.get(name, 0) + 1
    return found


def compact(folder: TablePlace, at_least: int = 2) -> Upkept:
    """Merges the small files of each day that has `at_least` of them, one day at a time: a day is one commit. Raises
    deltalake's errors and OSError."""
    from deltalake import CommitProperties

    done = Upkept()
    for day, count in sorted(small_files(folder).items()):
        if count >= max(2, at_least):
            table = opened(folder)
            with delta_told(folder):
                told = table.optimize.compact(
                    partition_filters=[(DAY, "=", day)],
                    target_size=TARGET_BYTES,
                    max_concurrent_tasks=1,
                    commit_properties=CommitProperties(topics_told(topics_in(table))),
                )
            done = Upkept(done.merged + told["numFilesRemoved"], done.made + told["numFilesAdded"])
    return done


def vacuum(folder: TablePlace, keep_hours: int = KEEP_HOURS) -> Upkept:
    """Deletes files that the table has not named for `keep_hours`. Raises deltalake's errors and OSError."""
    table = opened(folder)
    with delta_told(folder):
        return Upkept(deleted=len(table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)))


class Upkeep:
    """A context manager that does upkeep in another thread: `tend` begins a step, and rounds continue during it.
    Leaving the context waits for the step that is running; its result or error is lost."""

    def __init__(self, folder: TablePlace, every: int, keep_hours: int) -> None:
        """`every`: the number of small files of one day from which on they are merged."""
        self._folder = folder
        self._every = every
        self._keep_hours = keep_hours
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._running: Future[Upkept] | None = None
        self._pause_s = STORE_PAUSE_S if isinstance(folder, StoreFolder) else 0.0
        self._next_s = 0.0

    def __enter__(self) -> Upkeep:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def tend(self) -> Upkept:
        """Begins a step, unless one is running or, on an object store, one began less than STORE_PAUSE_S ago. Returns
        the result of the last step if it has ended since the last call, else zeros. If that step failed, raises its
        error once; the next call begins a new step."""
        if self._running is not None and not self._running.done():
            return Upkept()
        ended, self._running = self._running, None
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + self._pause_s
            self._running = self._pool.submit(self._step)
        return Upkept() if ended is None else ended.result()

    def _step(self) -> Upkept:
        merged = compact(self._folder, self._every)
        return merged._replace(deleted=vacuum(self._folder, self._keep_hours).deleted)
