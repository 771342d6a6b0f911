"""A lean load generator: prebuilt frames on one connection, a fixed number in flight, latencies by opaque.

Not our client on purpose: what it costs must not be counted as the server's. One process, uvloop, no futures.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import NamedTuple, cast

import uvloop

PREFIX = struct.Struct(">ii")


class Result(NamedTuple):
    """One run: messages acknowledged, seconds, request latencies (ms, sorted), requests refused or unknown."""

    messages: int
    seconds: float
    latencies_ms: list[float]
    errors: int


class Load(asyncio.Protocol):
    """Keeps `in_flight` requests out until `seconds` have passed: one prebuilt frame per place in the window."""

    def __init__(
        self, topic: str, size: int, batch: int, in_flight: int, seconds: float, properties: str = "", queues: int = 4
    ) -> None:
        """`properties`: of every message beside its own, as JSON text (name\\u0001value\\u0002); not for batches."""
        self.batch = batch
        self.seconds = seconds
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.acked = self.errors = 0
        self._out = 0
        self._pending = b""
        body = batch_body(size, batch) if batch > 1 else (bytes(range(256)) * (size // 256 + 1))[:size]
        self._frames = [
            request_frame(topic, opaque, opaque % queues, batch, body, properties) for opaque in range(in_flight)
        ]
        self._started = [0.0] * in_flight

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fills the window."""
        self._transport = cast(asyncio.Transport, transport)
        self._begin = time.perf_counter()
        self._until = self._begin + self.seconds
        self._started = [self._begin] * len(self._frames)
        self._out = len(self._frames)
        self._transport.write(b"".join(self._frames))

    def data_received(self, data: bytes) -> None:
        """Counts answers and sends as many again."""
        if self._pending:
            data = self._pending + data
        at, end, now = 0, len(data), time.perf_counter()
        again: list[bytes] = []
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            mark = data.index(b'"opaque":', at) + 9
            place = int(data[mark : data.index(b",", mark)])
            self.latencies.append((now - self._started[place]) * 1000)
            if data.startswith(b'{"code":0,', at + 8):
                self.acked += self.batch
            else:
                self.errors += 1
            at = stop
            if now < self._until:
                self._started[place] = now
                again.append(self._frames[place])
            else:
                self._out -= 1
        self._pending = data[at:]
        if again:
            self._transport.write(b"".join(again))
        elif not self._out and not self.done.done():
            self.elapsed = now - self._begin
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def request_frame(topic: str, opaque: int, queue: int, batch: int, body: bytes, more: str = "") -> bytes:
    """A send request as the Java client writes it; `body` of a batch as `batch_body` makes it, `more` properties."""
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
    """`batch` messages of `size` bytes each, as code 320 carries them."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    properties = b"TAGS\x01bench\x02WAIT\x01true\x02"
    length = 20 + len(body) + 2 + len(properties)
    one = struct.pack(">iiiii", length, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
    return one * batch


async def _run(host: str, port: int, connections: int, load: tuple[str, int, int, int, float, str, int]) -> Result:
    loop = asyncio.get_running_loop()
    loads = [(await loop.create_connection(lambda: Load(*load), host, port))[1] for _ in range(connections)]
    await asyncio.wait_for(asyncio.gather(*(each.done for each in loads)), load[4] + 30)
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
) -> Result:
    """Runs one load to its end; see Load. Each of the connections has `in_flight` requests out."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(host, port, connections, (topic, size, batch, in_flight, seconds, properties, queues)))
