"""The socket side of the remoting protocol: one asyncio.Protocol per connection, no task or future per request.

All frames of one read are parsed in one loop; replies gather per connection and leave in one write per loop iteration.
A malformed or oversized frame closes its connection, is logged once, and harms nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import ClassVar, cast

from cluster.framing import FrameBuffer, FrameTooLargeError
from cluster.remoting.codec import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    CodecError,
    Header,
    decode_header,
    encode_frame,
    ext_of,
)
from cluster.remoting.codes import ResponseCode
from cluster.remoting.identity import ConnectionSession
from cluster.remoting.order_line import OrderLine
from cluster.services import Request

logger = logging.getLogger(__name__)

WRITE_BUFFER_MAX = 64 << 20
"""A client that reads so slowly that this many bytes wait for it (bytes) is cut off: memory is bounded."""


class RemotingRequest:
    """One request, with its reply path. See `services.Request`."""

    __slots__ = (
        "_answered", "_serialize_type", "body", "code", "connection", "ext", "flag", "language", "opaque", "received",
        "version",
    )  # fmt: skip

    def __init__(self, connection: ReplyPath, header: Header, serialize_type: int, body: bytes) -> None:
        """Raises CodecError if the ext fields are not an object of values."""
        self.connection = connection
        self.code = header.code
        self.opaque = header.opaque
        self.flag = header.flag
        self.version = header.version
        self.language = str(header.language)
        self.ext = ext_of(header)
        self.body = body
        self.received: tuple[int, Header, bytes] | None = None
        """(serialize type, header, header as it came), where another node may have to answer."""
        self._serialize_type = serialize_type
        self._answered = False

    def reply(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Answers once; a oneway request is never answered. What cannot be encoded is answered as an error."""
        if self._answered or self.flag & FLAG_ONEWAY:
            return
        self._answered = True
        try:
            frame = self._encode(code, remark, ext, body)
        except Exception as error:
            logger.exception("an answer to request code %d cannot be encoded", self.code)
            frame = self._encode(ResponseCode.SYSTEM_ERROR, f"the answer cannot be encoded: {error!r}", None, b"")
        self.connection.write(frame)

    def _encode(self, code: int, remark: str | None, ext: dict[str, str] | None, body: bytes) -> bytes:
        return encode_frame(
            code, self.opaque, FLAG_RESPONSE, ext=ext, remark=remark, body=body, serialize_type=self._serialize_type,
            language="JAVA",
        )  # fmt: skip


class ReplyPath:
    """What a request's answer goes through: a client's own connection, or a forwarding node's stand-in for it."""

    __slots__ = ("born_host", "closed", "inflight_bytes", "line", "listener", "on_close", "peer_address", "session")

    forwarded: ClassVar[bool] = False
    """Whether another node holds the client's connection."""

    def __init__(self, peer_address: tuple[str, int], listener: str) -> None:
        """`peer_address`: the client's own ip and port."""
        self.peer_address = peer_address
        self.listener = listener
        self.closed = False
        self.on_close: list[Callable[[], None]] = []
        self.inflight_bytes = 0
        self.born_host = pack_host(*peer_address)
        self.session: ConnectionSession | None = None
        """The send path's identity for what comes through here (see `remoting.identity`)."""
        self.line: OrderLine | None = None
        """What is held here and keeps its order; None while nothing was."""

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
        raise NotImplementedError

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends a server-to-client request that wants no reply."""
        self.write(encode_frame(code, next_opaque(), FLAG_ONEWAY, ext=ext, body=body, language="JAVA"))


_opaque = 0


def next_opaque() -> int:
    """Ids of server-to-client requests: their own space."""
    global _opaque
    _opaque = (_opaque + 1) & 0x7FFFFFFF
    return _opaque


def pack_host(host: str, port: int) -> bytes:
    """ip (4 or 16 bytes) and int32 port; a name that is no address counts as 127.0.0.1."""
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        packed = b"\x7f\x00\x00\x01"
    if len(packed) == 16 and packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    return packed + port.to_bytes(4, "big")


def raw_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """A frame without its length prefix, from its parts."""
    return b"".join(((serialize_type << 24 | len(header)).to_bytes(4, "big"), header, body))


class Dispatch:
    """Where the requests of all connections go. Subclassed by the node's router."""

    def on_request(
        self, path: ReplyPath, serialize_type: int, header: Header, header_bytes: bytes, body: bytes
    ) -> None:
        """Called for every request frame, oneway ones included."""
        raise NotImplementedError

    def on_open(self, connection: RemotingConnection) -> bool:
        """False refuses the connection (too many)."""
        raise NotImplementedError

    def on_close(self, connection: RemotingConnection) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def on_buffered(self, delta: int) -> bool:
        """Bytes of unfinished frames grew by `delta` (or shrank); False if the node holds too many."""
        raise NotImplementedError


