"""Sends answers as fast as their clients take them."""

from __future__ import annotations

import contextlib

from aiohttp import web

from cluster.admin.pieces import Pieces


async def sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Sends the answer to its end; aiohttp, which is handed it back, finds nothing left to do."""
    await response.prepare(request)
    if isinstance(response, web.Response):
        await response.write_eof()
    return response


async def in_pieces(
    request: web.Request, pieces: Pieces, status: int = 200, content_type: str = "application/json"
) -> web.StreamResponse:
    """Sends an answer that was made in pieces: no more than a write of it lies in the connection's buffer."""
    headers = {"Cache-Control": "no-store", "Content-Length": str(pieces.size), "Content-Type": content_type}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        with contextlib.suppress(ConnectionError):
            for part in pieces.writes():
                await response.write(part)
            await response.write_eof()
    return response
