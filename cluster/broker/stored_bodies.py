"""What a pull does for each message, and nothing else: rows of the queue and bytes of the log become the answer's body.

Pure, without a call of ours per message: the way to make it cheaper is to compile it.
"""

from __future__ import annotations

import struct
from itertools import compress
from operator import add, ne

import google_crc32c

_POSITION_SIZE_CRC = struct.Struct(">QII16x")
"""Of a packed item (`statemachine.payload.ITEM`)."""

_crc32c = google_crc32c.value


def body_of(items: bytes, block: bytes, first: int) -> tuple[bytes, int]:
    """The stored messages of the packed `items`, one behind the other, and how many these are.

    `block` is the log from position `first` on. Messages end before the first that is not wholly in the block, or whose
    bytes do not match its CRC: nothing is in the body that was not checked.
    """
    if not items:
        return b"", 0
    positions, sizes, checksums = zip(*_POSITION_SIZE_CRC.iter_unpack(items), strict=True)
    ends = tuple(map(add, positions, sizes))
    pieces = [block[at - first : end - first] for at, end in zip(positions, ends, strict=True)]
    found = tuple(map(_crc32c, pieces))
    lengths = tuple(map(len, pieces))
    count = len(pieces)
    if found != checksums or lengths != sizes:
        count = min(_first_difference(found, checksums), _first_difference(lengths, sizes))
    if count == 0:
        return b"", 0
    if ends[: count - 1] != positions[1:count]:
        return b"".join(pieces[:count]), count
    begin, end = positions[0] - first, ends[count - 1] - first  # back to back: the body is there already
    return block if begin == 0 and end == len(block) else block[begin:end], count


def _first_difference(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Of two of the same length: this length if they are equal."""
    return next(compress(range(len(left)), map(ne, left, right)), len(left))
