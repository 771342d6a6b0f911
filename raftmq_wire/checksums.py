"""CRC-32C (Castagnoli), the checksum of frames, rows, files and objects. Bodies and keys have CRC-32
(`raftmq_wire.crc`)."""

from __future__ import annotations

from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc32c"]
"""crc32c(data, crc=0) returns the checksum of contiguous memory of any kind, without copying it. `crc` is the checksum
of the bytes before `data`; the result covers both.

For long data the call releases the GIL, so the caller must not let another thread change writable memory meanwhile.
"""
