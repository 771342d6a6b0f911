"""Removes log and state that a snapshot has replaced: they are in trash/ and are never needed again.

Everything below the snapshot is committed and on the nodes that supplied it; everything else was never committed. A
disk that holds the log of days twice would be full. The reports beside them stay.
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
