"""The share of a file that the operating system holds in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest


def cached_share(path: Path, size: int) -> float:
    """Returns the share of the pages of the first `size` bytes that can be read without the disk (mincore(2), which
    reads nothing). Skips the test where nobody says so."""
    if sys.platform != "linux":
        pytest.skip("only Linux is asked what it has cached")
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    found = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
        pytest.skip(os.strerror(ctypes.get_errno()))
    return sum(page & 1 for page in found) / len(found)
