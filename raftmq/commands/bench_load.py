"""A lean load generator: prebuilt frames on one connection, latencies measured by opaque. It is a closed loop, with a
fixed number in flight, unless it gets arrivals by a schedule (`raftmq.commands.open_arrivals`).

It does not use RaftMQ's client, on purpose: the client's cost must not be counted as the server's. One process, uvloop,
no futures.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, cast

import uvloop

from raftmq.client.environment import REAL, Dial
from raftmq.client.tls import Tls, TlsDialler
from raftmq.commands.open_arrivals import UNKNOWN, Arrivals
from raftmq_wire.codec import decode_header
from raftmq_wire.codes import ResponseCode, is_unknown
from raftmq_wire.signature import Credentials

PREFIX = struct.Struct(">ii")
OPAQUE = re.compile(rb'"opaque":(\d+),')
PATIENCE_S = 30.0
"""Seconds after the end of a load in which answers are still waited for."""
STORED = b'{"code":0,'
NO_CODES: Mapping[int, int] = MappingProxyType({})


class Result(NamedTuple):
    """The result of one run: messages acknowledged, seconds, request latencies (ms, sorted), requests refused or
    unknown."""

    messages: int
    seconds: float
    latencies_ms: list[float]
    errors: int

    def __repr__(self) -> str:
        """Returns a short text, because asyncio.Runner formats the result of its task twice, and the full text would
        have a latency for each request."""
        return f"<messages {self.messages} in {self.seconds:.3f} s, errors {self.errors}>"


class Window(asyncio.Protocol):
    """Keeps `in_flight` requests unanswered until `seconds` have passed, then waits for the last answers. There is one
    prebuilt frame per place in the window. Answers are counted once per read, not one by one.

    A subclass, one per protocol, fills `frames`, calls `begin` after its greeting, and `answered` for the answers that
    it has read.
    """

    def __init__(self, in_flight: int, batch: int, seconds: float) -> None:
        self.batch = batch
        self.seconds = seconds
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.acked = self.errors = 0
        self.elapsed = 0.0
        self.frames: list[bytes] = []
        self._in_flight = in_flight
        self._whole = b""
        """All frames joined, once they have been sent together; b"" before."""
        self._started = [0.0] * in_flight
        self._out = 0
        self.arrivals: Arrivals | None = None
        """The schedule of requests in an open loop; None in a closed loop."""
        self._begin = self._until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self.transport = cast(asyncio.Transport, transport)  # a stream connection has this kind of transport

    def begin(self) -> None:
        """Sends the first request of each place; the clock starts here, after the greeting. In an open loop, starts or
        continues the schedule instead."""
        if self.arrivals is not None:
            self.arrivals.begin(self._in_flight, self.send, self.done)
            return
        self._begin = time.perf_counter()
        self._until = self._begin + self.seconds
        self._started = [self._begin] * self._in_flight
        self._out = self._in_flight
        self.send(list(range(self._in_flight)))

    def send(self, places: list[int]) -> None:
        """Writes the request of each place, all in one write."""
        if len(places) < len(self.frames):
            self.transport.write(b"".join([self.frames[place] for place in places]))
        else:  # each place occurs once, so these are all places
            self._whole = self._whole or b"".join(self.frames)
            self.transport.write(self._whole)

    def answered(self, places: list[int], refused: int, now: float, codes: Mapping[int, int] = NO_CODES) -> None:
        """Processes answers that came at `now` (perf_counter), one for each place, `refused` of them refusals. `codes`:
        place -> response code of a refusal, if the protocol has codes. Sends the requests of these places again. When
        the time is over, sends nothing more, and ends the run once no request is unanswered."""
        if not places:
            return
        if self.arrivals is not None:
            self.arrivals.answered(places, refused, codes, now)
            return
        started = self._started
        self.latencies += [(now - started[place]) * 1000 for place in places]
        self.acked += (len(places) - refused) * self.batch
        self.errors += refused
        if now < self._until:
            for place in places:
                started[place] = now
            self.send(places)
            return
        self._out -= len(places)
        if not self._out and not self.done.done():
            self.elapsed = now - self._begin
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        """Ends the run as failed, because the server sent something after which the generator cannot continue."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run when the connection is lost; an open loop waits for the next one."""
        if self.arrivals is not None:
            self.arrivals.lost()
        elif not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


