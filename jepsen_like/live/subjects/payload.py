"""Message bodies that prove themselves: an id and a filling that follows from it, so any damage shows as a phantom."""

from __future__ import annotations

import zlib

SIZES = (64, 200, 512, 1024)
"""Bytes of a body, chosen by its id."""
BULK = "b"
"""Prefix of ids with large bodies: for scenarios that fill the log."""
BULK_SIZES = (4 << 10, 12 << 10, 20 << 10, 28 << 10)


def body_of(message_id: str) -> bytes:
    """The one body of that id."""
    head = message_id.encode() + b"\t"
    seed = zlib.crc32(head)
    sizes = BULK_SIZES if message_id.startswith(BULK) else SIZES
    size = sizes[seed % len(sizes)]
    return (head + b"%08x" % seed * (size // 8))[:size]


def id_of(body: bytes) -> str:
    """The id a body carries; another one, which nobody sent, if any byte of it is not as it was sent."""
    message_id = body.partition(b"\t")[0].decode("ascii", "replace")
    return message_id if body == body_of(message_id) else f"{message_id}-damaged-{zlib.crc32(body):08x}"
