"""Small files that are replaced as a whole and can be verified: a head with a CRC, then one msgpack map.

::

    0 magic u32 | 4 crc u32 of bytes 8..end | 8 format u16 | 10 reserved u16 | 12 group_id u32 | 16 msgpack map
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack

from raftlog.storage.files import sealed_record
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, refuse_unknown

_REST = struct.Struct(">HHI")
_MAP_AT = HEAD_SIZE + _REST.size


def seal(magic: int, fmt: int, group_id: int, content: dict[str, Any]) -> bytes:
    """Returns the bytes of a file with this content."""
    return sealed_record.seal(magic, _REST.pack(fmt, 0, group_id) + msgpack.packb(content))


def unseal(data: bytes, magic: int, fmt: int, group_id: int, path: Path | str) -> dict[str, Any] | None:
    """Returns the map in the bytes of a file; None if they are damaged, or of another group or kind. Raises
    CorruptLogError, which names `path`, if this version does not read the format."""
    if len(data) <= _MAP_AT or not is_intact(magic, data):
        return None
    found, _, group = _REST.unpack_from(data, HEAD_SIZE)
    refuse_unknown(path, found, fmt)
    try:
        content = msgpack.unpackb(data[_MAP_AT:], strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return None
    return content if group == group_id and isinstance(content, dict) else None
