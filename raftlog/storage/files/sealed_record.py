"""The common head of every small file and slot on disk: its kind, and a CRC of all that follows.

::

    0 magic u32 | 4 crc u32 of bytes 8..end | 8 format u16 | ...
"""

from __future__ import annotations

import struct
from pathlib import Path

from raftlog.errors import CorruptLogError
from raftlog.format_versions import is_known, refusal
from raftmq_wire.checksums import crc32c

_HEAD = struct.Struct(">II")
HEAD_SIZE = _HEAD.size


def seal(magic: int, rest: bytes) -> bytes:
    """Returns the bytes of a record: its head, then `rest`."""
    return _HEAD.pack(magic, crc32c(rest)) + rest


def is_intact(magic: int, data: bytes) -> bool:
    """Returns True if `data`, all of it, is an intact sealed record of this kind."""
    return len(data) >= HEAD_SIZE and _HEAD.unpack_from(data) == (magic, crc32c(data[HEAD_SIZE:]))


def refuse_unknown(what: Path | str, found: int, known: int) -> None:
    """Raises CorruptLogError if `what` is of a format that this version does not read: newer, or before 0.1.0."""
    if not is_known(found, known):
        raise CorruptLogError(refusal(what, found, known))
