"""Log and state that a snapshot has replaced: they lie in trash/, and nobody will ever want them back.

Everything below the snapshot is committed and held by the nodes that gave it, everything else was never committed; and
a disk that holds the log of days twice is full. The reports beside them stay and tell what was there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from raftlog.storage import layout
from raftlog.storage.fs import FileSystem

logger = logging.getLogger(__name__)


def remove_leftovers(fs: FileSystem, directory: Path, names: Iterable[str]) -> None:
    """Removes trash/<name> of each name that is there; `directory` is DATA. Blocking. What cannot be removed stays."""
    for name in names:
        path = directory / layout.TRASH / name.rpartition("/")[2]
        try:
            if name and fs.exists(path):
                fs.remove_tree(path)
                logger.info("%s is removed: a snapshot has replaced it", path)
        except OSError as error:
            logger.warning("%s cannot be removed: %s", path, error)
