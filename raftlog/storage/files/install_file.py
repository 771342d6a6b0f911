"""DATA/INSTALL: the decision that the log in DATA/install replaces the one in DATA/log. Big-endian::

 0 magic u32 "RMQN" | 4 crc u32 of bytes 8..end of file | 8 format u16 | 10 reserved u16 | 12 group_id u32
16 msgpack map: checkpoint, first_index, first_position, term, index, end_position, header_crc, decided_ms
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.storage.files import layout
from raftlog.storage.files.sealed_map import seal, unseal
from raftlog.types import EntryId

MAGIC = 0x524D514E
FORMAT = 10


class Install(NamedTuple):
    """The decision to install a log: its extent, up to and including the last entry of a checkpoint."""

    checkpoint: str
    first_index: int
    first_position: int
    last: EntryId
    """The last entry of the log to install. It is committed, because a peer has applied it."""
    end_position: int
    header_crc: int
    """CRC of the last entry's header."""
    decided_ms: int = 0


def encode(install: Install, group_id: int) -> bytes:
    """Returns the bytes of DATA/INSTALL."""
    fields = {
        "checkpoint": install.checkpoint,
        "first_index": install.first_index,
        "first_position": install.first_position,
        "term": install.last.term,
        "index": install.last.index,
        "end_position": install.end_position,
        "header_crc": install.header_crc,
        "decided_ms": install.decided_ms,
    }
    return seal(MAGIC, FORMAT, group_id, fields)


def decode(data: bytes, group_id: int) -> Install | None:
    """Reads the bytes of DATA/INSTALL; returns None if they are damaged or of another group. Raises CorruptLogError if
    this version does not read their format."""
    fields = unseal(data, MAGIC, FORMAT, group_id, layout.INSTALL)
    if fields is None:
        return None
    try:
        return Install(
            str(fields["checkpoint"]),
            int(fields["first_index"]),
            int(fields["first_position"]),
            EntryId(int(fields["term"]), int(fields["index"])),
            int(fields["end_position"]),
            int(fields["header_crc"]),
            int(fields["decided_ms"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
