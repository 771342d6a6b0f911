"""Reads RocksDB's log files (WAL and MANIFEST) record by record, to find the byte that is wrong.

A file consists of blocks of 32 KiB; a record never crosses blocks, and a block's last bytes are zero if no header fits.
Little-endian::

    crc u32 (masked crc32c of what follows the length) | length u16 | type u8 | [log number u32] | data

RocksDB reports only that a file is damaged, and may mistake damage in a WAL for the end of the file. This module
reports the place of the damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from raftmq_wire.checksums import crc32c
from statemachine.rows.kv import KVCorruptError

BLOCK_SIZE = 32768
_HEADER = struct.Struct("<IHB")
_RECYCLABLE = frozenset({5, 6, 7, 8, 11, 131})
"""The record types whose header also contains the log number."""
_KNOWN = frozenset({*range(1, 12), 130, 131})
_CHECKSUM = "a record fails its checksum"
_PIECES = {1: "full", 2: "first", 3: "middle", 4: "last", 5: "full", 6: "first", 7: "middle", 8: "last"}


class BadRecord(NamedTuple):
    """A damaged record in one of RocksDB's log files."""

    offset: int
    size: int
    """The bytes from the record to the end of the block or file: the extent of the damage, as far as it is known."""
    why: str
    last: bool
    """True if no intact record follows in the file. A write that a power failure interrupted looks the same."""


def bad_records(data: bytes) -> list[BadRecord]:
    """Returns every damaged record of a log file. After each, reading continues at the next block."""
    found = []
    for block in range(0, len(data), BLOCK_SIZE):
        end = min(block + BLOCK_SIZE, len(data))
        bad = _bad_in_block(data, block, end)
        if bad is not None:
            found.append((bad[0], end - bad[0], bad[1], end))
    return [
        BadRecord(offset, size, why, number == len(found) - 1 and end == len(data))
        for number, (offset, size, why, end) in enumerate(found)
    ]


class Record(NamedTuple):
    """A complete record of a log file, put together from its pieces."""

    end: int
    """Offset in the file after the record's last byte."""
    data: bytes
    """The record's user data; empty for a record that describes the file (a type that `_PIECES` does not list)."""


def records(data: bytes) -> Iterator[Record]:
    """Yields the records of an intact log file, up to the first incomplete one. CRCs are not checked."""
    parts: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(data):
        left = BLOCK_SIZE - at % BLOCK_SIZE
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size + (4 if kind in _RECYCLABLE else 0)
        at = start + length
        if kind == 0 or at > len(data):
            return
        piece = _PIECES.get(kind)
        if piece is None:
            yield Record(at, b"")
            continue
        parts.append(data[start:at])
        if piece in ("full", "last"):
            yield Record(at, b"".join(parts))
            parts = []


def check_manifest(directory: Path) -> None:
    """Raises KVCorruptError if a record of the database's current MANIFEST is damaged. A MANIFEST that is missing or
    cut short at the end is left to RocksDB to report.

    RocksDB must not see a damaged MANIFEST: where a flipped bit has turned a record's type into that of a recycled log,
    which a MANIFEST never is, it reads the same bytes again without end, both in `list_cf` and when it opens.
    """
    try:
        manifest = directory / (directory / "CURRENT").read_text().rstrip("\n")
        data = manifest.read_bytes()
    except (OSError, ValueError):
        return
    for bad in bad_records(data):
        kind = data[bad.offset + 6] if bad.offset + 6 < len(data) else 0
        cut_short = bad.last and bad.why != _CHECKSUM and kind not in _RECYCLABLE
        if not cut_short:
            raise KVCorruptError(f"{manifest}: {bad.why} at byte {bad.offset}")


def _bad_in_block(data: bytes, at: int, end: int) -> tuple[int, str] | None:
    while end - at >= _HEADER.size:
        crc, length, kind = _HEADER.unpack_from(data, at)
        if kind == 0 and length == 0 and not any(data[at:end]):
            return None  # the rest of the block was never written
        start = at + _HEADER.size - 1
        stop = start + 1 + length + (4 if kind in _RECYCLABLE else 0)
        if kind not in _KNOWN:
            return at, f"a record of type {kind}, which does not exist"
        if stop > end:
            return at, f"a record of {length} bytes ends beyond its block or the file"
        if _unmask(crc) != crc32c(data[start:stop]):
            return at, _CHECKSUM
        at = stop
    if any(data[at:end]):
        return at, "bytes that should be zero are not"
    return None


def _unmask(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF
