"""A lean consumer for the benchmarks: prebuilt pulls on one connection, a fixed number in flight.

It reads the head of each answer and skips the messages, so that its cost is small compared with the server's.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple, cast

import uvloop

from raftmq.commands.bench_load import PREFIX

GROUP = "bench_consumer"


class Pulled(NamedTuple):
    """The result of one run: the number of pulls answered with messages, the bytes of stored messages in these answers,
    and the seconds of the run."""

    pulls: int
    size_bytes: int
    seconds: float


def _frame(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {
            "code": code,
            "extFields": ext,
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 477,
        },
        separators=(",", ":"),
    ).encode()
    return PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def heartbeat_frame(topic: str, opaque: int = 0) -> bytes:
    """Returns a heartbeat that subscribes GROUP to all messages of the topic."""
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1, "tagsSet": []}
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "BROADCASTING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": "bench@pulls", "consumerDataSet": [consumer], "producerDataSet": []}
    return _frame(34, opaque, {}, json.dumps(body).encode())


def pull_frame(topic: str, opaque: int, queue_id: int, offset: int, count: int, size_max: int) -> bytes:
    """Returns a pull as the Java push consumer writes it: it uses the group's subscription and may wait for
    messages."""
    ext = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "1",
        "expressionType": "TAG",
        "maxMsgBytes": str(size_max),
    }
    return _frame(11, opaque, ext)


class Consumer(asyncio.Protocol):
    """Sends the pulls in `frames`, in turn, until `seconds` have passed; with `seconds` 0, sends each frame once. At
    most `in_flight` pulls are unanswered at a time."""

    def __init__(self, topic: str, frames: list[bytes], in_flight: int, seconds: float) -> None:
        self._frames = frames
        self._subscribe = heartbeat_frame(topic)
        self._in_flight = min(in_flight, len(frames))
        self._seconds = seconds
        self._taken = self._out = self._skip = 0
        self._pending = b""
        self.pulls = self.size_bytes = 0
        """The number of answers, and the bytes of stored messages in them."""
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done once the subscription was accepted."""
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the subscription."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._subscribe)

    def begin(self) -> None:
        """Sends the first pulls."""
        self._until = time.perf_counter() + self._seconds
        self._out = self._in_flight
        self._transport.write(b"".join([self._take() for _ in range(self._in_flight)]))

    def _take(self) -> bytes:
        frame = self._frames[self._taken % len(self._frames)]
        self._taken += 1
        return frame

    def data_received(self, data: bytes) -> None:
        """Reads the heads of answers and skips the messages."""
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data = self._pending + (data[self._skip :] if self._skip else data)
        at, end = 0, len(data)
        while end - at >= 8:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            head = 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            if end - at < head:
                break
            self._answered(data[at + 8 : at + head], size - head)
            at += size
        self._skip = max(0, at - end)
        self._pending = data[at:]

    def _answered(self, header: bytes, size: int) -> None:
        if b'"code":0,' not in header:
            self._fail(RuntimeError(f"refused: {header.decode()}"))
        elif not self.ready.done():
            self.ready.set_result(None)
        else:
            self.pulls += 1
            self.size_bytes += size
            if time.perf_counter() < self._until if self._seconds else self._taken < len(self._frames):
                self._transport.write(self._take())
                return
            self._out -= 1
            if not self._out:
                self.done.set_result(None)

    def _fail(self, error: Exception) -> None:
        for future in (self.ready, self.done):
            if not future.done():
                future.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run when the connection is lost."""
        self._fail(exc or ConnectionError("the server closed the connection"))


async def _pull(host: str, port: int, topic: str, shares: list[list[bytes]], in_flight: int, seconds: float) -> Pulled:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda frames=frames: Consumer(topic, frames, in_flight, seconds), host, port)  # type: ignore[misc]
        for frames in shares
    ]
    consumers = [consumer for _, consumer in made]
    await asyncio.wait_for(asyncio.gather(*[consumer.ready for consumer in consumers]), 10)
    begun = time.perf_counter()
    for consumer in consumers:
        consumer.begin()
    await asyncio.wait_for(asyncio.gather(*[consumer.done for consumer in consumers]), seconds + 60)
    elapsed = time.perf_counter() - begun
    return Pulled(sum(one.pulls for one in consumers), sum(one.size_bytes for one in consumers), elapsed)


def pull(host: str, port: int, topic: str, shares: list[list[bytes]], in_flight: int, seconds: float) -> Pulled:
    """Opens a connection with a Consumer for each list of frames in `shares`, and lets all of them pull at the same
    time (`in_flight` and `seconds` as for Consumer). Returns their totals."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_pull(host, port, topic, shares, in_flight, seconds))