class RemotingConnection(ReplyPath, asyncio.Protocol):
    """One client connection."""

    __slots__ = ("_buffer", "_dispatch", "_frame_max", "_loop", "_out", "_said_goodbye", "_transport")

    def __init__(self, dispatch: Dispatch, listener: str, frame_max: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(("127.0.0.1", 0), listener)
        self._dispatch = dispatch
        self._buffer = FrameBuffer(frame_max)
        self._loop = loop
        self._out: list[bytes] = []
        self._said_goodbye = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        peer = transport.get_extra_info("peername")
        self.peer_address = (str(peer[0]), int(peer[1])) if peer else ("127.0.0.1", 0)
        self.born_host = pack_host(*self.peer_address)
        if not self._dispatch.on_open(self):
            self.closed = True
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parses and dispatches every complete frame."""
        try:
            before = self._buffer.buffered
            buffer, frames = self._buffer.feed(data)
            if self._buffer.buffered != before and not self._dispatch.on_buffered(self._buffer.buffered - before):
                logger.warning("%s:%d: too many bytes of unfinished frames on this node, closed", *self.peer_address)
                self.abort()
                return
            for start, stop in frames:
                self._on_frame(buffer, start, stop)
                if self.closed:
                    return
        except (CodecError, FrameTooLargeError) as error:
            logger.warning("%s:%d sent a bad frame, connection closed: %s", *self.peer_address, error)
            self.abort()

    def _on_frame(self, buffer: bytes, start: int, stop: int) -> None:
        if stop - start < 4:
            raise CodecError(f"a frame of {stop - start} bytes has no header word")
        end = start + 4 + int.from_bytes(buffer[start + 1 : start + 4], "big")
        if end > stop:
            raise CodecError("the header is longer than its frame")
        header_bytes = buffer[start + 4 : end]
        serialize_type = buffer[start]
        header = decode_header(serialize_type, header_bytes)
        if header.flag & FLAG_RESPONSE:
            return
        self._dispatch.on_request(self, serialize_type, header, header_bytes, buffer[end:stop])

    def write(self, data: bytes) -> None:
        """Queues bytes; all that gather in this loop iteration leave in one write."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.closed or self._transport is None or self._said_goodbye or not out:
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._transport.get_write_buffer_size() > WRITE_BUFFER_MAX:
            logger.warning("%s:%d does not read its replies, connection closed", *self.peer_address)
            self.abort()

    def leave(self, remark: str) -> None:
        """From now on every request is answered at once with code 14 and `remark`; those under way go on."""
        self._dispatch = _Leaving(self._dispatch, remark)

    def say_goodbye(self) -> None:
        """Sends what is queued and closes this side: the client closes its own when it has read everything."""
        self._flush()
        self._said_goodbye = True
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; who registered hears of it."""
        if self.closed:
            return
        self.closed = True
        self._dispatch.on_buffered(-self._buffer.buffered)
        self._dispatch.on_close(self)
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback()


class _Leaving(Dispatch):
    """Takes the place of a connection's dispatch when the node is about to close it."""

    def __init__(self, before: Dispatch, remark: str) -> None:
        self._before = before
        self._remark = remark
        self.on_open = before.on_open  # type: ignore[method-assign]
        self.on_close = before.on_close  # type: ignore[method-assign]
        self.on_buffered = before.on_buffered  # type: ignore[method-assign]

    def on_request(
        self, path: ReplyPath, serialize_type: int, header: Header, header_bytes: bytes, body: bytes
    ) -> None:
        """Refuses it: it was not looked at, so it may be sent again anywhere."""
        if not header.flag & FLAG_ONEWAY:
            path.write(
                encode_frame(
                    ResponseCode.SERVICE_NOT_AVAILABLE, header.opaque, FLAG_RESPONSE, remark=self._remark,
                    serialize_type=serialize_type, language="JAVA",
                )
            )  # fmt: skip


def unsupported(request: Request) -> None:
    """The answer to a code nobody handles."""
    request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
