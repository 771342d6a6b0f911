"""Lanes: connections on which shots (`fuzz.shot`) are sent, many at once where the protocol allows it. A lane checks
the answers."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from jepsen_like.client_kit.frames import HOST, FrameConnection
from jepsen_like.fuzz import http
from jepsen_like.fuzz.guard import Ways
from jepsen_like.fuzz.shot import Shot
from raftmq_wire.codec import FLAG_RESPONSE, CodecError, Header

ANSWER_S = 20.0
"""Seconds after which a shot counts as not answered."""
DIAL_TRIES = 20
AGAIN_EVERY = 20
"""The number of batches after which a connection for requests is replaced by another one."""


class ShotDefect(Exception):
    """Raised when a defect was found. It carries what is wrong, and the shots that may have caused it."""

    def __init__(self, what: str, shots: Sequence[Shot]) -> None:
        super().__init__(what)
        self.what = what
        self.shots = list(shots)


class ShotLine(FrameConnection):
    """A connection that counts the answers of the remoting protocol by opaque. For other protocols it only notices the
    end of the connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: Counter[int] = Counter()
        self.code = -1
        """The code of the newest answer; -1 before the first one."""
        self.ended = asyncio.Event()
        self.wanted: set[int] = set()
        self.settled = asyncio.Event()
        self.broken = ""

    def data_received(self, data: bytes) -> None:
        """Counts complete answers."""
        try:
            super().data_received(data)
        except CodecError as error:
            self.broken = f"the node answered with what is no frame: {error}"
            self.abort()
            return
        if not self.wanted:
            self.settled.set()

    def on_frame(self, header: Header, body: bytes) -> None:
        """Counts an answer."""
        if header.flag & FLAG_RESPONSE:
            self.answers[header.opaque] += 1
            self.code = header.code
            self.wanted.discard(header.opaque)

    def connection_lost(self, exc: Exception | None) -> None:
        """Marks the connection as closed, and waits for no more answers on it."""
        super().connection_lost(exc)
        self.ended.set()
        self.settled.set()

    @property
    def is_over(self) -> bool:
        """True if nothing can be sent any more: the connection is closed, or about to be."""
        return self.closed or self.transport.is_closing()


async def dial(port: int, kind: type[ShotLine] = ShotLine, context: ssl.SSLContext | None = None) -> ShotLine:
    """Opens a connection, over TLS with a context, trying for a while. Raises OSError."""
    for attempt in range(DIAL_TRIES):
        try:
            return (await asyncio.get_running_loop().create_connection(kind, HOST, port, ssl=context))[1]
        except OSError:
            if attempt == DIAL_TRIES - 1:
                raise
            await asyncio.sleep(0.05 * (attempt + 1))
    raise AssertionError


async def _say_alone(
    port: int, data: bytes, wait_s: float, *, ends: bool = False, context: ssl.SSLContext | None = None
) -> None:
    """Sends bytes on a connection of their own, and waits up to `wait_s` seconds for the node to close it. `ends`:
    closes the sending side after the bytes, except over TLS.
    """
    line = await dial(port, context=context)
    assert line.transport is not None
    line.transport.write(data)
    if ends and context is None:  # TLS has no half-close
        line.transport.write_eof()
    try:
        await asyncio.wait_for(line.ended.wait(), wait_s)
    except TimeoutError:
        line.abort()


