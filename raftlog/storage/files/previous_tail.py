"""The sealed record of the log's tail before a position: the whole of log/FIRST, and the head of each segment file.

`log_first` and `raftlog.storage.segments.segment` draw the bytes. Each of the two has its own magic number and its own
format versions.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, seal
from raftlog.types import LogTail

_REST = struct.Struct(">HHIQQQQIQI")
SIZE = HEAD_SIZE + _REST.size


class PreviousTail(NamedTuple):
    """The content of a record: its format version, its Raft group and the log's tail. `tail` must not be used if the
    reader does not know `version`."""

    version: int
    group_id: int
    tail: LogTail


def encode(magic: int, version: int, tail: LogTail, group_id: int) -> bytes:
    """Returns the bytes of the record of the kind `magic`, in format `version`, with the log's tail and its group."""
    rest = _REST.pack(
        version,
        0,
        group_id,
        tail.end_position,
        tail.index + 1,
        tail.term,
        tail.timestamp_ms,
        tail.header_crc,
        tail.segment_base,
        0,
    )
    return seal(magic, rest)


def decode(magic: int, data: bytes) -> PreviousTail | None:
    """Returns the content of a record of the kind `magic`; None if it is damaged or of another kind."""
    if len(data) != SIZE or not is_intact(magic, data):
        return None
    version, _, group_id, position, index, term, timestamp_ms, header_crc, segment_base, _ = _REST.unpack_from(
        data, HEAD_SIZE
    )
    return PreviousTail(version, group_id, LogTail(term, index - 1, position, header_crc, segment_base, timestamp_ms))
