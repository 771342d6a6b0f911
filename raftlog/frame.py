"""The frame: a 64-byte header stamped once by the leader, then the payload; byte-identical on every replica.

All integers big-endian (docs/disk-format.md draws it)::

     0  magic         u32   "RMQ1"
     4  header_crc    u32   crc32c of bytes 8..63
     8  parent        u32   header_crc of the frame before; 0 for GENESIS
    12  payload_crc   u32   crc32c of the payload
    16  frame_length  u32   header and payload, bytes
    20  group_id      u32
    24  type          u8    EntryType
    25  version       u8    frame format, 10
    26  flags         u16   FLAG_ROLL
    28  reserved      u32   0
    32  term          u64
    40  index         u64
    48  position      u64   logical byte offset of this header
    56  timestamp_ms  u64   log time

`parent` chains the headers, and each header covers its payload's CRC: equal `header_crc` at an index means equal
prefixes, and a damaged payload never hides the next header. Pure functions: no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from raftlog.errors import FrameError
from raftlog.format_versions import remark
from raftlog.types import EMPTY_TAIL, FLAG_ROLL, Entry, EntryType, LogTail
from raftmq_wire.checksums import crc32c

MAGIC = 0x524D5131
VERSION = 10
HEADER_SIZE = 64
FRAME_LENGTH_MAX = 32 * 1024 * 1024
"""The longest frame, in bytes. A longer one is never written, and counts as damage when it is read."""

_HEADER = struct.Struct(">IIIIIIBBHIQQQQ")
_AFTER_CRC = struct.Struct(">IIIIBBHIQQQQ")
_PREFIX = struct.Struct(">II")


def make_entry(
    tail: LogTail,
    *,
    term: int,
    entry_type: int,
    payload: bytes,
    timestamp_ms: int,
    group_id: int,
    segment_size: int,
    roll: bool = False,
) -> Entry:
    """Makes the entry that follows `tail` and stamps its frame. A frame that would not fit into the segment file opens
    the next one, and so does one with `roll`.

    Raises FrameError if the payload is too long. `timestamp_ms` is raised to the tail's: log time never goes back.
    """
    length = HEADER_SIZE + len(payload)
    if length > FRAME_LENGTH_MAX:
        raise FrameError(f"a frame of {length} bytes is longer than the limit of {FRAME_LENGTH_MAX}")
    position = tail.end_position
    first = roll or tail.index < 0
    flags = FLAG_ROLL if first or position - tail.segment_base + length > segment_size else 0
    timestamp_ms = max(timestamp_ms, tail.timestamp_ms)
    index = tail.index + 1
    rest = _AFTER_CRC.pack(
        tail.header_crc,
        crc32c(payload),
        length,
        group_id,
        entry_type,
        VERSION,
        flags,
        0,
        term,
        index,
        position,
        timestamp_ms,
    )
    header_crc = crc32c(rest)
    return Entry(
        term,
        index,
        entry_type,
        flags,
        position,
        timestamp_ms,
        tail.header_crc,
        header_crc,
        _PREFIX.pack(MAGIC, header_crc) + rest,
        payload,
        position + length,
    )


def tail_after(tail: LogTail, entry: Entry) -> LogTail:
    """Returns the tail of the log once `entry` is appended."""
    base = entry.position if entry.flags & FLAG_ROLL else tail.segment_base
    return LogTail(entry.term, entry.index, entry.end_position, entry.header_crc, base, entry.timestamp_ms)


def check_follows(tail: LogTail, entry: Entry) -> None:
    """Raises FrameError unless `entry` is the successor of `tail`, as `follow` does."""
    follow(tail, entry)


def follow(tail: LogTail, entry: Entry) -> LogTail:
    """Returns the tail of the log once `entry` is appended, like `tail_after`. Raises FrameError unless `entry` is the
    successor of `tail`: next index, position and parent, and neither term nor time before those of `tail`."""
    if (
        entry.index != tail.index + 1
        or entry.position != tail.end_position
        or entry.parent != tail.header_crc
        or entry.term < tail.term
        or entry.timestamp_ms < tail.timestamp_ms
    ):
        raise FrameError(
            f"frame (index {entry.index}, term {entry.term}, position {entry.position}, parent {entry.parent:08x}) "
            f"does not follow (index {tail.index}, term {tail.term}, end {tail.end_position}, "
            f"header_crc {tail.header_crc:08x})"
        )
    base = entry.position if entry.flags & FLAG_ROLL else tail.segment_base
    return LogTail(entry.term, entry.index, entry.end_position, entry.header_crc, base, entry.timestamp_ms)


class FrameHeader:
    """The decoded header of a frame; its CRC is checked."""

    __slots__ = (
        "flags",
        "frame_length",
        "group_id",
        "header_crc",
        "index",
        "parent",
        "payload_crc",
        "position",
        "raw",
        "term",
        "timestamp_ms",
        "type",
    )

    def __init__(self, raw: bytes, group_id: int | None = None) -> None:
        """Decodes the 64 bytes of a header. Raises FrameError on a wrong length, magic, CRC, version, size, or
        group."""
        if len(raw) != HEADER_SIZE:
            raise FrameError(f"a frame header has {HEADER_SIZE} bytes, not {len(raw)}")
        (
            magic,
            self.header_crc,
            self.parent,
            self.payload_crc,
            self.frame_length,
            self.group_id,
            self.type,
            version,
            self.flags,
            _reserved,
            self.term,
            self.index,
            self.position,
            self.timestamp_ms,
        ) = _HEADER.unpack(raw)
        if magic != MAGIC:
            raise FrameError(f"bad magic {magic:08x}")
        if crc32c(raw[8:]) != self.header_crc:
            raise FrameError(f"header CRC mismatch (stored {self.header_crc:08x})")
        if version != VERSION:
            raise FrameError(remark("a frame", version, VERSION))
        if not HEADER_SIZE <= self.frame_length <= FRAME_LENGTH_MAX:
            raise FrameError(f"frame length {self.frame_length} is out of range")
        if group_id is not None and self.group_id != group_id:
            raise FrameError(f"frame of group {self.group_id} in the log of group {group_id}")
        self.raw = raw

    def wrong_payload(self) -> FrameError:
        """Returns the error for a payload that does not match the header's `payload_crc`."""
        return FrameError(f"payload CRC mismatch at index {self.index}, position {self.position}")

    def entry(self, payload: bytes) -> Entry:
        """Returns the entry with this header and `payload`. Raises FrameError on a wrong length or payload CRC."""
        if len(payload) != self.frame_length - HEADER_SIZE:
            raise FrameError(f"payload has {len(payload)} bytes, the header says {self.frame_length - HEADER_SIZE}")
        if crc32c(payload) != self.payload_crc:
            raise self.wrong_payload()
        return Entry(
            self.term,
            self.index,
            self.type,
            self.flags,
            self.position,
            self.timestamp_ms,
            self.parent,
            self.header_crc,
            self.raw,
            payload,
            self.position + self.frame_length,
        )


