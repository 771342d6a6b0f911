"""Connections to a node's ports that match answers by opaque, and notice when the node closes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from jepsen_like.client_kit.frames import ANSWER_S, CLOSED, HOST, SILENT, Answer, FrameConnection, request
from raftmq_wire.codec import FLAG_RESPONSE, CodecError, Header


class Target(NamedTuple):
    """The ports of one node, as a client sees it."""

    id: int
    client_port: int
    peer_port: int
    admin_port: int


class Wire(FrameConnection):
    """One connection to a client port, made by `dial`."""

    def __init__(self, silence_s: float = ANSWER_S) -> None:
        """`silence_s`: the seconds without a byte from the node after which waiting requests count as not answered."""
        super().__init__()
        loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self.ended = loop.create_future()
        self._heard_s = loop.time()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
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
        await asyncio.sleep(0)  # asyncio calls connection_lost in the next turn of the loop

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """Sends a two-way request and waits for its answer; CLOSED or SILENT if none comes."""
        return await self.answer(self.put(code, ext, body))

    def put(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> int:
        """Sends a two-way request without waiting; returns its opaque."""
        opaque, frame = request(code, ext, body)
        self.write(frame)
        return opaque

    async def send(self, data: bytes, timeout_s: float = ANSWER_S) -> None:
        """Sends bytes; returns when most of them have left, the connection is closed, or the node has not read for
        `timeout_s`."""
        self.write(data)
        room = asyncio.ensure_future(self._room.wait())
        await asyncio.wait((room, self.ended), return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        room.cancel()

    async def answer(self, opaque: int) -> Answer:
        """Waits for the answer with this opaque; SILENT if the node is silent."""
        return (await self.answers((opaque,)))[0]

    async def answers(self, opaques: Sequence[int]) -> list[Answer]:
        """Waits for the answers with these opaques. Those that have not come once the connection has brought no byte
        for `silence_s` are SILENT.

        The time from request to answer says nothing here: this process has the lowest priority, and may need longer to
        read 100,000 answers than the node to send them.
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
            if self.closed:
                waiting.set_result(CLOSED)
        return waiting

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Makes writers wait for room."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Lets the writers continue. Called by asyncio."""
        self._room.set()

    def data_received(self, data: bytes) -> None:
        """Passes the answers in the stream to the requests that wait for them. Ignores requests of the node. Closes the
        connection if the bytes are no frames.
        """
        self._heard_s = asyncio.get_running_loop().time()
        try:
            super().data_received(data)
        except CodecError:
            self.abort()

    def on_frame(self, header: Header, body: bytes) -> None:
        """Passes an answer to the request that waits for it."""
        if header.flag & FLAG_RESPONSE and not (waiting := self.future(header.opaque)).done():
            waiting.set_result(Answer.of(header, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all waits for an answer with CLOSED."""
        super().connection_lost(exc)
        for waiting in (self.ended, *self._waiting.values()):
            if not waiting.done():
                waiting.set_result(CLOSED)


async def ask_http(port: int, method: str, path: str, body: bytes = b"", timeout_s: float = ANSWER_S) -> Answer:
    """Sends one HTTP request on its own connection. `code` of the answer is the HTTP status. Returns SILENT if no
    answer came within `timeout_s`, CLOSED if the connection failed or the answer is not HTTP.
    """
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
    """Returns a listening socket at a free port, and the port, to find out whether a node dials an address that an
    unauthenticated client names."""
    listener = socket.socket()
    listener.setblocking(False)
    listener.bind((HOST, 0))
    listener.listen(8)
    return listener, listener.getsockname()[1]


def was_dialled(listener: socket.socket) -> bool:
    """Returns True if the listener was dialled, and closes it."""
    with contextlib.closing(listener):
        try:
            listener.accept()[0].close()
        except OSError:
            return False
        return True
