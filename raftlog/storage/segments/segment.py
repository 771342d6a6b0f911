"""The format of a segment file: a local header of 4096 bytes, then frames at file offset 4096 + (position - base).

Local header (big-endian; docs/disk-format.md draws it). It is local: never shipped, never compared::

    sector 0, offset 0      what the file is, and the frame before it
         0 magic u32 "RMQS" | 4 crc u32 of bytes 8..63 | 8 format u16 | 10 reserved u16 | 12 group_id u32
        16 base_position u64 | 24 base_index u64 | 32 previous_term u64 | 40 previous_timestamp_ms u64
        48 previous_header_crc u32 | 52 previous_segment_base u64 | 60 reserved u32
    sector 1, offset 512    sync mark of even seq
    sector 2, offset 1024   sync mark of odd seq
         0 magic u32 "RMQP" | 4 crc u32 of bytes 8..47 | 8 seq u64 | 16 end_position u64 | 24 next_index u64
        32 term u64 | 40 header_crc u32 | 44 reserved u32

A sync mark means that every frame below `end_position` was on disk before this mark was written. It is written with the
*next* batch, under the same fdatasync, so it costs no sync; a torn mark leaves the other, older one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError
from raftlog.storage.files import previous_tail
from raftlog.storage.files.fs import File
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, refuse_unknown, seal
from raftlog.storage.segments.segment_index import IndexHead, SegmentIndex
from raftlog.types import LogTail

LOCAL_HEADER_SIZE = 4096
MARK_OFFSETS = (512, 1024)
FORMAT = 10
_HEADER_MAGIC = 0x524D5153
_MARK_MAGIC = 0x524D5150
_MARK_REST = struct.Struct(">QQQQII")
MARK_SIZE = HEAD_SIZE + _MARK_REST.size
HEADER_BYTES = previous_tail.SIZE


class SyncMark(NamedTuple):
    """A sync mark: all frames below `end_position` are known to be on this replica's disk; it also names the last of
    them."""

    seq: int
    end_position: int
    next_index: int
    """Index of the entry whose frame will begin at `end_position`."""
    term: int
    header_crc: int


class SegmentHeader(NamedTuple):
    """The content of a segment file's sector 0. `previous` is the log's tail just before the first frame of this
    file."""

    group_id: int
    base_position: int
    base_index: int
    previous: LogTail


def mark_of(tail: LogTail, seq: int) -> SyncMark:
    """Returns the sync mark for everything up to `tail`, with the number `seq`."""
    return SyncMark(seq, tail.end_position, tail.index + 1, tail.term, tail.header_crc)


def encode_mark(mark: SyncMark) -> bytes:
    """Returns the 48 bytes of a sync mark, to be written at offset `MARK_OFFSETS[mark.seq % 2]`."""
    rest = _MARK_REST.pack(mark.seq, mark.end_position, mark.next_index, mark.term, mark.header_crc, 0)
    return seal(_MARK_MAGIC, rest)


def decode_mark(data: bytes) -> SyncMark | None:
    """Returns the sync mark in these bytes; None if they are damaged."""
    if len(data) != MARK_SIZE or not is_intact(_MARK_MAGIC, data):
        return None
    seq, end_position, next_index, term, header_crc, _ = _MARK_REST.unpack_from(data, HEAD_SIZE)
    return SyncMark(seq, end_position, next_index, term, header_crc)


def encode_header(previous: LogTail, group_id: int) -> bytes:
    """Returns the first 4096 bytes of a new file: the local header, and both sync marks, which say that everything
    before this file is on disk."""
    page = bytearray(LOCAL_HEADER_SIZE)
    page[:HEADER_BYTES] = previous_tail.encode(_HEADER_MAGIC, FORMAT, previous, group_id)
    for seq in (0, 1):
        page[MARK_OFFSETS[seq] : MARK_OFFSETS[seq] + MARK_SIZE] = encode_mark(mark_of(previous, seq))
    return bytes(page)


def header_is_damaged(data: bytes) -> bool:
    """Returns True if sector 0 is not an intact local header of any format."""
    return len(data) < HEADER_BYTES or not is_intact(_HEADER_MAGIC, data[:HEADER_BYTES])


def group_in_header(data: bytes) -> int | None:
    """Returns the Raft group that a local header names; None if it is damaged."""
    return None if header_is_damaged(data) else int.from_bytes(data[12:16])


def decode_header(data: bytes, path: Path, group_id: int) -> SegmentHeader:
    """Reads sector 0 of a segment file. Raises CorruptLogError, which names the file, if it is damaged, of another
    group, or of a format that this version does not read."""
    found = previous_tail.decode(_HEADER_MAGIC, data[:HEADER_BYTES])
    if found is None:
        raise CorruptLogError(f"local header of {path} is damaged: restore this file from a peer or a backup")
    version, group, previous = found
    refuse_unknown(path, version, FORMAT)
    if group != group_id:
        raise CorruptLogError(f"{path} belongs to group {group}, not {group_id}: a file of another log was put here")
    return SegmentHeader(group, previous.end_position, previous.index + 1, previous)


def newest_mark(page: bytes) -> SyncMark | None:
    """Returns the newest good sync mark of a local header; None if both are damaged."""
    marks = [decode_mark(page[offset : offset + MARK_SIZE]) for offset in MARK_OFFSETS]
    good = [mark for mark in marks if mark is not None]
    return max(good, default=None)


def newest_seq(file: File) -> int:
    """Returns the sequence number that the next mark of this file must exceed."""
    mark = newest_mark(file.pread(LOCAL_HEADER_SIZE, 0))
    return mark.seq if mark is not None else 1


class Segment:
    """One segment file of the open log. Compared and hashed by identity.

    Invariant: frames are dense from `header.base_position`; a sealed segment ends where the next one begins.
    """

    __slots__ = ("file", "header", "index", "members", "path", "terms")

    def __init__(self, path: Path, header: SegmentHeader) -> None:
        self.path = path
        self.header = header
        self.file: File | None = None
        """The open file of the active segment, for the life of the log; None for sealed ones, which are opened on
        demand."""
        self.index: SegmentIndex | None = None
        """The segment's index. The active segment has it in memory; sealed ones have None, and their sidecar is loaded
        on demand."""
        self.terms: list[tuple[int, int]] = []
        """(first index, term) of each run of entries of one term in this file. While the segment is appended to, this
        is the very list that its `SegmentIndex` extends."""
        self.members: list[int] = []
        """Indexes of the MEMBERSHIP entries in this file; the active index's own list while active."""

    def tell(self, index: SegmentIndex | IndexHead) -> None:
        """Takes over the term ranges and MEMBERSHIP indexes of the segment index `index`."""
        self.terms, self.members = index.terms, index.members

    @property
    def base(self) -> int:
        """Position of the segment's first frame."""
        return self.header.base_position

    def file_offset(self, position: int) -> int:
        """Returns the offset in the file of the log position `position`."""
        return LOCAL_HEADER_SIZE + position - self.header.base_position
