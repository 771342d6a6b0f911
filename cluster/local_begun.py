"""Whether the first `raftmq up` of a directory got to its end: until then nothing in it is anybody's data.

DATA/BEGUN stands there from before the first file until all data directories are complete. No node starts meanwhile, so
whoever finds it (Ctrl-C, kill -9 or a power cut came between) may remove what was made and begin again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

BEGUN = "BEGUN"


@contextlib.contextmanager
def begun(data: Path) -> Iterator[None]:
    """Marks the directory while its content is made; the mark stays if that does not end well."""
    mark = data / BEGUN
    mark.touch()
    _sync(data)
    yield
    _sync(data)
    mark.unlink()
    _sync(data)


def undo_begun(data: Path) -> None:
    """Removes what an interrupted first start made."""
    if not (data / BEGUN).exists():
        return
    for home in data.glob("n[0-9]*"):
        shutil.rmtree(home)
    _sync(data)
    (data / BEGUN).unlink()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
