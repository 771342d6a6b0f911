"""Keeps DATA/state/TABLES: the CRCs of the state's table files, each computed once when the file is new. It is a sealed
file with the magic "RMQT":

    {name: [size, crc32c]}

A table never changes, so a later difference from its CRC is damage. RocksDB checks a block when it reads the block. The
list also finds damage in blocks that are not read, and spares a checkpoint from reading every table again.
"""

from __future__ import annotations

from pathlib import Path

from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.storage.files.sealed_map import seal, unseal
from raftmq_wire.checksums import crc32c
from statemachine.rows.kv import KV, TABLE_SUFFIX

FILE = "TABLES"
MAGIC = 0x524D5154
FORMAT = 10

Crcs = dict[str, tuple[int, int]]
"""Table file -> (size, crc32c)."""


def load(fs: FileSystem, state: Path, group_id: int) -> Crcs | None:
    """Reads the list; returns None if it is damaged, {} if there is none yet. Raises CorruptLogError for a newer
    format."""
    path = state / FILE
    if not fs.exists(path):
        return {}
    content = unseal(read_file(fs, path), MAGIC, FORMAT, group_id, path)
    try:
        return None if content is None else {name: (size, crc) for name, (size, crc) in content.items()}
    except (TypeError, ValueError):
        return None


class Tables:
    """The list of an open state. Used by one thread at a time."""

    def __init__(self, fs: FileSystem, state: Path, group_id: int) -> None:
        """A damaged list is replaced by a new one at the next `refresh`, because it proves nothing any more. If fsck
        runs before that, it reports the damage."""
        self._fs = fs
        self._state = state
        self._group_id = group_id
        self.crcs: Crcs = load(fs, state, group_id) or {}

    def refresh(self, kv: KV) -> Crcs:
        """Adds new tables to the list and drops removed ones. Cheap if nothing changed. Raises OSError."""
        names = {name for name in self._fs.listdir(self._state) if name.endswith(TABLE_SUFFIX)}
        if names == self.crcs.keys():
            return self.crcs
        complete = names.intersection(kv.tables())  # a file that is being written has no CRC yet
        crcs = {name: crc for name, crc in self.crcs.items() if name in names}
        for name in sorted(complete - crcs.keys()):
            try:
                crcs[name] = file_crc(self._fs, self._state / name)
            except FileNotFoundError:
                continue  # the table was compacted away meanwhile
        if crcs != self.crcs:
            self.crcs = crcs
            write_file(self._fs, self._state / FILE, seal(MAGIC, FORMAT, self._group_id, dict(crcs)))
        return crcs


_READ_BYTES = 256 * 1024
"""Bytes that are read and summed at a time, few enough to delay no other thread for long."""


def file_crc(fs: FileSystem, path: Path) -> tuple[int, int]:
    """Returns (size, crc32c) of a file. Raises OSError."""
    file = fs.open(path)
    size = crc = 0
    while data := file.pread(_READ_BYTES, size):
        crc = crc32c(data, crc)
        size += len(data)
    file.close()
    return size, crc
