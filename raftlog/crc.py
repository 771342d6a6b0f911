"""CRC-32 of zlib, gzip and PNG (polynomial 0x04C11DB7 reflected): of message bodies, and the hash of their keys.

zlib-ng uses the processor's carry-less multiplication: of 1 KiB in 1,440 instructions, where zlib takes 5,030.
The values are the same. CRC32C, which covers frames and payloads, is another polynomial (`raftlog.checksums`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final


def _fastest() -> Callable[..., int]:
    try:
        from zlib_ng import zlib_ng
    except ImportError:  # an environment that is older than this tree: slower, but no other values
        return zlib.crc32
    found: Callable[..., int] = zlib_ng.crc32
    return found


crc32: Final = _fastest()
"""crc32(data, start=0): as `zlib.crc32`."""
