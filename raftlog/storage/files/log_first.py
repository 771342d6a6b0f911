"""log/FIRST: the position at which the log must begin. Without this file the log begins at GENESIS.

It is written before a trimmed file is unlinked, and again after an older file was put in front of the log. A start can
therefore tell a first file that was lost from one that was trimmed on purpose, and the content of its local header is
stored twice. Big-endian::

     0 magic u32 "RMQF" | 4 crc u32 of bytes 8..63 | 8 format u16 | 10 reserved u16 | 12 group_id u32
    16 first_position u64 | 24 first_index u64 | 32 previous_term u64 | 40 previous_timestamp_ms u64
    48 previous_header_crc u32 | 52 previous_segment_base u64 | 60 reserved u32
"""

from __future__ import annotations

from pathlib import Path

from raftlog.storage.files import layout, previous_tail
from raftlog.storage.files.fs import FileSystem, if_readable, read_file, write_file
from raftlog.storage.files.sealed_record import refuse_unknown
from raftlog.types import EMPTY_TAIL, LogTail

MAGIC = 0x524D5146
FORMAT = 10


def encode(previous: LogTail, group_id: int) -> bytes:
    """Returns the bytes of log/FIRST. `previous`: the log's tail before its first entry."""
    return previous_tail.encode(MAGIC, FORMAT, previous, group_id)


def decode(data: bytes, group_id: int) -> LogTail | None:
    """Returns the log's tail before its first entry from the bytes of FIRST; None if they are damaged or of another
    group. Raises CorruptLogError if this version does not read their format."""
    found = previous_tail.decode(MAGIC, data)
    if found is None:
        return None
    refuse_unknown(f"log/{layout.FIRST}", found.version, FORMAT)
    return found.tail if found.group_id == group_id else None


def load(fs: FileSystem, log: Path, group_id: int) -> LogTail | None:
    """Reads FIRST. Returns the log's tail before its first entry: EMPTY_TAIL if there is no such file, None if it is
    damaged or of another group. Raises OSError, and CorruptLogError if this version does not read its format."""
    path = log / layout.FIRST
    if not fs.exists(path):
        return EMPTY_TAIL
    return if_readable(lambda: decode(read_file(fs, path), group_id))


def save(fs: FileSystem, log: Path, previous: LogTail, group_id: int) -> None:
    """Writes FIRST with this content; returns when it is on disk. Raises OSError."""
    write_file(fs, log / layout.FIRST, encode(previous, group_id))
