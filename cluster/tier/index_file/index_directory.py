"""DATA/index: one file for each closed segment, complete under its name or not there. Blocking; belongs to a lane."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raftlog.checksums import crc32c
from raftlog.storage import layout
from raftlog.storage.fs import File, FileSystem
from statemachine.index_file.index_format import file_name, parse_file_name

TEMPORARY = ".tmp"


class Span(NamedTuple):
    """The part of the log that a file covers: positions, `end` exclusive."""

    base: int
    end: int


class IndexDirectory:
    """See the module. Every method raises OSError."""

    def __init__(self, fs: FileSystem, data: Path) -> None:
        self._fs = fs
        self._path = data / layout.INDEX

    def sweep(self) -> dict[Span, int]:
        """Makes the directory, removes what a crash left of unfinished files; returns the sizes of the others."""
        self._fs.mkdir(self._path)
        found: dict[Span, int] = {}
        for name in self._fs.listdir(self._path):
            span = parse_file_name(name)
            if span is not None:
                found[Span(*span)] = self.open(Span(*span)).size()
            elif name.endswith(TEMPORARY):
                self._fs.unlink(self._path / name)
        return found

    def open(self, span: Span) -> File:
        """The file of a segment."""
        return self._fs.open(self._path / file_name(*span))

    def create(self, span: Span) -> NewIndexFile:
        """A file that has its name once it is complete."""
        return NewIndexFile(self._fs, self._path / file_name(*span))

    def remove(self, span: Span) -> None:
        """Removes the file, if it is there."""
        with suppress(FileNotFoundError):
            self._fs.unlink(self._path / file_name(*span))


class NewIndexFile:
    """A file while it is written, from front to back."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._temporary = path.with_name(path.name + TEMPORARY)
        self._file = fs.open(self._temporary, create=True)
        self._file.truncate(0)
        self.size = 0
        self.crc32c = 0
        """Of all that was written."""

    def write(self, data: bytes) -> None:
        """Appends."""
        self._file.pwritev([data], self.size)
        self.size += len(data)
        self.crc32c = crc32c(data, self.crc32c)

    def commit(self) -> None:
        """Gives the file its name; returns when bytes and name are on disk."""
        self._file.fdatasync()
        self._file.close()
        self._fs.rename(self._temporary, self._path)
        self._fs.fsync_dir(self._path.parent)

    def discard(self) -> None:
        """Removes it."""
        self._file.close()
        with suppress(OSError):  # the next start sweeps
            self._fs.unlink(self._temporary)
