"""Checks whether a registry process could start with its directory, without changing the directory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from cluster.registry.records import Records
from cluster.registry.store import Store
from raftlog.errors import RaftLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import OsFileSystem


class DirectoryReport(NamedTuple):
    """The result of a check."""

    directory: Path
    fault: str = ""
    """The reason why a process cannot start with the directory; "" if it can."""
    last: int = 0
    """The index of the last entry of the journal."""


def check_directory(directory: Path, cluster: bytes, node: int) -> DirectoryReport:
    """Opens the directory as the registry process would, but in a copy, because opening writes to the files. Blocking.
    No process may run with the directory: it would change the files while they are copied."""
    if not any(path.name != layout.LOCK for path in directory.glob("*")):
        return DirectoryReport(directory)
    with tempfile.TemporaryDirectory(prefix="raftmq-registry-") as folder:
        copy = Path(folder) / directory.name
        try:
            shutil.copytree(directory, copy)
            store = Store(OsFileSystem(), copy, cluster, node, Records(cluster))
        except (RaftLogError, OSError) as error:
            return DirectoryReport(directory, str(error).replace(str(copy), str(directory)))
        report = DirectoryReport(directory, "", store.journal.last.index)
        store.close()
        return report
