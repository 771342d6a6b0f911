"""Bodies that their producers compressed: zlib, and what Java's `setCompressType` offers besides.

LZ4 and ZSTD are read by pyarrow, where it is installed (`pip install 'raftmq[arrow]'`).
"""

from __future__ import annotations

import zlib

_ZLIB = (0, 3)
"""Producers before RocketMQ 5 know one way and do not name it."""
_BY_ARROW = {1: "lz4", 2: "zstd"}
MAX_INFLATED_BYTES = 64 << 20
"""Cap on a compressed body once inflated: a small message must not fill the reader's memory."""


class UnreadableError(Exception):
    """The reason why a body cannot be decompressed, as it follows the message's name in a sentence."""


def decompress(body: bytes, kind: int) -> bytes:
    """The body as its producer was given it; `kind` is the number of the compression in a message's flags. Raises
    UnreadableError."""
    if kind in _ZLIB:
        plain = _inflate(body)
    elif kind in _BY_ARROW:
        plain = _read_by_arrow(body, _BY_ARROW[kind])
    else:
        raise UnreadableError(f"is compressed in a way (type {kind}) that this client does not read")
    if len(plain) > MAX_INFLATED_BYTES:
        raise UnreadableError(f"inflates to more than {MAX_INFLATED_BYTES} bytes")
    return plain


def _inflate(body: bytes) -> bytes:
    try:
        stream = zlib.decompressobj()
        plain = stream.decompress(body, MAX_INFLATED_BYTES + 1)
    except zlib.error as error:
        raise UnreadableError(f"does not inflate: {error}") from error
    if not stream.eof and len(plain) <= MAX_INFLATED_BYTES:
        raise UnreadableError("is cut short inside its compressed body")
    return plain


def _read_by_arrow(body: bytes, codec: str) -> bytes:
    try:
        import pyarrow
    except ImportError:
        why = f"is compressed with {codec}, which this client reads where pyarrow is installed"
        raise UnreadableError(f"{why} (pip install 'raftmq[arrow]')") from None
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), codec) as stream:
            return bytes(stream.read(MAX_INFLATED_BYTES + 1))
    except (OSError, ValueError) as error:  # Arrow's errors are one of them
        raise UnreadableError(f"does not inflate: {error}") from error