def headers_in(room: memoryview, group_id: int | None = None) -> Iterator[FrameHeader]:
    """Yields the headers of back-to-back frames. Both CRCs of each are checked, and no payload is copied. Raises
    FrameError like `decode_entries`."""
    at = 0
    end = len(room)
    while at < end:
        header = FrameHeader(bytes(room[at : at + HEADER_SIZE]), group_id)
        stop = at + header.frame_length
        if stop > end:
            raise FrameError(f"frame at byte {at} needs {header.frame_length} bytes, {end - at} are there")
        if crc32c(room[at + HEADER_SIZE : stop]) != header.payload_crc:
            raise header.wrong_payload()
        yield header
        at = stop


def decode_entries(data: bytes, group_id: int | None = None) -> Iterator[Entry]:
    """Yields the entries of back-to-back frames, both CRCs checked. Raises FrameError at the first bad or cut one."""
    at = 0
    end = len(data)
    while at < end:
        header = FrameHeader(data[at : at + HEADER_SIZE], group_id)
        stop = at + header.frame_length
        if stop > end:
            raise FrameError(f"frame at byte {at} needs {header.frame_length} bytes, {end - at} are there")
        yield header.entry(data[at + HEADER_SIZE : stop])
        at = stop


def genesis_entry(payload: bytes, *, timestamp_ms: int, group_id: int) -> Entry:
    """Makes the entry GENESIS, the frame at index 0, position 0, term 0; identical on every initial voter."""
    return make_entry(
        EMPTY_TAIL,
        term=0,
        entry_type=EntryType.GENESIS,
        payload=payload,
        timestamp_ms=timestamp_ms,
        group_id=group_id,
        segment_size=FRAME_LENGTH_MAX,
    )
