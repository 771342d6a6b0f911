"""The index of one segment: the position of each of its entries, and its terms. On disk it is the sidecar `<base>.idx`.

In memory: four bytes per entry. Sidecar (big-endian, docs/disk-format.md)::

     0 magic u32 "RMQX" | 4 head_crc u32 of bytes 8.. up to the offsets | 8 format u16 | 10 reserved u16
    12 group_id u32 | 16 base_position u64 | 24 base_index u64
    32 end_position u64 | 40 last_term u64 | 48 last_index u64 | 56 last_timestamp_ms u64
    64 last_header_crc u32 | 68 term_count u32 | 72 entry_count u32 | 76 offsets_crc u32
    80 member_count u32 | 84 reserved u32
    88 term_count times: first_index u64, term u64
       member_count times: index u64 of a MEMBERSHIP entry
       entry_count times: offset u32 of the entry's frame from base_position

A sidecar is a cache: it counts only if its end equals that in the next segment (or CLEAN), else this one segment is
scanned again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from typing import NamedTuple

from raftlog.errors import FrameError
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, seal
from raftlog.types import EntryType, LogTail
from raftmq_wire.checksums import crc32c

FORMAT = 10
_MAGIC = 0x524D5158
_REST = struct.Struct(">HHIQQQQQQIIIIII")
_TERM = struct.Struct(">QQ")
_MEMBER = struct.Struct(">Q")
_FIXED_SIZE = HEAD_SIZE + _REST.size
HEAD_READ = 4096
"""The number of bytes that nearly always contain the sidecar's head and all term ranges."""


class SegmentIndex:
    """The frame offsets and term ranges of one segment. One thread adds entries; other threads may read entries below
    the log's published tail."""

    __slots__ = ("base", "base_index", "members", "offsets", "terms")

    def __init__(self, base: int, base_index: int) -> None:
        self.base = base
        self.base_index = base_index
        self.offsets = array("I")
        """The offsets of the frames. Invariant: offsets[i] is where entry base_index + i begins, counted from `base`;
        strictly ascending."""
        self.terms: list[tuple[int, int]] = []
        """(first index, term) of each run of entries with one term; both ascending."""
        self.members: list[int] = []
        """Indexes of the MEMBERSHIP entries that are known, ascending."""

    def add(self, position: int, term: int, entry_type: int = -1) -> None:
        """Adds the next entry to the index."""
        if entry_type == EntryType.MEMBERSHIP:
            self.members.append(self.base_index + len(self.offsets))
        if not self.terms or self.terms[-1][1] != term:
            self.terms.append((self.base_index + len(self.offsets), term))
        self.offsets.append(position - self.base)

    def position(self, index: int) -> int:
        """Returns the position of the entry's frame. Raises IndexError above the last entry."""
        return self.base + self.offsets[index - self.base_index]

    def term(self, index: int) -> int:
        """Returns the term of the entry."""
        return self.terms[bisect_right(self.terms, index, key=_first) - 1][1]

    def cut(self, index: int) -> None:
        """Removes the entries at `index` and above."""
        del self.offsets[index - self.base_index :]
        while self.terms and self.terms[-1][0] >= index:
            self.terms.pop()
        while self.members and self.members[-1] >= index:
            self.members.pop()

    def next_below(self, position: int) -> int:
        """Returns the largest index whose frame begins at or below `position`; `base_index - 1` if there is none."""
        return self.base_index + bisect_right(self.offsets, position - self.base) - 1


class IndexHead(NamedTuple):
    """The part of a sidecar that is read at a start: everything but the offsets. `tail` is the log's tail after the
    segment."""

    group_id: int
    base: int
    base_index: int
    tail: LogTail
    terms: list[tuple[int, int]]
    members: list[int]
    entry_count: int
    offsets_crc: int
    offsets_at: int


def encode_index(index: SegmentIndex, tail: LogTail, group_id: int) -> list[bytes]:
    """Returns the bytes of a sidecar, in parts. `tail`: the log's tail after the segment."""
    offsets = _big_endian(index.offsets).tobytes()
    terms = b"".join([_TERM.pack(*pair) for pair in index.terms])
    members = b"".join([_MEMBER.pack(number) for number in index.members])
    fixed = _REST.pack(
        FORMAT,
        0,
        group_id,
        index.base,
        index.base_index,
        tail.end_position,
        tail.term,
        tail.index,
        tail.timestamp_ms,
        tail.header_crc,
        len(index.terms),
        len(index.offsets),
        crc32c(offsets),
        len(index.members),
        0,
    )
    return [seal(_MAGIC, fixed + terms + members), offsets]


def decode_head(data: bytes, group_id: int) -> IndexHead:
    """Reads everything of a sidecar but the offsets. Raises FrameError if it is damaged, cut, or of another format or
    group."""
    if len(data) < _FIXED_SIZE:
        raise FrameError("index sidecar is cut")
    (
        fmt,
        _,
        group,
        base,
        base_index,
        end,
        term,
        last,
        timestamp_ms,
        header_crc,
        term_count,
        count,
        offsets_crc,
        member_count,
        _,
    ) = _REST.unpack_from(data, HEAD_SIZE)
    terms_end = _FIXED_SIZE + term_count * _TERM.size
    stop = terms_end + member_count * _MEMBER.size
    if fmt != FORMAT or group != group_id or len(data) < stop or not is_intact(_MAGIC, data[:stop]):
        raise FrameError("index sidecar head is damaged or of another format")
    terms = list(_TERM.iter_unpack(data[_FIXED_SIZE:terms_end]))
    members = [number for (number,) in _MEMBER.iter_unpack(data[terms_end:stop])]
    tail = LogTail(term, last, end, header_crc, base, timestamp_ms)
    return IndexHead(group, base, base_index, tail, terms, members, count, offsets_crc, stop)


def decode_index(data: bytes, group_id: int) -> tuple[IndexHead, SegmentIndex]:
    """Decodes an index sidecar. Raises FrameError if anything in it is damaged."""
    head = decode_head(data, group_id)
    raw = data[head.offsets_at :]
    if len(raw) != 4 * head.entry_count or crc32c(raw) != head.offsets_crc:
        raise FrameError("index sidecar offsets are damaged")
    index = SegmentIndex(head.base, head.base_index)
    index.offsets.frombytes(raw)
    index.offsets = _big_endian(index.offsets)
    index.terms, index.members = head.terms, head.members
    return head, index


def _first(run: tuple[int, int]) -> int:
    return run[0]


def _big_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        return values
    swapped = array("I", values)
    swapped.byteswap()
    return swapped
