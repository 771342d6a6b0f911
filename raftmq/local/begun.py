"""The mark of a first `raftmq up` that has not got to its end: until then nothing in its directory is anybody's data.

DATA/BEGUN stands there from before the first file until all data directories are complete. No node starts meanwhile, so
a command that finds it (Ctrl-C, kill -9 or a power cut came between) may remove what was made and begin again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from cluster.config.local_layout import sync_folder

BEGUN = "BEGUN"


@contextlib.contextmanager
def begun(data: Path) -> Iterator[None]:
    """Marks the directory while its content is made; the mark stays if that does not end well."""
    mark = data / BEGUN
    mark.touch()
    sync_folder(data)
    yield
    sync_folder(data)
    mark.unlink()
    sync_folder(data)


def undo_begun(data: Path) -> None:
    """Removes what an interrupted first start made."""
    if not (data / BEGUN).exists():
        return
    for home in data.glob("n[0-9]*"):
        shutil.rmtree(home)
    sync_folder(data)
    (data / BEGUN).unlink()
