"""A JSON answer that is made piece by piece: what is large is neither encoded nor sent in one turn of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SENT_BYTES = 64 << 10
"""Handed to the connection at once; the next piece waits until the client has taken most of it."""


class Pieces(NamedTuple):
    """A JSON text in parts."""

    parts: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(map(len, self.parts))

    def writes(self) -> Iterator[bytes]:
        """The text in writes of about SENT_BYTES."""
        held: list[bytes] = []
        size = 0
        for part in self.parts:
            held.append(part)
            size += len(part)
            if size >= SENT_BYTES:
                yield b"".join(held)
                held, size = [], 0
        if held:
            yield b"".join(held)
