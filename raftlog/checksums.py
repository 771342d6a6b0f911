"""CRC-32C (Castagnoli), which covers frames, rows, files and objects; bodies and keys have CRC-32 (`raftlog.crc`)."""

from __future__ import annotations

from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc32c"]
"""crc32c(data, crc=0): of contiguous memory of any kind, without a copy; continues `crc`, that of the bytes before.
Other threads run while long data are looked at, so memory that can be written must not change meanwhile."""
