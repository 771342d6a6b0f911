"""The kernel in Python: what `_native.pyx` computes, in the plainest words.

It is the reference. Both modules answer every input alike, byte for byte and error for error; tests/cluster/kernel
compares them.
"""

from __future__ import annotations

import struct

VERSION = 1
"""Raised in both modules when a function is added, or means something else: a native module of another version is not
used."""

_LENGTH = struct.Struct(">i")


def frames(data: bytes, limit: int) -> tuple[list[tuple[int, int]], int, int | None]:
    """The complete frames at the beginning of `data`: each is `int32 L`, then L bytes, 0 <= L <= limit.

    Returns (start, stop) of the L bytes of each, where the first byte behind them is, and the L that is announced
    there: of a frame that is incomplete or out of bounds. None: fewer than four bytes are left.
    """
    found: list[tuple[int, int]] = []
    at, end = 0, len(data)
    while end - at >= 4:
        (length,) = _LENGTH.unpack_from(data, at)
        stop = at + 4 + length
        if not 0 <= length <= limit or stop > end:
            return found, at, length
        found.append((at + 4, stop))
        at = stop
    return found, at, None
