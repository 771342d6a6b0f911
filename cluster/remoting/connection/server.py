"""Implements the connections of the remoting protocol: one asyncio.Protocol per connection, and no task or future per
request.

All frames of one read are parsed in one loop; replies are collected per connection and sent in one write per loop
iteration. A malformed or oversized frame closes its connection, is logged once, and affects no other connection. An
oversized frame is answered before that, as soon as its header has arrived.

The memory of a connection is reserved before the work (`cluster.remoting.connection.connection_memory`). Reading is
paused while the client reads no answers, while an answer waits for memory, or while there is no memory for the arriving
frame. Received frames wait in order. A connection that makes no progress for long is closed
(`cluster.remoting.connection.stuck_clients`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cluster.remoting.connection.connection_memory import (
    CLOGGED_BYTES,
    COUNTED_BYTES,
    EARLY_BYTES,
    FIRST_ANSWER_BYTES,
    SMALL_FRAME_BYTES,
    ConnectionMemory,
)
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.other_protocols import Guest, guest_of
from cluster.remoting.connection.reply_path import ReplyPath, pack_host
from cluster.remoting.request import Request
from cluster.requests.table import too_long
from cluster.runtime.framing import FrameBuffer, FrameTooLargeError, LongFrame
from cluster.runtime.resource_budget import Share, Waiter
from raftlog.work import CALL_UNITS, FRAME_UNITS, ITEM_UNITS, METER, charge_text
from raftmq_wire.codec import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEADER_AT,
    CodecError,
    check_header_size,
    decode_header,
    encode_frame,
)
from raftmq_wire.codes import ResponseCode

if TYPE_CHECKING:
    from cluster.runtime.turns.work import Turns, WorkSteps

logger = logging.getLogger(__name__)

LONG_FRAME_BYTES = 4096
"""The cost of parsing a header longer than this is charged separately. Only frames longer than this are compared here
with the limit of their request code; `cluster.remoting.handler_table` enforces the limits below this."""
WORKS_MAX = 16
"""The most pieces of a connection's work that may wait for their turns. At this limit no more frames are dispatched."""
STEP_UNITS = 250
"""Units of work (`raftlog.work`) of one step in which requests that wait for a turn are handled."""
WRITE_BUFFER_MAX = 64 << 20
"""Bytes. A connection with more unsent bytes is closed although reading is paused, because answers to earlier requests
and notifications still arrive."""
FAREWELL_S = 2.0
"""Seconds that a client has to read its last answers, such as the refusal of an oversized frame, before its connection
is closed."""
_UNKNOWN = ("127.0.0.1", 0)
"""The address of a client before it is known."""


def raw_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """Returns a frame, without its length prefix, made of header and body."""
    return b"".join(((serialize_type << 24 | len(header)).to_bytes(4, "big"), header, body))


class Dispatch:
    """Receives the requests of all connections. The node's router implements it."""

    memory: ConnectionMemory
    """The memory accounts of all connections."""
    turns: Turns
    """Shares the turns of the loop between connections."""

    def on_request(self, frame: Frame) -> None:
        """Handles a request frame; called for each one, including oneway ones."""
        raise NotImplementedError

    def take_sends(self, connection: RemotingConnection, data: bytes, frames: list[tuple[int, int]], at: int) -> int:
        """Takes sends among the frames of a read, from index `at` on. Called before `on_request` if the frame at `at`
        may be a send. Returns the index of the first frame for `on_request`."""
        return at

    def on_too_long(self, frame: Frame, remark: str) -> None:
        """Handles a request whose body is longer than its request code allows. The body is not passed, and may not have
        arrived. Only a frame of at most LONG_FRAME_BYTES reaches `on_request` with such a body."""
        raise NotImplementedError

    def on_oversized(self, frame: Frame, remark: str) -> None:
        """Handles a request that is longer than any request may be. The body is not passed, and the connection ends
        after the answer."""
        raise NotImplementedError

    def on_open(self, connection: RemotingConnection) -> bool:
        """Registers a new connection. Returns False to refuse it, because there are too many."""
        raise NotImplementedError

    def on_close(self, connection: RemotingConnection) -> None:
        """Called when the connection has closed."""
        raise NotImplementedError

    def follow(self, connection: RemotingConnection) -> None:
        """Called when the connection has unfinished work, so that its progress is watched
        (`cluster.remoting.connection.stuck_clients`)."""
        raise NotImplementedError


