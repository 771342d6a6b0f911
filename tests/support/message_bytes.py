"""The other directions of what `raftmq_wire.message_format` writes or reads, which only tests need."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from raftmq_wire.message_format import BatchItem

_BATCH_HEAD = struct.Struct(">iiiii")


def build_properties(properties: Mapping[str, str]) -> bytes:
    """The stored form, as clients send it."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def split_batch(data: bytes) -> Iterator[BatchItem]:
    """The messages of a sound batch body, as a broker reads them: magic and CRC are ignored."""
    at = 0
    while at < len(data):
        size, _magic, _crc, flag, body_length = _BATCH_HEAD.unpack_from(data, at)
        end = at + _BATCH_HEAD.size + body_length
        yield BatchItem(flag, data[at + _BATCH_HEAD.size : end], data[end + 2 : at + size])
        at += size
