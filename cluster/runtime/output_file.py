"""The file that the output of a node's process goes to, under `raftmq up`: replaced by a new one when it is full.

The process was started with it as stdout and stderr. So what Python, RocksDB and other libraries print gets there too,
and a new file takes its place under both descriptors at once. Older files are FILE.1, FILE.2, ..., the newest first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

OUTPUTS: Final = (1, 2)
"""The descriptors of stdout and stderr."""


class OutputFile:
    """Keeps the output within `files` files of about `bytes_max` bytes."""

    def __init__(self, path: Path, bytes_max: int, files: int, outputs: tuple[int, ...] = OUTPUTS) -> None:
        """`files` counts the present one too."""
        self._path = path
        self._bytes_max = bytes_max
        self._files = files
        self._outputs = outputs
        self._next_bytes = bytes_max

    def look(self) -> None:
        """Begins a new file if the present one is full. Called after each line. Does nothing if the output goes
        to another file. If the new file cannot be made, a later call tries again."""
        try:
            now = os.fstat(self._outputs[-1])
            if now.st_size < self._next_bytes:
                return
            self._next_bytes = now.st_size + max(1, self._bytes_max // 8)
            if not os.path.samestat(now, self._path.stat()):
                return
            self._begin(now.st_mode & 0o777)
            self._next_bytes = self._bytes_max
        except OSError:
            return  # the output goes on in the file that is open

    def _begin(self, mode: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._numbered(self._files - 1).unlink()
        for number in range(self._files - 2, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number).rename(self._numbered(number + 1))
        made = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
        try:
            for output in self._outputs:
                os.dup2(made, output)
        finally:
            os.close(made)

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")
