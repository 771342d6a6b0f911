"""Opens a copy of the log. What crosses processes is a `CopySource`, never an open copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftmq.copies.log_copy import FILES, CopySource, LogCopy


@contextmanager
def opened(source: CopySource) -> Iterator[LogCopy]:
    """The copy, for `with`. Raises CopyError."""
    copy = _open(source)
    try:
        yield copy
    finally:
        copy.close()


def _open(source: CopySource) -> LogCopy:
    if source.kind == FILES:
        from raftmq.copies.file_copy import FileCopy  # only who reads files loads the database

        return FileCopy(Path(source.path))
    from raftmq.copies.tier_copy import TierCopy

    return TierCopy(source.path, source.cluster)