class RemotingLane:
    """A connection for batches of requests, dialled again after it was closed."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        """With a context, every second connection is one of TLS."""
        self._port = port
        self.ways = Ways(context)
        self._line: ShotLine | None = None
        self._fired = 0

    @property
    def code(self) -> int:
        """The code of the newest answer on the present connection; -1 if there is none."""
        return -1 if self._line is None else self._line.code

    async def fire(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends all shots at once, and waits for their answers. Returns those that certainly reached a handler: the
        answered ones if the node closed the connection, else all. Raises ShotDefect for a missing or wrong answer, and
        OSError.
        """
        line = self._line
        self._fired += 1
        if line is not None and self._fired % AGAIN_EVERY == 0:
            line.abort()  # so that TLS and plain text are both used, even if the node closes no connection
            line = None
        if line is None or line.is_over:
            line = self._line = await dial(self._port, context=self.ways.next())
        line.answers.clear()
        wanted = {shot.opaque for shot in shots if shot.opaque >= 0}
        line.wanted = set(wanted)
        line.settled.clear()
        line.transport.write(b"".join([shot.data for shot in shots]))
        if wanted:
            try:
                await asyncio.wait_for(line.settled.wait(), ANSWER_S)
            except TimeoutError:
                left = [shot for shot in shots if shot.opaque in line.wanted]
                line.abort()
                raise ShotDefect(f"{len(left)} requests were not answered in {ANSWER_S:.0f} s", left) from None
        self._check(line, wanted, shots)
        if line.closed:
            return [shot for shot in shots if shot.opaque in line.answers]
        return list(shots)

    def _check(self, line: ShotLine, wanted: set[int], shots: Sequence[Shot]) -> None:
        if line.broken:
            raise ShotDefect(line.broken, shots)
        for opaque, count in line.answers.items():
            if opaque not in wanted:
                named = [shot for shot in shots if b"%d" % opaque in shot.data] or shots
                raise ShotDefect(f"an answer that nobody asked for, opaque {opaque}", named)
            if count > 1:
                raise ShotDefect(f"{count} answers to one request", [shot for shot in shots if shot.opaque == opaque])

    async def fire_raw(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends each shot on a connection of its own, which the node may close. Raises OSError if the node does not
        listen."""
        for shot in shots:
            await _say_alone(self._port, shot.data, 0.5, ends=True, context=self.ways.next())
        return list(shots)

    def close(self) -> None:
        """Closes the connection."""
        if self._line is not None:
            self._line.abort()


class HttpLane:
    """A connection for one HTTP request after the other."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        """With a context, every second connection is one of TLS."""
        self._port = port
        self.ways = Ways(context)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.statuses: Counter[int] = Counter()

    async def fire(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends the shots; returns those that were answered. Raises ShotDefect for a missing answer, an answer that is
        not HTTP and the status 500, and OSError.
        """
        reached = []
        for shot in shots:
            try:
                status = await asyncio.wait_for(self._ask(shot), ANSWER_S)
            except TimeoutError:
                self.close()
                raise ShotDefect(f"an HTTP request was not answered in {ANSWER_S:.0f} s", [shot]) from None
            if status == 500:
                raise ShotDefect("an HTTP request was answered 500", [shot])
            if status is not None:
                self.statuses[status] += 1
                reached.append(shot)
        return reached

    async def _ask(self, shot: Shot) -> int | None:
        """Sends one shot; returns the status, or None if the connection was closed."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port, ssl=self.ways.next())
        reader, writer = self._streams
        buffer = bytearray()
        writer.write(shot.data)
        while True:
            data = await _read(reader)
            if not data:
                self.close()
                return None
            buffer += data
            try:
                if (answer := http.parse(buffer)) is not None:
                    break
            except (ValueError, IndexError):
                raise ShotDefect("an answer that is no HTTP", [shot]) from None
        head = bytes(buffer[:1000]).lower()
        if len(buffer) > answer[1] or b"connection: close" in head or b"text/event-stream" in head:
            self.close()  # a stream of events does not end
        return answer[0]

    async def fire_raw(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends each shot on a connection of its own."""
        for shot in shots:
            reader, writer = await asyncio.open_connection(HOST, self._port, ssl=self.ways.next())
            try:
                writer.write(shot.data)
                await asyncio.wait_for(_read(reader), 0.3)
            except TimeoutError:
                continue
            finally:
                writer.transport.abort()
        return list(shots)

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except OSError:
        return b""


class PeerLane:
    """Connections to a peer port: a handshake, then frames until the node closes the connection."""

    def __init__(
        self,
        port: int,
        enter: Callable[[int, ssl.SSLContext | None], Awaitable[ShotLine | None]],
        context: ssl.SSLContext,
    ) -> None:
        """`enter(port, context)` returns a connection on which the guest may speak; None if it was refused. Every
        second connection is one of TLS."""
        self._port = port
        self._enter = enter
        self.ways = Ways(context)
        self._line: ShotLine | None = None
        self.entered = 0
        """The number of connections on which the guest spoke."""

    async def fire(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends the shots; returns those that were sent on a connection that was still open. Raises OSError."""
        reached = []
        for shot in shots:
            line = self._line
            if line is None or line.is_over:
                line = self._line = await self._enter(self._port, self.ways.next())
                if line is None or line.is_over:
                    continue
                self.entered += 1
            line.transport.write(shot.data)
            await asyncio.sleep(0)
            reached.append(shot)
        return reached

    async def fire_raw(self, shots: Sequence[Shot]) -> list[Shot]:
        """Sends each shot as the first bytes of a connection of its own."""
        for shot in shots:
            await _say_alone(self._port, shot.data, 0.05, context=self.ways.next())
        return list(shots)

    def close(self) -> None:
        """Closes the connection."""
        if self._line is not None:
            self._line.abort()
