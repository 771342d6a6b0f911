"""A TCP proxy in front of a node's port that acts as one user: it signs requests, and searches the answers for marks.

Clients that know nothing of users, such as fuzzers and hostile clients, attack as that user. Each byte of the node is
searched for the marks of `jepsen_like.marks`. With a TLS context for the node's side, the client's side stays plain.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from jepsen_like.client_kit.frames import HOST
from jepsen_like.marks import FRAME_MAX, MarkedStream
from raftmq_wire.codec import CodecError, decode_header, encode_frame, ext_of
from raftmq_wire.signature import Credentials

_CHUNK = 1 << 16


class MarkedProxy:
    """`async with MarkedProxy(...) as proxy:` listens at `proxy.port`."""

    def __init__(
        self,
        target: int,
        may_read: Callable[[str], bool],
        signer: Credentials | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`target`: the node's port. `may_read`: returns True if the user may read messages of a topic. `signer`: the
        user, None for a stranger. `context`: with it, the connection to the node is one of TLS."""
        self._target, self._may_read, self._signer, self._context = target, may_read, signer, context
        self.port = 0
        self.wrong: list[str] = []
        """Descriptions of what went to the client although the user may not read it."""
        self.read: Counter[str] = Counter()
        """Topic -> number of frames with its mark that the user may read."""
        self.signed = 0
        """Number of requests that were signed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            node, to_node = await asyncio.open_connection(HOST, self._target, ssl=self._context)
        except OSError:
            to_client.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(client, to_node))
                both.create_task(self._back(node, to_client))
        finally:
            for writer in (to_client, to_node):
                writer.close()

    async def _forward(self, client: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        signing = _Signing(self._signer)
        with suppress(OSError):
            while data := await client.read(_CHUNK):
                to_node.write(signing.take(data))
                await to_node.drain()
        self.signed += signing.count
        to_node.close()

    async def _back(self, node: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        marked = MarkedStream()
        with suppress(OSError):
            while data := await node.read(_CHUNK):
                for header, topics in marked.take(data):
                    self._judge(topics, "bytes that are no frame" if header is None else f"a frame of {header.code}")
                to_client.write(data)
                await to_client.drain()
        self._judge(marked.rest(), "a frame that has no end")
        to_client.close()

    def _judge(self, topics: list[str], what: str) -> None:
        for topic in topics:
            if self._may_read(topic):
                self.read[topic] += 1
            else:
                self.wrong.append(f"{what} with a message of {topic}")


class _Signing:
    """Signs the requests in a stream of bytes. After the first bytes that are no request, all pass unchanged."""

    def __init__(self, signer: Credentials | None) -> None:
        self._signer = signer
        self._buffer = bytearray()
        self.count = 0

    def take(self, data: bytes) -> bytes:
        """Returns the bytes that go on to the node."""
        if self._signer is None:
            return data
        self._buffer += data
        sent: list[bytes] = []
        while self._signer is not None and len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[:4], "big")
            head = int.from_bytes(self._buffer[5:8], "big")
            if not 4 <= size <= FRAME_MAX or head > size - 4:
                self._signer = None
                break
            if len(self._buffer) < 4 + size:
                break
            sent.append(self._signed(bytes(self._buffer[: 4 + size]), head, self._signer))
            del self._buffer[: 4 + size]
        if self._signer is None:
            sent.append(bytes(self._buffer))
            self._buffer.clear()
        return b"".join(sent)

    def _signed(self, frame: bytes, head: int, signer: Credentials) -> bytes:
        body = frame[8 + head :]
        try:
            header = decode_header(frame[4], frame[8 : 8 + head])
            ext = ext_of(header)
            signed = encode_frame(
                header.code,
                header.opaque,
                header.flag,
                ext=signer.signed(ext, body),
                remark=header.remark,
                body=body,
                serialize_type=frame[4],
                language=str(header.language) if frame[4] == 0 else "JAVA",
                version=header.version,
            )
        except (CodecError, ValueError, struct.error):
            return frame
        self.count += 1
        return signed
