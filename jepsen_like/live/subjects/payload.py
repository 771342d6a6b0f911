"""Message bodies that can be verified. A body is an id and a filling computed from the id, so a damaged body is read as
a message that was never sent (a phantom).
"""

from __future__ import annotations

import zlib

SIZES = (64, 200, 512, 1024)
"""Sizes of a body in bytes; the message id selects one."""
BULK = "b"
"""Prefix of message ids that select large bodies, for scenarios that fill the log."""
BULK_SIZES = (4 << 10, 12 << 10, 20 << 10, 28 << 10)


def body_of(message_id: str) -> bytes:
    """Returns the body of that id."""
    head = message_id.encode() + b"\t"
    seed = zlib.crc32(head)
    sizes = BULK_SIZES if message_id.startswith(BULK) else SIZES
    size = sizes[seed % len(sizes)]
    return (head + b"%08x" % seed * (size // 8))[:size]


def id_of(body: bytes) -> str:
    """Returns the id in a body; if any byte of the body differs from what was sent, returns an id that was never
    sent."""
    message_id = body.partition(b"\t")[0].decode("ascii", "replace")
    return message_id if body == body_of(message_id) else f"{message_id}-damaged-{zlib.crc32(body):08x}"
