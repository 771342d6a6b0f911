"""A table's folder on disk."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class LocalFolder(NamedTuple):
    """A folder of this machine, or one that all machines with Spark's tasks can reach. It can be pickled and sent to
    tasks."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def delta(self) -> tuple[str, dict[str, str] | None]:
        """The table's address and the options of its store, for deltalake."""
        return str(self.path), None

    @property
    def settings(self) -> dict[str, str | None] | None:
        """The properties of a new Delta table; None for the defaults."""
        return None

    def new_file(self, within: str, prefix: str, name: str) -> LocalFile:
        """Returns a new file in the sub-folder `within`, which it creates if necessary. Raises OSError."""
        return LocalFile(self.path / within, prefix, name)

    def has_files(self, day: str, ending: str = ".parquet") -> bool:
        """Returns True if there are files with that ending in sub-folders whose names begin with `day`."""
        return any(self.path.glob(f"{day}*/*{ending}"))

    def files(self, prefix: str) -> Iterator[list[str]]:
        """Yields, in one page, the paths of the files in direct sub-folders whose own names begin with `prefix`."""
        yield [str(path.relative_to(self.path)) for path in self.path.glob(f"*/{prefix}*")]

    def older(self, within: str, prefix: str, before_s: float) -> list[str]:
        """Returns the paths of the files in sub-folders whose names begin with `within`, whose own names begin with
        `prefix`, and that were last changed before a time (seconds since the epoch). Raises OSError."""
        found = []
        for path in self.path.glob(f"{within}*/{prefix}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before_s:
                    found.append(str(path.relative_to(self.path)))
        return found

    def remove(self, paths: Sequence[str]) -> None:
        """Removes files; one that is missing is no error. Raises OSError."""
        for path in paths:
            (self.path / path).unlink(missing_ok=True)


class LocalFile:
    """A file that is being written, under a name that readers of the folder ignore until it is complete."""

    def __init__(self, within: Path, prefix: str, name: str) -> None:
        self._within = within
        within.mkdir(parents=True, exist_ok=True)
        self._unique = uuid.uuid4().hex[:12]
        self._named = f"{prefix}{name}"
        self._fresh = within / f"_{prefix.removeprefix('_')}{self._unique}.tmp"

    @property
    def sink(self) -> Path:
        """The file into which pyarrow writes."""
        return self._fresh

    def finish(self, end: int) -> tuple[str, int]:
        """Returns the name of the complete file, which is on disk and has messages below offset `end`, and its size.
        Raises OSError."""
        named = self._within / f"{self._named}-{end}-{self._unique}.parquet"
        with self._fresh.open("rb") as written:
            os.fsync(written.fileno())
        self._fresh.rename(named)
        sync_folder(self._within)
        return named.name, named.stat().st_size

    def give_up(self) -> None:
        """Removes what was written."""
        self._fresh.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
