"""Sends JSON answers that were made piece by piece, as fast as clients read them. A large answer is neither encoded nor
sent within one turn of the event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web

SENT_BYTES = 64 << 10
"""The approximate number of bytes that are written to the connection at once. The next piece waits until the client has
read most of them."""


class Pieces(NamedTuple):
    """A JSON text as a list of parts."""

    parts: list[bytes]

    @property
    def size(self) -> int:
        """Number of bytes of all parts together."""
        return sum(map(len, self.parts))

    def writes(self) -> Iterator[bytes]:
        """Yields the text in pieces of at least SENT_BYTES; the last one may be shorter."""
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
    """Sends the answer completely, and returns it. aiohttp then has nothing left to send. If the client has
    disconnected, nothing is raised."""
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
    """Sends an answer that is made of parts, with at most about one piece in the connection's buffer, and returns the
    response. `more` has further headers."""
    headers = {"Cache-Control": "no-store", "Content-Length": str(pieces.size), "Content-Type": content_type, **more}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        with contextlib.suppress(ConnectionError):
            for part in pieces.writes():
                await response.write(part)
            await response.write_eof()
    return response
