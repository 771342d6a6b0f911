"""Where a restore takes its backup from: a directory, or an object store, whose backup is fetched beside the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.backup import files
from cluster.backup.remote import fetch_backup, is_url
from cluster.backup.restore import check_unused

FETCHED = ".fetched"
"""Ends the name of the folder, beside the target, that holds what was fetched."""


@contextmanager
def local_copy(source: str, into: Path, on_stage: Callable[[str], None]) -> Iterator[Path]:
    """The backup DIR/NAME or URL/NAME as a directory; what was fetched is removed at the end. Raises LocalError."""
    if not is_url(source):
        yield Path(source).absolute()
        return
    into = into.absolute()
    check_unused(source, into)
    folder = into.with_name(into.name + FETCHED)
    on_stage("looking for the backup")
    backup = fetch_backup(source, folder, on_stage)
    try:
        yield backup
    finally:
        files.remove_tree(folder)
