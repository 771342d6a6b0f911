"""CRC-32C of memory that can be written: of a file that was read into it, without a copy."""

from __future__ import annotations

import ctypes

import google_crc32c

BLOCK_BYTES = 64 << 10
"""Lent at once: a type of ctypes for each size would be garbage for the collector."""
_Block = ctypes.c_char * BLOCK_BYTES
_IN_C = google_crc32c.implementation == "c"
"""Its twin in Python takes bytes only."""


def crc32c_of(view: memoryview, crc: int = 0) -> int:
    """Of contiguous, writable bytes that do not change meanwhile, continuing `crc`.

    The library takes bytes, or what lends its memory as bytes do: an array of ctypes, but no memoryview.
    """
    at, end = 0, len(view)
    while _IN_C and at + BLOCK_BYTES <= end:
        crc = google_crc32c.extend(crc, _Block.from_buffer(view, at))
        at += BLOCK_BYTES
    return google_crc32c.extend(crc, bytes(view[at:])) if at < end else crc
