"""The sources of a restore: a directory, an object store, or a tier from which a backup is made first.

Whatever is fetched lies in a folder beside the target, and goes when the restore ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cluster.backup import files
from cluster.backup.from_tier import Rebuilt, Wish, rebuild
from cluster.backup.remote import fetch_backup, is_url
from cluster.backup.replay import Target
from cluster.backup.restore import check_unused, read_backup
from raftmq_wire.errors import ExitCode, LocalError

FETCHED, BEGUN = ".fetched", ".begun"
"""End the names of folders beside the target: of the backup that is restored, and of the one that it was made from."""


class Source(NamedTuple):
    """The options of a restore that name its source."""

    backup: str | None = None
    """DIR/NAME or URL/NAME."""
    tier: str | None = None
    """URL of a tier."""
    cluster_id: str | None = None
    target: Target = Target()


class Found(NamedTuple):
    """The backup that is to be restored."""

    path: Path
    rebuilt: Rebuilt | None = None
    """The backup as it was made from a tier; None if it was there already."""


@contextmanager
def found(source: Source, into: Path, now_ms: int, on_stage: Callable[[str], None]) -> Iterator[Found]:
    """The backup as a directory; what was fetched is removed at the end. Raises LocalError."""
    into = into.absolute()
    check_unused(source.backup or source.tier or "", into)
    if source.tier is None:
        if source.target != Target():
            raise LocalError(
                "a backup alone is restored as it is",
                f"{source.target} is reached by applying the log after it, which lies in the tier",
                f"raftmq restore --from {source.backup} --from-tier URL --into {into}    (URL: tier.url)",
                ExitCode.USAGE,
            )
        with local_copy(source.backup or "", into, FETCHED, on_stage) as path:
            yield Found(path)
        return
    with _to_begin_with(source.backup, into, on_stage) as path:
        wish = Wish(source.tier, source.target, source.cluster_id, path)
        made = rebuild(wish, into.with_name(into.name + FETCHED), now_ms, on_stage)
    try:
        yield Found(made.path, made)
    finally:
        files.remove_tree(made.path)


@contextmanager
def _to_begin_with(backup: str | None, into: Path, on_stage: Callable[[str], None]) -> Iterator[Path | None]:
    if backup is None:
        yield None
        return
    with local_copy(backup, into, BEGUN, on_stage) as path:
        on_stage("reading the backup")
        read_backup(path)
        yield path


@contextmanager
def local_copy(source: str, into: Path, suffix: str, on_stage: Callable[[str], None]) -> Iterator[Path]:
    """The backup DIR/NAME or URL/NAME as a directory. Raises LocalError."""
    if not is_url(source):
        yield Path(source).absolute()
        return
    folder = into.with_name(into.name + suffix)
    on_stage("looking for the backup")
    backup = fetch_backup(source, folder, on_stage)
    try:
        yield backup
    finally:
        files.remove_tree(folder)
