"""Raw connections to a node's ports: they send bytes as given, match answers by opaque, and notice when the node
closes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, CodecError, Header, decode_header, ext_of

HOST = "127.0.0.1"
ANSWER_S = 10.0
"""Seconds without a byte on its connection after which a request counts as not answered."""
_opaques = itertools.count(1)


class Target(NamedTuple):
    """The ports of one node, as a client sees it."""

    id: int
    client_port: int
    peer_port: int
    admin_port: int


class Answer(NamedTuple):
    """The answer to a request. `code` is -1 if the connection closed, -2 if no answer came."""

    code: int
    ext: dict[str, str]
    remark: str
    body: bytes

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
    """Takes whole frames out of the buffer; yields (header, body) of each. Raises CodecError for bytes that are no
    frame."""
    at, end = 0, len(buffer)
    try:
        while end - at >= 8 and end >= (stop := at + 4 + int.from_bytes(buffer[at : at + 4], "big")):
            header_end = at + 8 + int.from_bytes(buffer[at + 5 : at + 8], "big")
            yield decode_header(buffer[at + 4], bytes(buffer[at + 8 : header_end])), bytes(buffer[header_end:stop])
            at = stop
    finally:
        del buffer[:at]


class Wire(asyncio.Protocol):
    """One connection to a client port, made by `dial`."""

    def __init__(self, silence_s: float = ANSWER_S) -> None:
        """`silence_s`: the seconds without a byte from the node after which what waits counts as not answered."""
        loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self.closed = loop.create_future()
        self._heard_s = loop.time()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._buffer = bytearray()
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def dial(cls, port: int, silence_s: float = ANSWER_S) -> Self:
        """Opens a connection. Raises OSError."""
        _, wire = await asyncio.get_running_loop().create_connection(lambda: cls(silence_s), HOST, port)
        return wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()
        await asyncio.sleep(0)  # it is closed when this returns

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """Sends a two-way request; returns its outcome."""
        return await self.answer(self.put(code, ext, body))

    def put(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> int:
        """Sends a two-way request without waiting; returns its opaque."""
        opaque, frame = request(code, ext, body)
        self.write(frame)
        return opaque

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        if self._transport is not None and not self.closed.done():
            self._transport.write(data)

    async def send(self, data: bytes, timeout_s: float = ANSWER_S) -> None:
        """Sends bytes; returns when most of them have left, the connection is closed, or the node has not read for
        `timeout_s`."""
        self.write(data)
        room = asyncio.ensure_future(self._room.wait())
        await asyncio.wait((room, self.closed), return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        room.cancel()

    async def answer(self, opaque: int) -> Answer:
        """Waits for the answer with this opaque; SILENT if the node is silent."""
        return (await self.answers((opaque,)))[0]

    async def answers(self, opaques: Sequence[int]) -> list[Answer]:
        """Waits for the answers with these opaques. Those that have not come once the connection has brought no byte
        for `silence_s` are SILENT.

        The time from request to answer is no measure here: this process runs in time that nobody else wants, and may
        need longer to read 100,000 answers than the node to send them.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        all_ = [self.future(opaque) for opaque in opaques]
        waiting = {each for each in all_ if not each.done()}
        while waiting and (left_s := max(begun_s, self._heard_s) + self._silence_s - loop.time()) > 0:
            _, waiting = await asyncio.wait(waiting, timeout=left_s)
        return [each.result() if each.done() else SILENT for each in all_]

    def future(self, opaque: int) -> asyncio.Future[Answer]:
        """Returns a future that is done when the answer for this opaque arrives, or the connection closes."""
        waiting = self._waiting.get(opaque)
        if waiting is None:
            self._waiting[opaque] = waiting = asyncio.get_running_loop().create_future()
            if self.closed.done():
                waiting.set_result(CLOSED)
        return waiting

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        """Makes writers wait for room."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Lets the writers continue."""
        self._room.set()

    def data_received(self, data: bytes) -> None:
        """Takes answers out of the stream; requests of the node are ignored."""
        self._heard_s = asyncio.get_running_loop().time()
        self._buffer += data
        try:
            for header, body in frames_of(self._buffer):
                if header.flag & FLAG_RESPONSE:
                    self._settle(header, body)
        except CodecError:
            self.abort()

    def _settle(self, header: Header, body: bytes) -> None:
        waiting = self.future(header.opaque)
        if not waiting.done():
            waiting.set_result(Answer(header.code, ext_of(header), header.remark or "", body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives CLOSED to all who wait for an answer."""
        if not self.closed.done():
            self.closed.set_result(None)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(CLOSED)


async def ask_http(port: int, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S) -> Answer:
    """Sends one HTTP request on a connection of its own; `code` of the answer is the HTTP status."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = await reader.read()
            finally:
                writer.close()
    except TimeoutError:
        return SILENT
    except OSError:
        return CLOSED
    first, _, rest = answer.partition(b"\r\n\r\n")
    words = first.split(b" ", 2)
    return Answer(int(words[1]), {}, "", rest) if len(words) > 2 and words[1].isdigit() else CLOSED


def listen_anywhere() -> tuple[socket.socket, int]:
    """Returns a listening socket at a free port, and the port, to find out if a node dials an address that a stranger
    names."""
    listener = socket.socket()
    listener.setblocking(False)
    listener.bind((HOST, 0))
    listener.listen(8)
    return listener, listener.getsockname()[1]


def was_dialled(listener: socket.socket) -> bool:
    """Returns True if somebody connected to the listener, and closes it."""
    with contextlib.closing(listener):
        try:
            listener.accept()[0].close()
        except OSError:
            return False
        return True
