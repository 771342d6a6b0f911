"""Opens a copy of the log. Processes pass each other a `CopySource`, never an open copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.arrow.log_copy import FILES, CopySource, LogCopy

if TYPE_CHECKING:
    from raftmq.copies.file_copy import FileCopy


@contextmanager
def opened(source: CopySource) -> Iterator[LogCopy]:
    """Opens the copy, for `with`. Raises CopyError."""
    copy = _open(source)
    try:
        yield copy
    finally:
        copy.close()


@contextmanager
def opened_rows(source: CopySource) -> Iterator[FileCopy]:
    """Opens a copy made of files whose checkpoint rows are to be read, for `with`. Raises CopyError."""
    from raftmq.copies.file_copy import FileCopy

    copy = FileCopy(Path(source.path))
    try:
        yield copy
    finally:
        copy.close()


def _open(source: CopySource) -> LogCopy:
    if source.kind == FILES:
        from raftmq.copies.file_copy import FileCopy  # imported here, so that only reads of files load the database

        return FileCopy(Path(source.path))
    from raftmq.copies.tier_copy import TierCopy

    return TierCopy(source.path, source.cluster)
