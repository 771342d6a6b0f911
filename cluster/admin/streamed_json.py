"""JSON answers that are made piece by piece and sent as fast as clients read them: a large answer is neither encoded
nor sent in one turn of the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web

SENT_BYTES = 64 << 10
"""Bytes that are written to the connection at once; the next piece waits until the client has read most of them."""


class Pieces(NamedTuple):
    """A JSON text in parts."""

    parts: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))

    def writes(self) -> Iterator[bytes]:
        """Yields the text in pieces of about SENT_BYTES."""
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


async def sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Sends the answer completely; returns it to aiohttp, which has nothing left to do. A client that has disconnected
    is no error."""
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        if isinstance(response, web.Response):
            await response.write_eof()
    return response


async def in_pieces(
    request: web.Request,
    pieces: Pieces,
    status: int = 200,
    content_type: str = "application/json",
    more: Mapping[str, str] = MappingProxyType({}),
) -> web.StreamResponse:
    """Sends an answer that was made in pieces: no more than one piece lies in the connection's buffer. `more`: further
    headers."""
    headers = {"Cache-Control": "no-store", "Content-Length": str(pieces.size), "Content-Type": content_type, **more}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        with contextlib.suppress(ConnectionError):
            for part in pieces.writes():
                await response.write(part)
            await response.write_eof()
    return response
