"""Frames of the remoting protocol, and the connection that sends and receives them, for clients that write arbitrary
bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from raftmq_wire.codec import FLAG_ONEWAY, Header, decode_header, ext_of

HOST = "127.0.0.1"
ANSWER_S = 10.0
"""Seconds without a byte on its connection after which a request counts as not answered."""
_opaques = itertools.count(1)


class Answer(NamedTuple):
    """The answer to a request. `code` is -1 if the connection closed, -2 if no answer came."""

    code: int
    ext: dict[str, str]
    remark: str
    body: bytes

    @classmethod
    def of(cls, header: Header, body: bytes) -> Answer:
        """Returns the Answer that a frame with this header and body carries."""
        return cls(header.code, ext_of(header), header.remark or "", body)

    @property
    def is_answer(self) -> bool:
        """True if the node answered with a frame."""
        return self.code >= 0


CLOSED, SILENT = Answer(-1, {}, "the connection closed", b""), Answer(-2, {}, "no answer in time", b"")


def request(
    code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, oneway: bool = False, opaque: int | None = None
) -> tuple[int, bytes]:
    """Returns (opaque, frame) of a request; `ext` may contain anything that JSON can express."""
    opaque = next(_opaques) if opaque is None else opaque
    fields = {
        "code": code,
        "language": "JAVA",
        "version": 477,
        "opaque": opaque,
        "flag": FLAG_ONEWAY if oneway else 0,
        "extFields": {} if ext is None else ext,
    }
    return opaque, framed(json.dumps(fields).encode(), body)


def framed(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """Returns a frame with exactly these header bytes."""
    length = 4 + len(header) + len(body)
    return b"".join((struct.pack(">iI", length, serialize_type << 24 | len(header)), header, body))


def frames_of(buffer: bytearray) -> Iterator[tuple[Header, bytes]]:
    """Removes complete frames from the buffer; yields (header, body) of each. Raises CodecError for bytes that are no
    frame."""
    at, end = 0, len(buffer)
    try:
        while end - at >= 8 and end >= (stop := at + 4 + int.from_bytes(buffer[at : at + 4], "big")):
            header_end = at + 8 + int.from_bytes(buffer[at + 5 : at + 8], "big")
            yield decode_header(buffer[at + 4], bytes(buffer[at + 8 : header_end])), bytes(buffer[header_end:stop])
            at = stop
    finally:
        del buffer[:at]


class FrameConnection(asyncio.Protocol):
    """A connection to a port of a node. It can be used once `connection_made` was called."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.closed = False
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Marks the connection as closed."""
        self.closed = True

    def write(self, data: bytes) -> None:
        """Sends bytes unchanged; does nothing if the connection has ended."""
        if not self.closed:
            self.transport.write(data)

    def abort(self) -> None:
        """Closes the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Adds bytes of the stream, and passes the complete frames to `on_frame`. Raises CodecError."""
        self._buffer += data
        for header, body in frames_of(self._buffer):
            self.on_frame(header, body)

    def on_frame(self, header: Header, body: bytes) -> None:
        """Handles a frame from the node. Overridden by subclasses."""
