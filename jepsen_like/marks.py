"""Marks in the bodies of messages: each names the topic to which its message was sent, so that a reader of raw bytes
can tell whose message they contain.

Tests of users' rights put a mark into each body that they send, and search for marks in all bytes that go to a client,
whatever the answer that contains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raftmq_wire.codec import CodecError, Header, decode_header

_MARK = re.compile(rb"<<mark:([^<>]{1,300})>>")
FRAME_MAX = 64 << 20
"""Largest length of a frame in bytes. A larger one in a frame's first four bytes means that the stream is not made of
frames.
"""
_TAIL = 320
"""Number of bytes kept from the end of an unframed stream: at least as many as an incomplete mark can have."""


def mark_of(topic: str) -> bytes:
    """Returns the mark of a topic: its name between `<<mark:` and `>>`."""
    return b"<<mark:%b>>" % topic.encode()


def marks_in(data: bytes | bytearray) -> list[str]:
    """Returns the topics that the marks in these bytes name, each once, in the order of their names."""
    return sorted({found.decode("utf-8", "replace") for found in _MARK.findall(data)}) if b"<<mark:" in data else []


class MarkedStream:
    """Cuts the bytes that go to one client into frames, and finds the marks in each. Bytes that are no frame, such as
    those of HTTP, are searched too; a mark that is cut into two pieces is found when its end comes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_framed = True

    def take(self, data: bytes) -> Iterator[tuple[Header | None, list[str]]]:
        """Takes the next bytes of the stream. Yields (header of the frame, topics that its marks name) for each frame
        that contains marks. The header is None for bytes that are no frame.
        """
        self._buffer += data
        at, buffer = 0, self._buffer
        while self._is_framed and len(buffer) - at >= 8:
            size = int.from_bytes(buffer[at : at + 4], "big")
            head = int.from_bytes(buffer[at + 5 : at + 8], "big")
            if not 4 <= size <= FRAME_MAX or head > size - 4:
                self._is_framed = False
                break
            if len(buffer) - at < 4 + size:
                break
            if topics := marks_in(buffer[at : at + 4 + size]):
                yield _header(buffer, at, head), topics
            at += 4 + size
        del buffer[:at]
        if not self._is_framed:
            if topics := marks_in(buffer):
                yield None, topics
                buffer.clear()
            del buffer[:-_TAIL]

    def rest(self) -> list[str]:
        """Returns the topics of the marks in the bytes of the last, incomplete frame. It is called when the connection
        has ended.
        """
        return marks_in(self._buffer)


def _header(buffer: bytearray, at: int, head: int) -> Header | None:
    try:
        return decode_header(buffer[at + 4], bytes(buffer[at + 8 : at + 8 + head]))
    except CodecError:
        return None