class Leaving(Dispatch):
    """Replaces the dispatch of a connection that the node is about to close."""

    def __init__(self, before: Dispatch, remark: str) -> None:
        self._before = before
        self._remark = remark
        self.on_too_long = before.on_too_long  # type: ignore[method-assign]
        self.on_oversized = before.on_oversized  # type: ignore[method-assign]
        self.on_open = before.on_open  # type: ignore[method-assign]
        self.on_close = before.on_close  # type: ignore[method-assign]
        self.follow = before.follow  # type: ignore[method-assign]
        self.memory = before.memory
        self.turns = before.turns

    def on_request(self, frame: Frame) -> None:
        """Refuses the request. It was not processed, so the client may send it again to any node."""
        header = frame.header
        if not header.flag & FLAG_ONEWAY:
            frame.path.write(
                encode_frame(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    header.opaque,
                    FLAG_RESPONSE,
                    remark=self._remark,
                    serialize_type=frame.serialize_type,
                    language="JAVA",
                    reader=header.language,
                )
            )


class RemotingConnection(ReplyPath, asyncio.Protocol):
    """The connection of one client."""

    __slots__ = (
        "_backlog",
        "_buffer",
        "_clogged",
        "_dispatch",
        "_ending",
        "_halted",
        "_loop",
        "_memory",
        "_out",
        "_out_is_large",
        "_pauses",
        "_said_goodbye",
        "_step_ends",
        "_transport",
        "_turn_wanted",
        "_unfinished",
        "_unsent",
        "_waits",
        "_wanted",
        "_works",
        "finished",
        "handed",
        "opened_s",
        "received",
    )

    def __init__(self, dispatch: Dispatch, listener: str, frame_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory = dispatch.memory
        super().__init__(_UNKNOWN, listener, memory.unsent.inside(memory.connection_unsent_max), memory.gate)
        self._dispatch = dispatch
        self._buffer: FrameBuffer | LongFrame = FrameBuffer(frame_max)
        self._loop = loop
        self._out: list[bytes] = []
        self._out_is_large = False
        """True if the queued output contains large bodies, which are not joined, because that would copy them."""
        self._said_goodbye = False
        self._transport: asyncio.Transport | None = None
        self._unsent = self.room.share()
        """Unsent bytes for the client, without those of the current loop iteration."""
        self._unfinished: Share | None = None
        """The memory reserved for the arriving frame, if it is a large one; None otherwise."""
        self._wanted: Waiter | None = None
        """The connection's place in the queue for that memory; None if the connection does not wait for memory."""
        self._waits = 0
        """The number of reasons why the connection waits: the number of answers that wait for memory, plus one while
        too much work waits for its turn, plus one while frames wait for a turn."""
        self._works = 0
        """The number of pieces of work that wait for their turns."""
        self._turn_wanted = False
        """True while frames wait for another turn of the loop, because the share of this one is used up."""
        self._step_ends: int | None = None
        """Value of the work meter at which the present step of frames that waited for a turn ends; None outside of a
        step."""
        self._clogged = False
        """True while the transport reports that the client is slow."""
        self._halted = False
        """True while no frame is dispatched; received ones stay in the backlog."""
        self._ending = False
        """True once this node has ended the connection, or the client has disconnected. Frames that wait are dropped,
        and so are those that still arrive: they would be carried out, and nobody would learn the outcome."""
        self._pauses = False
        """True while the transport reads nothing."""
        self._backlog: list[tuple[bytes, list[tuple[int, int]]]] = []
        self.received = 0
        """Bytes received; `stuck_clients` reads this number."""
        self.handed = 0
        """Bytes given to the transport."""
        self.opened_s = 0.0
        """Time at which the client connected, by the loop's clock."""
        self.finished = False
        """True if a frame was completed since the last check of `stuck_clients`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the connection of a client."""
        # uvloop's transport is no subclass of asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.opened_s = self._loop.time()
        self.secure = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername")
        self.peer_address = (str(peer[0]), int(peer[1])) if peer else _UNKNOWN
        self.born_host = pack_host(*self.peer_address)
        self.in_flight = self._memory.gate.holder(self.peer_address[0])  # no request has arrived yet: no user is known
        if not self._dispatch.on_open(self):
            self.closed = True
            self.abort()

    @property
    def age_s(self) -> float:
        return self._loop.time() - self.opened_s

    # --- what comes --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Dispatches every complete frame, or keeps it while an earlier one has to wait. Keeps the bytes of an
        incomplete frame."""
        self.received += len(data)
        if self._ending:
            return
        try:
            buffer, frames = self._buffer.feed(data)
            # Also charges for writing the answers.
            METER.units += 2 * CALL_UNITS + (len(data) >> 10) + ITEM_UNITS * len(frames)
            if frames:
                self.finished = True
                if self._unfinished is not None or self._wanted is not None:
                    self._free_frame()
                if self._halted:
                    self._backlog.append((buffer, frames))
                else:
                    self._serve(buffer, frames)
            if self._buffer.buffered:
                self._dispatch.follow(self)
                if self._buffer.needed > SMALL_FRAME_BYTES and self._unfinished is None:
                    self._begin_large_frame()
        except FrameTooLargeError as error:
            self._begin_oversized(error)
        except CodecError as error:
            self._bad_frame(error)

    def _begin_oversized(self, error: FrameTooLargeError) -> None:
        """Handles the beginning of a frame above the limit. Its header tells where to send the answer; the rest is
        neither kept nor awaited."""
        self._free_frame()
        if (guest := guest_of(error.begun)) is not None:
            self._see_off(guest, error)
            return
        if error.length < 0:
            self._bad_frame(error)
            return
        self._buffer = buffer = LongFrame(error, EARLY_BYTES)
        self._dispatch.follow(self)
        try:
            self._refuse_oversized(buffer)
        except CodecError as bad:
            self._bad_frame(bad)

    def _see_off(self, guest: Guest, error: FrameTooLargeError) -> None:
        """Answers a client of another protocol, in that protocol, that it is at the wrong port, and closes the
        connection."""
        logger.warning("%s:%d is at the wrong port, connection closed: %s", *self.peer_address, guest.says)
        if not guest.answer:
            self.abort()
            return
        self._buffer = buffer = LongFrame(error, EARLY_BYTES)
        buffer.skip()
        self._backlog.clear()
        self.write_all(guest.answer)
        self.say_goodbye()
        self._loop.call_later(FAREWELL_S, self.abort)

    def _refuse_oversized(self, buffer: LongFrame) -> None:
        """Answers the frame once its header is here, and ends the connection. Raises CodecError if the header is
        malformed or too long, or if the frame is an answer."""
        begun = buffer.head(HEADER_AT)
        if len(begun) < HEADER_AT:
            return
        end = HEADER_AT + int.from_bytes(begun[5:HEADER_AT], "big")
        if end > EARLY_BYTES:
            raise CodecError(f"{buffer.why}; its header has {end - HEADER_AT} bytes")
        if end > buffer.buffered:
            return
        header = decode_header(begun[4], buffer.head(end)[HEADER_AT:])
        buffer.skip()
        if header.flag & FLAG_RESPONSE:
            raise CodecError(f"{buffer.why}; it is an answer")
        logger.warning("%s:%d sent an oversized frame, connection closed: %s", *self.peer_address, buffer.why)
        self._backlog.clear()
        self._dispatch.on_oversized(Frame(self, begun[4], header, b"", b"", 0), f"{buffer.why} (frame_bytes_max)")
        self.say_goodbye()
        self._loop.call_later(FAREWELL_S, self.abort)

    def _bad_frame(self, error: Exception) -> None:
        logger.warning("%s:%d sent a bad frame, connection closed: %s", *self.peer_address, error)
        self.abort()

    def _serve(self, buffer: bytes, frames: list[tuple[int, int]]) -> None:
        """Dispatches frames until one has to wait; keeps that frame and the later ones. Raises CodecError for a
        malformed frame."""
        at, count = 0, len(frames)
        while at < count:
            if self.session is not None and (at := self._dispatch.take_sends(self, buffer, frames, at)) == count:
                return
            METER.units += FRAME_UNITS
            start, stop = frames[at]
            at += 1
            if stop - start < 4:
                raise CodecError(f"a frame of {stop - start} bytes has no header word")
            end = start + 4 + int.from_bytes(buffer[start + 1 : start + 4], "big")
            if end > stop:
                raise CodecError("the header is longer than its frame")
            header_bytes = buffer[start + 4 : end]
            is_long = stop - start > LONG_FRAME_BYTES
            if is_long and len(header_bytes) > LONG_FRAME_BYTES:
                charge_text(len(header_bytes))
            serialize_type = buffer[start]
            header = decode_header(serialize_type, header_bytes)
            if not header.flag & FLAG_RESPONSE:
                if is_long and (remark := too_long(header.code, stop - end)):
                    self._dispatch.on_too_long(Frame(self, serialize_type, header, b"", b"", 0), remark)
                else:
                    body = buffer[end:stop]
                    self._dispatch.on_request(Frame(self, serialize_type, header, header_bytes, body, stop - start - 4))
            elif self.calls is not None:
                self.calls.on_response(header, buffer[end:stop])
            if at < count and self._is_turn_over():
                self._want_turn()
            if self._halted:
                rest = frames[at:]
                if rest and not self._ending:
                    first = rest[0][0]
                    kept = buffer[first : rest[-1][1]]  # counts only this read, not a large frame before it
                    self._backlog.insert(0, (kept, [(begin - first, end - first) for begin, end in rest]))
                return

    def _is_turn_over(self) -> bool:
        """Returns True if the frames have used up their step, or if this turn of the loop has no time left."""
        if self._step_ends is None:
            return self._dispatch.turns.spent()
        return METER.units >= self._step_ends

    def _want_turn(self) -> None:
        """Makes the remaining frames continue in a turn that has room, one step of each connection after the other.
        They count as a separate owner of work, so requests that are cut into steps do not delay the frames behind
        them."""
        if self._turn_wanted or self._ending:
            return
        self._turn_wanted = True
        self._waits += 1
        self._halt()
        if self._step_ends is None:
            self._dispatch.turns.begin(("frames", self), self._serve_in_turns())

    def _serve_in_turns(self) -> WorkSteps:
        while self._turn_wanted:
            self._turn_wanted = False
            self._waits -= 1
            self._step_ends = METER.units + STEP_UNITS
            try:
                self.go_on()
            finally:
                self._step_ends = None
            if self._turn_wanted:
                yield

    def _begin_large_frame(self) -> None:
        """Refuses the arriving large frame by its header, or reserves memory for it. A refused frame is neither kept
        nor awaited: touching that much memory for the first time would block this node longer than an honest
        request."""
        buffer = self._buffer
        if isinstance(buffer, LongFrame):
            self._refuse_oversized(buffer)
            return
        begun = buffer.head(HEADER_AT)
        check_header_size(begun)
        end = HEADER_AT + int.from_bytes(begun[5:HEADER_AT], "big")
        if len(begun) == HEADER_AT and HEADER_AT < end <= min(buffer.buffered, buffer.needed):
            header = decode_header(begun[4], buffer.head(end)[HEADER_AT:])
            remark = None if header.flag & FLAG_RESPONSE else too_long(header.code, buffer.needed - end)
            if remark is not None:
                buffer.skip()
                if self._wanted is not None:
                    self._free_frame()
                self._dispatch.on_too_long(Frame(self, begun[4], header, b"", b"", 0), remark)
                return
        self._claim_frame()

    def _claim_frame(self) -> None:
        """Reserves memory for the complete frame that is arriving, or pauses reading until there is some."""
        needed = self._buffer.needed
        if self.closed or self._buffer.buffered < EARLY_BYTES:
            return
        room = self._memory.frame_room(needed)
        if room.fits(needed):
            self._unfinished, self._wanted = room.share(needed), None
        else:
            self._wanted = room.wait(needed, self._claim_frame)
        self._set_reading()

    def _free_frame(self) -> None:
        """Releases the memory of a large frame that is complete or abandoned."""
        if self._unfinished is not None:
            self._unfinished.hold(0)
            self._unfinished = None
        if self._wanted is not None:
            self._wanted.leave()
            self._wanted = None
            self._set_reading()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        room = self.room
        if room.fits(size) or (size <= FIRST_ANSWER_BYTES and not room.taken and not self._waits):
            return True
        self._waits += 1
        self._halt()

        def granted() -> None:
            self._waits -= 1
            if self.closed:
                return
            self._loop.call_soon(self.go_on)
            again()

        self.room.wait(size, granted)
        return False

    def room_given_back(self) -> None:
        """Checks whether reading can continue. Called when a request has released its memory: if its answer is small,
        or if it gets none, no other event causes this check."""
        if self._halted and not self._waits:
            self._loop.call_soon(self.go_on)

    def _halt(self) -> None:
        if not self._halted:
            self._halted = True
            self._set_reading()

    def work_waits(self, count: int) -> None:
        before, self._works = self._works, self._works + count
        if before < WORKS_MAX <= self._works:
            self._waits += 1
            self._halt()
        elif self._works < WORKS_MAX <= before:
            self._waits -= 1
            if not self.closed:
                self._loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Continues with waiting frames and reading if nothing blocks them. Called whenever that may have changed."""
        if self._ending or not self._halted or self._waits or self._is_over():
            return
        self._halted = False
        try:
            while self._backlog and not self._halted:
                self._serve(*self._backlog.pop(0))
                if self._backlog and self._is_turn_over():
                    self._want_turn()
        except CodecError as error:
            self._bad_frame(error)
        self._set_reading()

    def _is_over(self) -> bool:
        """Returns True if too many bytes wait for this client, or if any wait while all clients together exceed the
        node's limit."""
        node = self._memory.unsent
        return self.room.taken >= self.room.size or (self._unsent.held > 0 and node.taken >= node.size)

    def _set_reading(self) -> None:
        pause = self._halted or self._wanted is not None
        transport = self._transport
        if pause == self._pauses or transport is None or transport.is_closing():
            return
        self._pauses = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # --- what goes ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queues bytes; all bytes queued in this loop iteration are sent in one write."""
        self._queue((data,), len(data))

    def write_parts(self, head: bytes, body: bytes) -> None:
        if len(body) <= COUNTED_BYTES:
            self.write(head + body)
        else:
            self._out_is_large = True
            self._queue((head, body), len(head) + len(body))

    def _queue(self, parts: tuple[bytes, ...], size: int) -> None:
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts
        if size > COUNTED_BYTES:
            self._unsent.hold(self._unsent.held + size)
            if self._is_over():
                self._halt()

    def write_all(self, data: bytes) -> None:
        """Writes the answers to all sends of an entry, back to back. Does not wait for more answers, which would cost
        an iteration of the loop. The transport itself joins the bytes that are written in one iteration."""
        if self.closed:
            return
        self._out.append(data)
        if len(self._out) == 1:
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        large, self._out_is_large = self._out_is_large, False
        if self.closed or self._transport is None or self._said_goodbye or not out:
            return
        if large:
            size = sum(map(len, out))
            self._transport.writelines(out)
        else:
            data = out[0] if len(out) == 1 else b"".join(out)
            size = len(data)
            self._transport.write(data)
        self.handed += size
        if size >> 10:  # the write call itself was already charged with the read
            METER.units += size >> 10
        if self._clogged or self._unsent.held or size > CLOGGED_BYTES:
            self.count_unsent()

    def count_unsent(self) -> None:
        """Updates the count of unsent bytes for the client. Closes the connection if more than WRITE_BUFFER_MAX wait in
        the transport."""
        size = self.unsent_bytes
        if size > WRITE_BUFFER_MAX:
            logger.warning("%s:%d does not read its replies, connection closed", *self.peer_address)
            self.abort()
            return
        self._unsent.hold((size if size > CLOGGED_BYTES else 0) + sum(map(len, self._out)))
        if size > CLOGGED_BYTES:
            self._dispatch.follow(self)
        if self._is_over():
            self._halt()
        elif self._halted and not self._waits:
            self._loop.call_soon(self.go_on)

    def pause_writing(self) -> None:
        """Records that the client reads more slowly than data is sent."""
        self._clogged = True

    def resume_writing(self) -> None:
        """Records that the client has caught up, and updates the count of unsent bytes."""
        self._clogged = False
        if self._unsent.held:
            self.count_unsent()

    # --- what `stuck_clients` looks at -------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport buffers for the client."""
        return self._transport.get_write_buffer_size() if self._transport is not None and not self.closed else 0

    @property
    def is_slow(self) -> bool:
        """True if answers wait for the client to read them."""
        return self._unsent.held > 0

    @property
    def is_unfinished(self) -> bool:
        """True if this node waits for the rest of a frame."""
        return self._buffer.buffered > 0 and not self._pauses

    @property
    def holds_room(self) -> bool:
        """True if its unfinished frame holds memory that others may need, and the client, not this node, causes the
        delay."""
        return self._unfinished is not None and not self._waits

    # --- the end -----------------------------------------------------------------------------------------------------

    def leave(self, remark: str) -> None:
        """Answers every further request at once with code 14 and `remark`; requests in progress continue."""
        self._dispatch = Leaving(self._dispatch, remark)

    def say_goodbye(self) -> None:
        """Sends the queued bytes and closes this side: the client closes its own when it has read everything."""
        self._flush()
        self._said_goodbye = True
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def end_in(self, seconds: float) -> None:
        """Closes the connection after so many seconds."""
        self._loop.call_later(seconds, self.leave_now)

    def leave_now(self) -> None:
        """Sends the queued answers and closes the connection, at the latest after FAREWELL_S seconds. Later answers are
        dropped, and so are requests that wait to be dispatched."""
        self._serve_no_more()
        self.say_goodbye()
        self._loop.call_later(FAREWELL_S, self.abort)

    def abort(self) -> None:
        """Closes the connection at once."""
        self._serve_no_more()
        if self._transport is not None:
            self._transport.abort()

    def _serve_no_more(self) -> None:
        self._ending = self._halted = True
        self._backlog.clear()
        self._free_frame()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the client has disconnected; calls the registered callbacks."""
        if self.closed:
            return
        self.closed = True
        self._serve_no_more()
        self.room.close()
        self._dispatch.on_close(self)
        self.tell_closed()


def unsupported(request: Request) -> None:
    """Answers a request with an unsupported code."""
    request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
