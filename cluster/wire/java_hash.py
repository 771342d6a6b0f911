"""The hash of a tag, as consume queues store it and clients compute it."""

from __future__ import annotations

import sys
from operator import mul

_ENCODING = f"utf-16-{sys.byteorder[0]}e"
_MASK = 0xFFFFFFFF
SHORT, BLOCK = 64, 256
"""UTF-16 units up to which a loop is quicker, and so many of a longer text at once."""
_POWERS = [pow(31, BLOCK - 1 - at, 1 << 32) for at in range(BLOCK)]


def java_hash(text: str) -> int:
    """Java's String.hashCode: 32-bit signed, over UTF-16 units."""
    units = memoryview(text.encode(_ENCODING, "surrogatepass")).cast("H")
    h = 0
    if len(units) <= SHORT:
        for unit in units:
            h = (31 * h + unit) & _MASK
    else:
        for at in range(0, len(units), BLOCK):
            block = units[at : at + BLOCK]
            h = (h * pow(31, len(block), 1 << 32) + sum(map(mul, block, _POWERS[-len(block) :]))) & _MASK
    return h - 0x100000000 if h & 0x80000000 else h
