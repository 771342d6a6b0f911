"""Small files that are replaced as a whole and prove that they are: a head with a CRC, then one msgpack map.

::

    0 magic u32 | 4 crc u32 of bytes 8..end | 8 format u16 | 10 reserved u16 | 12 group_id u32 | 16 msgpack map
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
from google_crc32c import value as crc32c

from raftlog.errors import CorruptLogError

_PREFIX = struct.Struct(">II")
_REST = struct.Struct(">HHI")
_HEAD_SIZE = _PREFIX.size + _REST.size


def seal(magic: int, fmt: int, group_id: int, content: dict[str, Any]) -> bytes:
    """The file's bytes."""
    rest: bytes = _REST.pack(fmt, 0, group_id) + msgpack.packb(content)
    return _PREFIX.pack(magic, crc32c(rest)) + rest


def unseal(data: bytes, magic: int, fmt: int, group_id: int, path: Path | str) -> dict[str, Any] | None:
    """The map; None if damaged, of another group or kind. Raises CorruptLogError for a newer format of `path`."""
    found, crc = _PREFIX.unpack_from(data) if len(data) > _HEAD_SIZE else (0, 0)
    if found != magic or crc != crc32c(data[_PREFIX.size :]):
        return None
    newer, _, group = _REST.unpack_from(data, _PREFIX.size)
    if newer > fmt:
        raise CorruptLogError(f"{path} has format {newer}, this RaftMQ reads {fmt}: start a newer RaftMQ")
    try:
        content = msgpack.unpackb(data[_HEAD_SIZE:], strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return None
    return content if group == group_id and isinstance(content, dict) else None
