"""Cuts a byte stream into length-prefixed frames: `int32 L`, then L bytes. Both protocols of a node use it.

A frame that arrives in many reads is kept as a list of pieces and joined once, so the cost is linear in its size.
"""

from __future__ import annotations

import struct

from raftmq_wire.kernel import twin

_LENGTH = struct.Struct(">i")


class FrameTooLargeError(ValueError):
    """The announced length is negative or above the limit. That is the peer's fault, and the connection is closed."""

    def __init__(self, says: str, length: int = -1, begun: bytes = b"") -> None:
        """`length` is the announced length; `begun` is the part of the frame that has arrived, with its length
        prefix."""
        super().__init__(says)
        self.length = length
        self.begun = begun


@twin
def frames(data: bytes, limit: int) -> tuple[list[tuple[int, int]], int, int | None]:
    """Finds the complete frames at the beginning of `data`. Each is `int32 L`, then L bytes, with 0 <= L <= limit.

    Returns (start, stop) of the L bytes of each frame, the index of the first byte behind them, and the L that is
    announced there, if that frame is incomplete or out of bounds. L is None if fewer than four bytes are left.
    """
    found: list[tuple[int, int]] = []
    at, end = 0, len(data)
    while end - at >= 4:
        (length,) = _LENGTH.unpack_from(data, at)
        stop = at + 4 + length
        if not 0 <= length <= limit or stop > end:
            return found, at, length
        found.append((at + 4, stop))
        at = stop
    return found, at, None


def first_frame(data: bytes, limit: int) -> int:
    """Returns the index behind the first frame of `data`; 0 if the frame is incomplete. Later frames are not checked.
    Raises FrameTooLargeError if the frame's length is negative or above `limit`."""
    if len(data) < 4:
        return 0
    (length,) = _LENGTH.unpack_from(data)
    if not 0 <= length <= limit:
        raise FrameTooLargeError(f"frame of {length} bytes; the limit is {limit}", length, data)
    stop: int = 4 + length
    return stop if len(data) >= stop else 0


class FrameBuffer:
    """Takes bytes as they arrive, and returns the places of complete frames in them, without their length prefix."""

    __slots__ = ("_pieces", "_skips", "buffered", "limit", "needed")

    def __init__(self, limit: int) -> None:
        """`limit` is the greatest acceptable L, in bytes."""
        self.limit = limit
        self._pieces: list[bytes] = []
        self.buffered = 0
        """Bytes kept of an incomplete frame. Invariant: buffered < needed, or both are 0."""
        self.needed = 0
        """Bytes of the incomplete frame with its length prefix: 4 until the prefix has arrived, 0 if no frame has
        begun."""
        self._skips = 0
        """Bytes that have yet to arrive of a frame that was given up."""

    def head(self, size: int) -> bytes:
        """Returns the first `size` bytes of the incomplete frame, with its length prefix; fewer if they have not
        arrived."""
        first = self._pieces[0] if self._pieces else b""
        return first[:size] if len(first) >= size else b"".join(self._pieces)[:size]

    def skip(self) -> None:
        """Gives up the incomplete frame: the bytes that have arrived are dropped, and those still to come are not
        kept."""
        self._skips = self.needed - self.buffered
        self._pieces.clear()
        self.buffered = self.needed = 0

    def feed(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Adds bytes. Returns a buffer, and (start, end) in it of each complete frame, in order; no frame is copied
        here.

        Raises FrameTooLargeError if the length of a frame is negative or above the limit. The FrameBuffer is then
        unusable and keeps nothing.
        """
        if self._skips:
            unwanted = min(self._skips, len(data))
            self._skips -= unwanted
            data = data[unwanted:]
        if self._pieces:
            self._pieces.append(data)
            self.buffered += len(data)
            if self.buffered < self.needed:
                return b"", []
            data = b"".join(self._pieces)
            self._pieces.clear()
        found, at, length = frames(data, self.limit)
        if length is not None and not 0 <= length <= self.limit:
            self.buffered = self.needed = 0
            raise FrameTooLargeError(f"frame of {length} bytes; the limit is {self.limit}", length, data[at:])
        self.buffered = len(data) - at
        self.needed = (4 if length is None else 4 + length) if self.buffered else 0
        if self.buffered:
            self._pieces.append(data[at:] if at else data)
        return data, found


class LongFrame:
    """Replaces a FrameBuffer when a frame above the limit has begun: keeps its first bytes, and returns no frame."""

    __slots__ = ("_kept", "_size", "buffered", "needed", "why")

    def __init__(self, error: FrameTooLargeError, size: int) -> None:
        """`error` is that of the FrameBuffer. `size` is the number of bytes to keep, with the length prefix."""
        self.why = str(error)
        self._kept = error.begun[:size]
        self._size = size
        self.buffered = len(self._kept)
        """Bytes kept; 0 once they are no longer needed."""
        self.needed = 4 + error.length
        """Bytes of the whole frame."""

    def head(self, size: int) -> bytes:
        """Returns the first `size` bytes with the length prefix; fewer if they have not arrived."""
        return self._kept[:size]

    def skip(self) -> None:
        """Drops the bytes that have arrived, and keeps none of those still to come."""
        self._kept = b""
        self.buffered = self._size = 0

    def feed(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Takes data like FrameBuffer's `feed`; no frame is ever complete."""
        if self.buffered < self._size:
            self._kept += data[: self._size - self.buffered]
            self.buffered = len(self._kept)
        return b"", []
