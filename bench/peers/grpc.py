"""Unary gRPC calls as prebuilt HTTP/2 frames: the part of RFC 9113 that a window of requests needs.

Of an answer, it only notices whether it has a message and that its stream ended. Headers are skipped: a call without a
message has failed. It respects the server's flow control windows for the connection and for each stream.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable

from bench.peers.loads import Window
from bench.peers.system import HOST, Load

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 0x4
DEFAULT_WINDOW, MAX_WINDOW, MAX_FRAME = 65_535, 2**31 - 1, 16_384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes one frame (section 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str, authority: str) -> bytes:
    """Encodes the headers of a call without adding any to HPACK's table, so the block is the same for every call."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    return (
        b"\x83\x86"  # :method POST and :scheme http: entries 3 and 6 of the static table
        + (b"\x04" + text(path))  # :path, entry 4
        + (b"\x01" + text(authority))  # :authority, entry 1
        + (b"\x0f\x10" + text("application/grpc"))  # content-type, entry 31
        + (b"\x00" + text("te") + text("trailers"))
    )


class UnaryCalls(Window):
    """A window of calls of one method. Each place in the window has one message, which is made once."""

    def __init__(self, load: Load, path: str, message: Callable[[int], bytes]) -> None:
        super().__init__(load)
        block = header_block(path, HOST)
        self._headers = len(block).to_bytes(3, "big") + bytes([HEADERS, END_HEADERS]), block
        messages = [message(place) for place in range(load.in_flight)]
        self._messages = [b"\x00" + len(one).to_bytes(4, "big") + one for one in messages]  # flag 0: not compressed
        self._place_of: dict[int, int] = {}
        """Stream -> place, for calls without an answer."""
        self._answered: set[int] = set()
        self._unsent: deque[tuple[int, bytes, int]] = deque()
        """Calls that are not sent completely: (stream, message, bytes of it that are sent), in the order of the
        streams."""
        self._next_stream = 1
        self._room = self._initial_room = DEFAULT_WINDOW
        self._room_of: dict[int, int] = {}
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the greeting with the largest possible windows, so that answers never wait for this client, and
        begins."""
        super().connection_made(transport)
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, MAX_WINDOW)
        more = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MAX_WINDOW - DEFAULT_WINDOW))
        self.transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + more)
        self.begin()

    def send(self, places: list[int]) -> None:
        """Queues a call for each of these places, and sends as many as the server's windows allow."""
        for place in places:
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._place_of[stream] = place
            self._room_of[stream] = self._initial_room
            self._unsent.append((stream, self._messages[place], 0))
        self._flush()

    def _flush(self) -> None:
        """Writes as much as the server's windows allow."""
        out: list[bytes] = []
        start, block = self._headers
        while self._unsent:
            stream, message, at = self._unsent[0]
            part = min(len(message) - at, self._room, self._room_of[stream], MAX_FRAME)
            if part <= 0:
                break
            number = stream.to_bytes(4, "big")
            if at == 0:
                out += (start, number, block)
            last = at + part == len(message)
            out += (part.to_bytes(3, "big"), b"\x00\x01" if last else b"\x00\x00", number, message[at : at + part])
            self._room -= part
            self._room_of[stream] -= part
            if last:
                self._unsent.popleft()
                del self._room_of[stream]
            else:
                self._unsent[0] = stream, message, at + part
        if out:
            self.transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Reads the frames of the answers."""
        data = self._pending + data if self._pending else data
        at, size, now = 0, len(data), time.perf_counter()
        ended: list[int] = []
        refused = 0
        while size - at >= 9:
            stop = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if stop > size:
                break
            kind, flags, stream = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big")
            if kind == DATA:
                self._answered.add(stream)
            elif kind not in (HEADERS, RST_STREAM):
                self._control(kind, flags, stream, data[at + 9 : stop])
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                refused += self._ended(stream, ended, reset=kind == RST_STREAM)
            at = stop
        self._pending = data[at:]
        self.answered(ended, refused, now)
        self._flush()

    def _ended(self, stream: int, ended: list[int], *, reset: bool) -> bool:
        """Handles the end of a call: adds its place to `ended`. Returns True if it was refused, because its answer had
        no message."""
        place = self._place_of.pop(stream, None)
        if place is None:
            return False
        ended.append(place)
        ok = stream in self._answered and not reset
        self._answered.discard(stream)
        return not ok

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Handles frames that concern the connection, or the windows for sending."""
        if kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._room += more
            elif stream in self._room_of:
                self._room_of[stream] += more
        elif kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._change_initial_room(value)
            self.transport.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.fail("the server sent GOAWAY")

    def _change_initial_room(self, value: int) -> None:
        """Changes the initial window; the change applies to open streams as well (section 6.9.2)."""
        for stream in self._room_of:
            self._room_of[stream] += value - self._initial_room
        self._initial_room = value
