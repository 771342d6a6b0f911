"""CRC-32C of memory that can be written: of a file that was read into it, without a copy."""

from __future__ import annotations

import ctypes

import google_crc32c

IN_PLACE_FROM = 16 << 10
"""Bytes from which it is worth to make a view that the library takes."""
_IN_C = google_crc32c.implementation == "c"
"""Its twin in Python takes bytes only."""


def crc32c_of(view: memoryview, crc: int = 0) -> int:
    """Of contiguous, writable bytes that do not change meanwhile, continuing `crc`.

    The library takes bytes, or what lends its memory as bytes do: an array of ctypes, but no memoryview.
    """
    size = len(view)
    if size < IN_PLACE_FROM or not _IN_C:
        found: int = google_crc32c.extend(crc, bytes(view))
    else:
        found = google_crc32c.extend(crc, (ctypes.c_char * size).from_buffer(view))
    return found
