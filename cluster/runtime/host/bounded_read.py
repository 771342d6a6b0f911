"""Reads an answer of another node: what answers there may be anything, and may go on for ever."""

from __future__ import annotations

from typing import Final, Protocol

from raftlog.work import charge_bytes

READ_BYTES: Final = 64 << 10


class Reader(Protocol):
    """The part of a stream of asyncio or aiohttp that `read_at_most` needs."""

    async def read(self, n: int, /) -> bytes:
        """At most `n` bytes as soon as there are some; none at the end."""


class TooLongError(Exception):
    """An answer is longer than it can be."""


async def read_at_most(answer: Reader, most: int) -> list[bytes]:
    """Reads an answer to its end, in parts. Raises TooLongError as soon as it is longer than `most` bytes."""
    parts, size = [], 0
    while part := await answer.read(READ_BYTES):
        charge_bytes(len(part))
        size += len(part)
        if size > most:
            raise TooLongError(f"its answer is longer than {most} bytes")
        parts.append(part)
    return parts
