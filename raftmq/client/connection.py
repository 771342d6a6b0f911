"""One TCP connection to a server, which sends and receives frames and matches replies to requests by `opaque`; and a
small pool of connections.

All frames of one read are parsed in one loop; all writes of one loop iteration leave in one call.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from raftmq.client.discovery import split_address
from raftmq.client.environment import Environment
from raftmq.client.tls import TlsError, refused
from raftmq_wire.codec import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    CodecError,
    Header,
    decode_header,
    encode_frame,
    ext_of,
    remark_as_written,
)
from raftmq_wire.signature import Credentials

MAX_FRAME_BYTES = 64 << 20
"""The largest frame that a client accepts. It is more than any server sends (16 MiB plus the bytes that a reader asks
for), so a larger frame shows that the peer does not speak the protocol."""
DIAL_TIMEOUT_S = 1.0
_PREFIX = struct.Struct(">ii")
"""The length of the rest of a frame, and a word: the header's format in its first byte, the header's length in the
other three."""
_HEADER_MASK = 0xFFFFFF

OnRequest = Callable[[Header, bytes], None]
"""A function that takes a request from the server. It returns nothing: servers of RocketMQ expect no reply to their
requests, and the client answers with a request of its own."""


_CLOSED = "closed the connection"
_HTTP = "speaks HTTP: it is not the port of clients, which is that of the name server, by default 9876"


class Reply(NamedTuple):
    """A reply with its ext fields decoded."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One connection, in both directions. Lifecycle: made by `dial`, usable until `closed`, never reopened.

    `on_response(header, body)` gets responses that no `call` waits for, `on_read()` runs after each read,
    `on_request(header, body)` gets requests that the server sends on its own initiative, and `on_lost(self)` runs once
    at the end.
    """

    def __init__(
        self,
        address: str,
        *,
        on_response: Callable[[Header, bytes], None] | None = None,
        on_read: Callable[[], None] | None = None,
        on_request: OnRequest | None = None,
        on_lost: Callable[[Connection], None] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self.closed = False
        self.ending = ""
        """The reason why the connection ended, worded to follow the server's address in a sentence."""
        self._on_response = on_response
        self._on_read = on_read
        self._on_request = on_request
        self._on_lost = on_lost
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._opaque = itertools.count(1)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._parts: list[bytes | memoryview] = []
        """The beginning of a frame whose end has not come yet, as it was read: a long frame is copied once, when it is
        whole."""
        self._held = 0
        """The bytes in `_parts`."""
        self._need = _PREFIX.size
        """The bytes that `_parts` must have before they are worth a look."""

    async def call(self, code: int, ext: dict[str, str], body: bytes = b"", *, timeout_s: float) -> Reply:
        """Sends one request and returns its reply. Raises TimeoutError after `timeout_s`, and ConnectionError if the
        connection ends first."""
        if self.closed:
            raise ConnectionResetError(f"connection to {self.address} is closed")
        opaque = next(self._opaque) & 0x7FFFFFFF
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._calls[opaque] = future
        self.write((encode_frame(code, opaque, 0, ext=self._signed(ext, body), body=body),))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._calls.pop(opaque, None)

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends a request that wants no reply."""
        opaque = next(self._opaque) & 0x7FFFFFFF
        self.write((encode_frame(code, opaque, FLAG_ONEWAY, ext=self._signed(ext, body), body=body),))

    def _signed(self, ext: dict[str, str], body: bytes) -> dict[str, str]:
        return ext if self._credentials is None else self._credentials.signed(ext, body)

    def write(self, frames: Iterable[bytes]) -> None:
        """Queues frames, which are sent at the end of this loop iteration. A closed connection drops them; its owner
        knows from `on_lost`."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.extend(frames)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.closed:
            self._transport.writelines(out)

    def close(self) -> None:
        """Closes the connection after the queued frames have been sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, ending: str = "was given up") -> None:
        """Closes the connection now and drops queued frames; `ending` is the reason."""
        self.ending = self.ending or ending
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionAbortedError(f"connection to {self.address} was given up"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of asyncio.Transport
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            exc = refused(exc)
        self._end(exc or ConnectionResetError(f"{self.address} closed the connection"))

    def _end(self, exc: Exception) -> None:
        if self.closed:
            return
        self.closed = True
        self.ending = self.ending or _why_ended(exc)
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError(str(exc)))
        if self._on_lost is not None:
            self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            if self._parts:
                self._parts.append(data)
                self._held += len(data)
                if self._held < self._need:
                    return
                data = self._take_parts()
            at = self._parse(data)
        except CodecError as error:
            if self._transport is not None:
                self._transport.abort()
            why = _HTTP if data.startswith(b"HTTP/") else f"does not speak the protocol: {error}"
            self.ending = why
            self._end(ConnectionAbortedError(f"{self.address} {why}"))
            return
        if at < len(data):
            self._parts.append(memoryview(data)[at:] if at else data)
            self._held = len(data) - at
        if self._on_read is not None:
            self._on_read()

    def _take_parts(self) -> bytes:
        """Empties `_parts`. If the first part has the whole header of a frame, handles this frame, which is complete,
        and returns what follows it; else returns all bytes of the parts. Raises CodecError."""
        parts, self._parts = self._parts, []
        first, last = parts[0], memoryview(parts[-1])
        word = _PREFIX.unpack_from(first)[1] if len(first) >= _PREFIX.size else _HEADER_MASK
        body_at = _PREFIX.size + (word & _HEADER_MASK)
        if len(first) < body_at:
            return b"".join(parts)
        end = len(last) - (self._held - self._need)  # not negative: without the last part, the frame was incomplete
        body = b"".join((memoryview(first)[body_at:], *parts[1:-1], last[:end]))
        self._on_frame(decode_header(word >> 24 & 0xFF, bytes(first[_PREFIX.size : body_at])), body)
        return bytes(last[end:])

    def _parse(self, data: bytes) -> int:
        """Handles the complete frames in `data`. Returns where the rest begins; `_need` is then the bytes of the frame
        that begins there, if its length is known."""
        at, size = 0, len(data)
        while size - at >= 8:
            length, word = _PREFIX.unpack_from(data, at)
            header_len = word & _HEADER_MASK
            if length < 4 + header_len or length > MAX_FRAME_BYTES:
                raise CodecError(f"frame of {length} bytes with a header of {header_len}")
            end = at + 4 + length
            if end > size:
                self._need = end - at
                return at
            body_at = at + 8 + header_len
            self._on_frame(decode_header(word >> 24 & 0xFF, data[at + 8 : body_at]), data[body_at:end])
            at = end
        self._need = _PREFIX.size
        return at

    def _on_frame(self, header: Header, body: bytes) -> None:
        if not header.flag & FLAG_RESPONSE:
            if self._on_request is not None:
                self._on_request(header, body)
            return
        future = self._calls.get(header.opaque)
        if future is not None:
            if not future.done():
                future.set_result(Reply(header.code, remark_as_written(header.remark), ext_of(header), body))
        elif self._on_response is not None:
            self._on_response(header, body)


def _why_ended(exc: Exception) -> str:
    if isinstance(exc, TlsError):
        return str(exc)
    named = isinstance(exc, OSError) and exc.strerror
    return f"ended the connection ({exc})" if named else _CLOSED


async def dial(environment: Environment, connection: Connection) -> Connection:
    """Opens `connection` to its address. Raises OSError; TimeoutError after one second without an answer."""
    host, port = split_address(connection.address)
    async with asyncio.timeout(DIAL_TIMEOUT_S):
        await environment.dial(host, port, lambda: connection)
    return connection


class ConnectionPool:
    """A pool with at most one connection per address, dialled when first asked for. `on_lost(address)` runs when a
    connection has ended."""

    def __init__(
        self,
        environment: Environment,
        on_request: OnRequest | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._environment = environment
        self._on_request = on_request
        self._on_lost = on_lost
        self._open: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Task[Connection]] = {}

    async def get(self, address: str) -> Connection:
        """Returns the open connection to `address`; dials it if there is none. Raises OSError."""
        connection = self._open.get(address)
        if connection is not None and not connection.closed:
            return connection
        task = self._dialling.get(address)
        if task is None:
            task = asyncio.create_task(self._dial(address))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dialling[address] = task
        return await asyncio.shield(task)

    async def _dial(self, address: str) -> Connection:
        try:
            credentials = self._environment.credentials
            new = Connection(address, on_request=self._on_request, on_lost=self._lost, credentials=credentials)
            connection = await dial(self._environment, new)
            self._open[address] = connection
            return connection
        finally:
            self._dialling.pop(address, None)

    def _lost(self, connection: Connection) -> None:
        if self._on_lost is not None:
            self._on_lost(connection.address)

    def drop(self, address: str) -> None:
        """Closes the connection to `address`: its calls fail at once, and the next `get` dials a new one."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Closes all connections and dials of the pool."""
        for task in list(self._dialling.values()):
            task.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()
