"""Sends requests to the HTTP APIs of other nodes: over TLS if this node's own API accepts it, else in plain text.

If this node accepts both, TLS is tried first, and plain text if the connection could not be made. Nothing was sent
then, so no request is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from yarl import URL

from cluster.runtime.tls.dialling import Dialling


class NodeSession:
    """Sends requests to other nodes over connections that stay open between requests. Event loop only."""

    def __init__(self, dialling: Dialling) -> None:
        self._dialling = dialling
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        address: str,
        path: str,
        *,
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        body: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request to the node at "host:port", and provides its answer inside the context, where it must be
        read. Raises aiohttp.ClientError if the node cannot be reached or ends the connection, TimeoutError after the
        times in `limits`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        more: dict[str, Any] = {"data": body, "headers": headers, "allow_redirects": False, "timeout": limits}
        answer: aiohttp.ClientResponse | None = None
        ways = self._dialling.ways()
        for number, context in enumerate(ways, 1):
            scheme = "http" if context is None else "https"
            url = URL(f"{scheme}://{address}{path}", encoded=True)
            try:
                answer = await self._session.request(method, url, ssl=context or True, **more)
                break
            except aiohttp.ClientConnectorError:
                if number == len(ways):
                    raise
        assert answer is not None
        async with answer:
            yield answer
