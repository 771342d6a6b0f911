"""A connection over TLS, between the loop's transport of the socket and a protocol that need not know of TLS.

The loop's own TLS transport encrypts a whole write at once and passes it to the socket's transport, whose buffer it
does not count: for 32 MiB that nobody reads it reports 0. The limits of this node depend on these figures. This class
therefore uses the standard library's `ssl.SSLObject`: it encrypts a piece when the socket has taken the one before, and
reports all bytes that were not sent.

Plain text waits in `_queue`, ciphertext only in the socket's transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from raftlog.work import CALL_UNITS, METER

PIECE_BYTES = 64 << 10
"""Bytes of plain text that are encrypted at once."""
TURN_BYTES = 1 << 20
"""The most bytes of plain text waiting on one connection that are encrypted in one turn of the loop."""
RECORD_BYTES = 16 << 10
"""The most bytes that a TLS record carries."""
ALERT_S = 1.0
"""Seconds for the other side to read the reason why it is refused."""
HIGH_BYTES, LOW_BYTES = 64 << 10, 16 << 10
"""Bytes. The protocol is asked to pause above the first, and to go on below the second, as by the loop's own
transports."""

HandshakeDone = Callable[["TlsTransport", Exception | None], None]
"""Called once, when the handshake ends: with None, or with the reason of its failure."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A transport for the protocol above, and a protocol for the socket's transport below. Event loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        factory: Callable[[], asyncio.BaseProtocol],
        done: HandshakeDone,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        """`factory` makes the protocol once the handshake is complete, so that nothing is allocated for unauthenticated
        clients."""
        super().__init__()
        self._loop = loop
        self._factory = factory
        self._done: HandshakeDone | None = done
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._context = context
        self._below: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        """Bytes of plain text in the queue."""
        self._high, self._low = HIGH_BYTES, LOW_BYTES
        self._pumps = False
        """True if a later turn of the loop is scheduled to continue with the queue."""
        self._paused_writing = False
        """True if the protocol was asked to pause."""
        self._listens = False
        """True if the limits of the socket's transport were changed, so that it reports when little is left."""
        self._reads = True
        self._closing = self._ends = False
        """`_closing`: True after `close`, or after a failure. `_ends`: True after `write_eof`."""
        self._said_end = False
        """True if the other side was told that no more comes."""
        self._heard_end = False
        self._lost = False

    # --- the protocol of the socket's transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake."""
        self._below = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._shake()

    def data_received(self, data: bytes) -> None:
        """Decrypts the bytes for the protocol. Until the handshake is complete, continues it with them."""
        if self._closing:
            return
        self._incoming.write(data)
        if self._done is not None:
            self._shake()
            if self._protocol is None:
                return
        self._read()

    def eof_received(self) -> bool:
        """Handles a connection that the other side closed without a TLS alert."""
        self._incoming.write_eof()
        if self._done is not None:
            self._fail(ConnectionResetError("it closed the connection during the handshake"))
        else:
            self._read()
        return True

    def pause_writing(self) -> None:
        """Called when the socket's transport has too many bytes to send: asks the protocol to pause."""
        self._tell_pause()

    def resume_writing(self) -> None:
        """Called when the socket's transport takes bytes again: goes on with the queue."""
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the protocol that the connection has ended, or the callback `done` if the handshake was in progress.
        Later calls do nothing."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._forget()
        done, self._done = self._done, None
        if done is not None:
            done(self, exc or ConnectionResetError("it closed the connection during the handshake"))
        elif self._protocol is not None:
            self._protocol.connection_lost(exc)

    # --- the handshake -----------------------------------------------------------------------------------------------

    def _shake(self) -> None:
        METER.units += CALL_UNITS
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ValueError) as error:
            self._flush()  # Sends the alert, which gives the reason.
            self._fail(error)
            return
        self._flush()
        done, self._done = self._done, None
        assert done is not None
        done(self, None)
        if not self._lost and not self._closing:
            self._protocol = cast(asyncio.Protocol, self._factory())
            self._protocol.connection_made(self)

    def _fail(self, error: Exception) -> None:
        done, self._done = self._done, None
        self._closing = True
        if done is not None:
            done(self, error)
        self._leave()

    def _leave(self) -> None:
        """Closes the connection once the alert was sent, or after ALERT_S, because the other side may not read it."""
        if self._below is not None:
            self._below.close()
            self._loop.call_later(ALERT_S, self._abort_below)

    def _abort_below(self) -> None:
        if self._below is not None and not self._lost:
            self._below.abort()

    def give_up(self, error: Exception) -> None:
        """Ends a handshake in progress; does nothing after it."""
        if self._done is not None:
            self._fail(error)
            self.abort()

    # --- what comes --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while self._reads and not self._heard_end and not self._lost:
            parts, size = [], 0
            try:
                while size < PIECE_BYTES:
                    part = self._ssl.read(RECORD_BYTES)
                    if not part:
                        self._heard_end = True
                        break
                    parts.append(part)
                    size += len(part)
            except ssl.SSLWantReadError:
                pass
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._heard_end = True
            except ssl.SSLError as error:
                self._break(error)
                return
            self._flush()
            METER.units += size >> 10
            assert self._protocol is not None
            if parts:
                self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
            if self._heard_end and not self._lost and not self._protocol.eof_received():
                self.close()
            if size < PIECE_BYTES:
                return

    def _break(self, error: Exception) -> None:
        """Closes the connection, because the bytes that arrived are no valid TLS."""
        self._flush()
        self._closing = True
        self._forget()
        self._leave()
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            self._loop.call_soon(protocol.connection_lost, error)  # callbacks of `connection_made` come first

    def pause_reading(self) -> None:
        self._reads = False
        if self._below is not None and not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._reads:
            return
        self._reads = True
        if self._below is not None and not self._below.is_closing():
            self._below.resume_reading()
        self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        if self._protocol is not None and not self._lost:
            self._read()

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    # --- what goes ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._ends or not data:
            return
        below = self._below
        if not self._queue and len(data) <= PIECE_BYTES and below is not None:  # Nearly all answers take this path.
            METER.units += len(data) >> 10
            if not self._encrypt(data):
                return
            if below.get_write_buffer_size() > self._high:
                self._tell_pause()
                self._listen(below)
            return
        self._enqueue(data)
        if not self._pumps:
            self._pump()

    def _enqueue(self, data: bytes | bytearray | memoryview) -> None:
        self._queue.append(memoryview(data if type(data) is bytes else bytes(data)))
        self._queued += len(data)

    def _encrypt(self, data: bytes | bytearray | memoryview) -> bool:
        try:
            self._ssl.write(data)
        except ssl.SSLError as error:
            self._break(error)
            return False
        self._flush()
        return True

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        parts = list(list_of_data)
        if sum(map(len, parts)) <= PIECE_BYTES:
            self.write(b"".join(parts))
            return
        if self._closing or self._ends:
            return
        for part in parts:
            if part:
                self._enqueue(part)
        if not self._pumps:
            self._pump()

    def _pump(self) -> None:
        """Encrypts pieces while the socket takes them and this turn has room. Tells the protocol when it may write
        again."""
        below, left = self._below, TURN_BYTES
        if below is None or self._lost:
            return
        queue = self._queue
        while queue and left > 0 and below.get_write_buffer_size() <= HIGH_BYTES:
            first = queue[0]
            if len(first) > PIECE_BYTES:
                piece, queue[0] = first[:PIECE_BYTES], first[PIECE_BYTES:]
            else:
                piece = queue.popleft()
            self._queued -= len(piece)
            left -= len(piece)
            METER.units += CALL_UNITS + (len(piece) >> 10)
            if not self._encrypt(piece):
                return
        if queue and below.get_write_buffer_size() <= HIGH_BYTES and not self._pumps:
            self._pumps = True
            self._loop.call_soon(self._pump_on)
        if self.get_write_buffer_size() > self._high:
            self._tell_pause()
        elif self._paused_writing and self.get_write_buffer_size() <= self._low:
            self._paused_writing = False
            if self._listens:
                self._listens = False
                below.set_write_buffer_limits(HIGH_BYTES)
            if self._protocol is not None:
                self._protocol.resume_writing()
        if self._paused_writing and not queue:
            self._listen(below)
        if not queue and (self._closing or self._ends):
            self._say_end()

    def _listen(self, below: asyncio.Transport) -> None:
        """Makes the socket's transport call `resume_writing` when little is left. It does so only after it has asked
        for a pause, and fewer bytes may wait there."""
        if not self._listens:
            self._listens = True
            below.set_write_buffer_limits(self._low, self._low)

    def _pump_on(self) -> None:
        self._pumps = False
        self._pump()

    def _flush(self) -> None:
        """Passes the ciphertext that is ready to the socket's transport."""
        data = self._outgoing.read()
        if data and self._below is not None and not self._below.is_closing() and not self._said_end:
            self._below.write(data)

    def _tell_pause(self) -> None:
        if not self._paused_writing and self._protocol is not None and not self._lost:
            self._paused_writing = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._queued + (self._below.get_write_buffer_size() if self._below is not None else 0)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = (HIGH_BYTES if low is None else 4 * low) if high is None else high
        self._high, self._low = high, high // 4 if low is None else low

    # --- the end -----------------------------------------------------------------------------------------------------

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Ends this direction once everything is sent (a close_notify). What the other side sends is still read."""
        if not self._ends and not self._closing:
            self._ends = True
            if not self._queue:
                self._say_end()

    def close(self) -> None:
        """Closes the connection once everything that was written has been sent."""
        if self._closing:
            return
        self._closing = True
        if self._below is not None and not self._below.is_closing():
            self._below.pause_reading()
        if not self._queue:
            self._say_end()

    def _say_end(self) -> None:
        below = self._below
        if below is None or self._lost:
            return
        if not self._said_end:
            with contextlib.suppress(ssl.SSLError):  # the other side has not sent its close_notify yet
                self._ssl.unwrap()
            self._flush()
            self._said_end = True
            if self._ends and below.can_write_eof() and not below.is_closing():
                below.write_eof()
        if self._closing:
            below.close()

    def abort(self) -> None:
        """Closes the connection at once, and drops what has not been sent."""
        self._closing = True
        self._forget()
        self._abort_below()

    def _forget(self) -> None:
        self._queue.clear()
        self._queued = 0

    def is_closing(self) -> bool:
        return self._closing or self._lost

    @property
    def has_protocol(self) -> bool:
        """True once the handshake is complete, unless the connection was closed right then."""
        return self._protocol is not None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return self._context
        if name == "cipher":
            return self._ssl.cipher()
        if name == "peercert":
            return self._ssl.getpeercert()
        return self._below.get_extra_info(name, default) if self._below is not None else default

    @property
    def certificate(self) -> bytes | None:
        """The other side's certificate, DER; None if it presented none."""
        return self._ssl.getpeercert(binary_form=True)
