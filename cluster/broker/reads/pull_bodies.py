"""Makes the body of an answer from rows of the queue and bytes of the log. This is all the work that a pull does per
message.

Pure. No Python function of this project is called per message.
"""

from __future__ import annotations

import struct
from itertools import accumulate, compress, pairwise
from operator import ne

from raftmq_wire.checksums import crc32c
from raftmq_wire.kernel import twin

_POSITION = struct.Struct(">Q24x")
POSITION_SIZE = struct.Struct(">QI20x")
_SIZE_CRC = struct.Struct(">8xII16x")
"""The size and the CRC of a packed item (`statemachine.payload.ITEM`)."""


def position_of(items: bytes, number: int = 0) -> int:
    """Returns the position of message `number`, counted from 0, in the packed items."""
    position: int = _POSITION.unpack_from(items, number * _POSITION.size)[0]
    return position


def extent_of(items: bytes) -> tuple[int, int, int]:
    """Returns the extent of the packed items' messages in the log: (position of the first message, bytes from there to
    the end of the last message, position of the last message). Returns zeros if there are no items."""
    if not items:
        return 0, 0, 0
    first: int = _POSITION.unpack_from(items)[0]
    last, size = POSITION_SIZE.unpack_from(items, len(items) - POSITION_SIZE.size)
    return first, last + size - first, last


@twin
def body_of(items: bytes, block: bytes, first: int) -> tuple[bytes, int]:
    """Returns the stored messages of the packed `items`, back to back, and their number.

    `block` is the log from position `first` on. The result ends before the first message that is not wholly in the
    block, or whose bytes do not match its CRC. So every message in the body was checked.
    """
    if not items:
        return b"", 0
    sizes, checksums = zip(*_SIZE_CRC.iter_unpack(items), strict=True)
    at_first, span, _ = extent_of(items)
    begin, total = at_first - first, sum(sizes)
    adjacent = begin >= 0 and span == total
    if adjacent:  # the places are computed from the sizes alone, so the checked bytes are the returned ones
        pieces = [block[at:end] for at, end in pairwise(accumulate(sizes, initial=begin))]
    else:
        starts = [at - first for (at,) in _POSITION.iter_unpack(items)]
        pieces = [block[at : at + size] if at >= 0 else b"" for at, size in zip(starts, sizes, strict=True)]
    found = tuple(map(crc32c, pieces))
    if found == checksums and sum(map(len, pieces)) == total:
        count = len(pieces)
    else:
        lengths = tuple(map(len, pieces))
        count = min(_first_difference(found, checksums), _first_difference(lengths, sizes))
        total = sum(sizes[:count])
    if not adjacent:
        return b"".join(pieces[:count]), count
    return block if begin == 0 and total == len(block) else block[begin : begin + total], count


def _first_difference(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Returns the first index at which two arrays of the same length differ; their length if they are equal."""
    return next(compress(range(len(left)), map(ne, left, right)), len(left))
