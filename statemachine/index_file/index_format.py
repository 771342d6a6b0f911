"""The bytes of an index file (docs/index-file.md, docs/adr/0062); all integers big-endian. ::

    file     = head | items | queues | keys | footer | trailer
    head     = "RAFTMQIX" | version u32 | 00000000                                    16 bytes
    section  = rows back to back, cut into blocks of 65,536 bytes; the last is shorter, none is empty
    items    = item of the consume queue, 32 bytes (statemachine/payload.py): the queues one after the other, in the
               order of the section `queues`
    queues   = topic_id u32 | queue_id u32 | first_offset u64 | first_item u64 | count u32 | 00000000     32 bytes
               ascending by topic and queue; `first_item` counts the items of the file before it
    keys     = hash u32 | offset u32, 8 bytes, ascending; the message lies at position base + offset
    footer   = meta (120 bytes) | 3 section entries (32 bytes) | block entries (16 bytes)
    meta     = cluster_id 16 bytes | base u64 | end u64 | first_index u64 | last_index u64 | last_term u64 |
               first_ms u64 | last_ms u64 | messages u64 | queues u64 | keys u64 | group_id u32 | last_crc u32 |
               writer u32 | flags u32 | 00.. (8 bytes)
    section entry = name, 8 bytes, 00 at the end | row size u32 | blocks u32 | offset u64 | length u64
    block entry   = lowest u64 | length u32 | crc32c u32; of all sections, in the order of the file
               `lowest` is what the first row of the block has: number of the item; topic_id << 32 | queue_id; hash
    trailer  = footer length u32 | crc32c of the footer u32 | file length u64 | version u32 | crc32c of the 20 bytes
               before u32 | "XIQMTFAR"                                                32 bytes

Every byte is covered: those of a block, of the footer and of the trailer by a CRC-32C, those of the head are constant.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from statemachine.payload import ITEM

VERSION = 10
WRITER = 1
"""The version of the code that writes index files, for people. It is raised when the same log leads to other bytes than
before."""

BLOCK_SIZE = 64 * 1024
"""The size of a block in bytes, a multiple of every row's size."""
SEGMENT_BYTES_MAX = 1 << 32
"""The most bytes of a segment, because a key's offset in its segment has 32 bits."""
FOOTER_SIZE_MAX = 16 << 20
"""The most bytes of a footer that a reader accepts. A segment of 1 GiB with a message in every 100 bytes needs 106 KiB.
"""
HEAD_MAGIC, MAGIC = b"RAFTMQIX", b"XIQMTFAR"
HEAD_FORM = struct.Struct(">8sI4x")
META_FORM = struct.Struct(">16sQQQQQQQQQQIIII8x")
SECTION_FORM = struct.Struct(">8sIIQQ")
BLOCK_FORM = struct.Struct(">QII")
TRAILER_FORM = struct.Struct(">IIQI")
"""The part of the trailer that the trailer's CRC covers. The CRC and the magic bytes follow it."""
TRAILER_SIZE = TRAILER_FORM.size + 4 + len(MAGIC)
QUEUE_FORM = struct.Struct(">IIQQI4x")
KEY_FORM = struct.Struct(">II")
HEAD = HEAD_FORM.pack(HEAD_MAGIC, VERSION)

ITEMS, QUEUES, KEYS = b"items", b"queues", b"keys"
ROW_SIZES = {ITEMS: ITEM.size, QUEUES: QUEUE_FORM.size, KEYS: KEY_FORM.size}
"""The sections in the order of the file, each with the size of its rows in bytes."""


class IndexFileError(ValueError):
    """The bytes are not those of an intact index file: damaged, cut short, or of another version. The text says
    which."""


class IndexMeta(NamedTuple):
    """The first part of an index file's footer: it describes the file and its segment, the log from `base` to `end`."""

    cluster_id: UUID
    base: int
    end: int
    first_index: int
    last_index: int
    last_term: int
    first_ms: int
    """Log time of the segment's first entry; `last_ms` is the log time of its last entry."""
    last_ms: int
    messages: int
    """The number of items of all queues. Messages that wait for their due time or the end of their transaction are in
    no queue and do not count."""
    queues: int
    keys: int
    group_id: int
    last_crc: int
    """The `header_crc` of the segment's last entry. If it is equal in two files, all entries up to there are equal."""
    writer: int = WRITER
    flags: int = 0
    """Reserved for flags; none are defined."""


class QueueRun(NamedTuple):
    """The messages of one queue in the segment: `count` items of the file, beginning with item `first_item`."""

    topic_id: int
    queue_id: int
    first_offset: int
    first_item: int
    count: int  # type: ignore[assignment]


class Block(NamedTuple):
    """One block of a section; `at` is its byte offset in the file."""

    at: int
    length: int
    crc32c: int
    lowest: int


class Section(NamedTuple):
    """One section of the file: its name, its byte offset `at`, its length in bytes, and its blocks, ascending."""

    name: bytes
    at: int
    length: int
    blocks: tuple[Block, ...]


def pack_meta(meta: IndexMeta) -> bytes:
    """Packs the first part of an index file's footer."""
    return META_FORM.pack(meta.cluster_id.bytes, *meta[1:])


def unpack_meta(footer: bytes) -> IndexMeta:
    """Unpacks the first part of an index file's footer."""
    cluster_id, *numbers = META_FORM.unpack_from(footer)
    return IndexMeta(UUID(bytes=cluster_id), *numbers)


def key_row(hashed: int, offset: int) -> int:
    """Returns a row of the section `keys` as one number: the hash in the upper 32 bits, the offset in the lower.
    Numbers are cheap to sort and pack by the thousand."""
    return hashed << 32 | offset


def pack_keys(rows: Sequence[int]) -> bytes:
    """Packs rows of the section `keys`, as `key_row` makes them, in the order given."""
    return struct.pack(f">{len(rows)}Q", *rows)


def file_name(base: int, end: int) -> str:
    """Returns the name of the index file for the log from `base` to `end`. The name is the same in DATA/index and below
    index/ in an object store, where the first 16 digits of the file's XXH3 come before the suffix."""
    return f"{base:020d}-{end:020d}{SUFFIX}"


SUFFIX = ".idx"


def parse_file_name(name: str) -> tuple[int, int] | None:
    """Returns (base, end) of an index file's name; None if the name has another form."""
    base, dash, end = name.removesuffix(SUFFIX).partition("-")
    digits = base + end
    if not (dash and name.endswith(SUFFIX) and len(base) == len(end) == 20 and digits.isascii() and digits.isdigit()):
        return None
    return int(base), int(end)
