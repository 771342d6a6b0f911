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
    """Keeps `in_flight` requests out until `seconds` have passed."""

    def __init__(self, topic: str, size: int, batch: int, in_flight: int, seconds: float, queues: int = 4) -> None:
        self.batch = batch
        self.in_flight = in_flight
        self.seconds = seconds
        self.queues = queues
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.acked = self.errors = 0
        self._started: dict[int, float] = {}
        self._opaque = 0
        self._pending = b""
        self._body = _batch_body(size, batch) if batch > 1 else bytes(range(256)) * (size // 256 + 1)
        self._body = self._body if batch > 1 else self._body[:size]
        code = 320 if batch > 1 else 310
        properties = "" if batch > 1 else "TAGS\\u0001bench\\u0002UNIQ_KEY\\u0001%032X\\u0002WAIT\\u0001true\\u0002"
        self._template = (
            '{"code":' + str(code) + ',"extFields":{"a":"bench_producer","b":"' + topic + '","c":"TBW102","d":"4",'
            '"e":"%d","f":"0","g":"1700000000000","h":"0","i":"' + properties + '","j":"0","k":"false","m":"'
            + ("true" if batch > 1 else "false") + '","n":"raftmq"},"flag":0,"language":"JAVA","opaque":%d,'
            '"serializeTypeCurrentRPC":"JSON","version":477}'
        )  # fmt: skip
        self._named = batch == 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Fills the window."""
        self._transport = cast(asyncio.Transport, transport)
        self._until = time.perf_counter() + self.seconds
        self._begin = time.perf_counter()
        self._transport.write(b"".join([self._next() for _ in range(self.in_flight)]))

    def _next(self) -> bytes:
        self._opaque = opaque = self._opaque + 1
        queue = opaque % self.queues
        text = self._template % ((queue, opaque, opaque) if self._named else (queue, opaque))
        header = text.encode()
        self._started[opaque] = time.perf_counter()
        return PREFIX.pack(4 + len(header) + len(self._body), len(header)) + header + self._body

    def data_received(self, data: bytes) -> None:
        """Counts answers and sends as many again."""
        data = self._pending + data
        at, now, out = 0, time.perf_counter(), []
        while len(data) - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            mark = data.index(b'"opaque":', at) + 9
            opaque = int(data[mark : data.index(b",", mark)])
            self.latencies.append((now - self._started.pop(opaque)) * 1000)
            if data.find(b'"code":0,', at, stop) >= 0:
                self.acked += self.batch
            else:
                self.errors += 1
            at = stop
            if now < self._until:
                out.append(self._next())
        self._pending = data[at:]
        if out:
            self._transport.write(b"".join(out))
        elif not self._started and not self.done.done():
            self.elapsed = now - self._begin
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def _batch_body(size: int, batch: int) -> bytes:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    properties = b"TAGS\x01bench\x02WAIT\x01true\x02"
    length = 20 + len(body) + 2 + len(properties)
    one = struct.pack(">iiiii", length, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
    return one * batch


async def _run(host: str, port: int, load: tuple[str, int, int, int, float]) -> Result:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: Load(*load), host, port)
    await asyncio.wait_for(protocol.done, load[4] + 30)
    return Result(protocol.acked, protocol.elapsed, sorted(protocol.latencies), protocol.errors)


def run(host: str, port: int, *, topic: str, size: int, batch: int, in_flight: int, seconds: float) -> Result:
    """Runs one load to its end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(host, port, (topic, size, batch, in_flight, seconds)))
