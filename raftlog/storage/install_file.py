"""DATA/INSTALL: the decision that the log in DATA/install takes the place of the one in DATA/log. Big-endian::

 0 magic u32 "RMQN" | 4 crc u32 of bytes 8..end of file | 8 format u16 | 10 reserved u16 | 12 group_id u32
16 msgpack map: checkpoint, first_index, first_position, term, index, end_position, header_crc, decided_ms
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgpack
from google_crc32c import value as crc32c

from raftlog.errors import CorruptLogError
from raftlog.types import EntryId

MAGIC = 0x524D514E
FORMAT = 1
_PREFIX = struct.Struct(">II")
_REST = struct.Struct(">HHI")
_HEAD_SIZE = _PREFIX.size + _REST.size


class Install(NamedTuple):
    """What is to be installed: a log up to and with the last entry of a checkpoint."""

    checkpoint: str
    first_index: int
    first_position: int
    last: EntryId
    """Its last entry; committed, because a peer has applied it."""
    end_position: int
    header_crc: int
    """Of the last entry."""
    decided_ms: int = 0


def encode(install: Install, group_id: int) -> bytes:
    """The file's bytes."""
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
    rest: bytes = _REST.pack(FORMAT, 0, group_id) + msgpack.packb(fields)
    return _PREFIX.pack(MAGIC, crc32c(rest)) + rest


def decode(data: bytes, group_id: int) -> Install | None:
    """What the file says; None if damaged or of another group. Raises CorruptLogError if of a newer format."""
    magic, crc = _PREFIX.unpack_from(data) if len(data) > _HEAD_SIZE else (0, 0)
    if magic != MAGIC or crc != crc32c(data[_PREFIX.size :]):
        return None
    fmt, _, group = _REST.unpack_from(data, _PREFIX.size)
    if fmt > FORMAT:
        raise CorruptLogError(f"INSTALL has format {fmt}, this RaftMQ reads {FORMAT}: start a newer RaftMQ")
    try:
        fields = msgpack.unpackb(data[_HEAD_SIZE:])
        install = Install(
            str(fields["checkpoint"]), int(fields["first_index"]), int(fields["first_position"]),
            EntryId(int(fields["term"]), int(fields["index"])), int(fields["end_position"]), int(fields["header_crc"]),
            int(fields["decided_ms"]),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None
    return install if group == group_id else None
