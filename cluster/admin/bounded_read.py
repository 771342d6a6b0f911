"""Reads an answer of another node: what answers there may be anything, and may go on for ever."""

from __future__ import annotations

from typing import Final

import aiohttp

READ_BYTES: Final = 64 << 10


class TooLongError(Exception):
    """An answer is longer than it can be."""


async def read_at_most(answer: aiohttp.ClientResponse, most: int) -> list[bytes]:
    """The body of an answer, in parts. Raises TooLongError as soon as it is longer than `most` bytes."""
    parts, size = [], 0
    async for part in answer.content.iter_chunked(READ_BYTES):
        size += len(part)
        if size > most:
            raise TooLongError(f"its answer is longer than {most} bytes")
        parts.append(part)
    return parts