class Load(Window):
    """A load of sends in RocketMQ's frames, with a fixed number in flight."""

    def __init__(
        self,
        topic: str,
        size: int,
        batch: int,
        in_flight: int,
        seconds: float,
        properties: str = "",
        queues: int = 4,
        credentials: Credentials | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`properties`: added to each message's own, as JSON text (name\\u0001value\\u0002); not for batches.
        `arrivals`: the schedule of an open loop, which then decides when the run ends."""
        super().__init__(in_flight, batch, seconds)
        self.arrivals = arrivals
        body = batch_body(size, batch) if batch > 1 else (bytes(range(256)) * (size // 256 + 1))[:size]
        self.frames = [
            request_frame(topic, opaque, opaque % queues, batch, body, properties) for opaque in range(in_flight)
        ]
        if credentials is not None:
            self.frames = [signed_frame(frame, credentials) for frame in self.frames]
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins at once: this protocol has no greeting."""
        super().connection_made(transport)
        self._pending = b""
        self.begin()

    def data_received(self, data: bytes) -> None:
        """Reads answers. The header of an answer begins with the code, and has once the opaque of its request, which is
        the request's place."""
        if self._pending:
            data = self._pending + data
        now = time.perf_counter()
        stop, count = whole_frames(data)
        self._pending = data[stop:]
        places = [int(place) for place in OPAQUE.findall(data, 0, stop)]
        if len(places) != count:
            self.fail(f"{count} answers with {len(places)} opaques: {data[:stop]!r:.500}")
            return
        refused = count - data.count(STORED, 0, stop)
        self.answered(places, refused, now, refusals(data, stop) if refused else NO_CODES)


def refusals(data: bytes, stop: int) -> dict[int, int]:
    """Returns opaque -> code for the answers up to `stop` that are refusals, and opaque -> UNKNOWN for those that leave
    open whether the message is stored."""
    found = {}
    at = 0
    while at < stop:
        begin, end = at + 8, at + 4 + int.from_bytes(data[at : at + 4], "big")
        header = decode_header(data[at + 4], data[begin : begin + int.from_bytes(data[at + 5 : begin], "big")])
        if header.code != ResponseCode.SUCCESS:
            found[header.opaque] = UNKNOWN if is_unknown(header.code, header.remark) else header.code
        at = end
    return found


def whole_frames(data: bytes) -> tuple[int, int]:
    """Returns the end of the last complete frame, and the number of frames up to there."""
    at, end, count = 0, len(data), 0
    while end - at >= 4 and (stop := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= end:
        at, count = stop, count + 1
    return at, count


def request_frame(topic: str, opaque: int, queue: int, batch: int, body: bytes, more: str = "") -> bytes:
    """Returns a send request as the Java client writes it. For a batch, `body` comes from `batch_body`; `more` are
    further properties."""
    single = f"TAGS\\u0001bench\\u0002UNIQ_KEY\\u0001{opaque:032X}\\u0002WAIT\\u0001true\\u0002{more}"
    properties = single if batch == 1 else ""
    header = (
        f'{{"code":{310 if batch == 1 else 320},"extFields":{{"a":"bench_producer","b":"{topic}","c":"TBW102","d":"4",'
        f'"e":"{queue}","f":"0","g":"1700000000000","h":"0","i":"{properties}","j":"0","k":"false",'
        f'"m":"{str(batch > 1).lower()}","n":"raftmq"}},"flag":0,"language":"JAVA","opaque":{opaque},'
        '"serializeTypeCurrentRPC":"JSON","version":477}'
    ).encode()
    return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def batch_body(size: int, batch: int) -> bytes:
    """Returns the body of a batch of `batch` messages of `size` bytes each, as request code 320 (SEND_BATCH_MESSAGE)
    carries it."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    properties = b"TAGS\x01bench\x02WAIT\x01true\x02"
    length = 20 + len(body) + 2 + len(properties)
    one = struct.pack(">iiiii", length, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
    return one * batch


def signed_frame(frame: bytes, credentials: Credentials) -> bytes:
    """Returns a frame that `request_frame` made, signed by a user."""
    end = 8 + int.from_bytes(frame[5:8], "big")
    header, body = json.loads(frame[8:end]), frame[end:]
    header["extFields"] = credentials.signed(header["extFields"], body)
    signed = json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(4 + len(signed) + len(body), len(signed)) + signed + body


def itself(load: Load) -> Load:
    """Returns the load itself. `dial` needs a function that returns the protocol of a connection."""
    return load


async def drive(loads: Sequence[Load], dial: Dial, host: str, port: int, within_s: float) -> None:
    """Opens a connection for each load, waits until all loads have ended, and closes the connections. Raises OSError;
    TimeoutError if the loads have not ended after `within_s` seconds."""
    dialled: list[Load] = []
    try:
        for load in loads:
            await dial(host, port, partial(itself, load))
            dialled.append(load)
        await asyncio.wait_for(asyncio.gather(*(load.done for load in loads)), within_s)
    finally:
        for load in dialled:
            load.transport.abort()


async def _run(
    host: str,
    port: int,
    connections: int,
    load: tuple[str, int, int, int, float, str, int, Credentials | None],
    tls: Tls | None,
) -> Result:
    loads = [Load(*load) for _ in range(connections)]
    await drive(loads, REAL.dial if tls is None else TlsDialler(tls).dial, host, port, load[4] + PATIENCE_S)
    latencies = sorted(latency for each in loads for latency in each.latencies)
    seconds = max(each.elapsed for each in loads)
    return Result(sum(each.acked for each in loads), seconds, latencies, sum(each.errors for each in loads))


def run(
    host: str,
    port: int,
    *,
    topic: str,
    size: int,
    batch: int,
    in_flight: int,
    seconds: float,
    properties: str = "",
    queues: int = 4,
    connections: int = 1,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
) -> Result:
    """Runs one load to its end, with the parameters of Load. Each of the `connections` has `in_flight` requests
    unanswered. Requests are signed if there are `credentials`."""
    load = topic, size, batch, in_flight, seconds, properties, queues, credentials
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(host, port, connections, load, tls))
