"""Clients that send by a schedule, whatever they were answered, each on a raw connection from an address of its own
choice: what each of their sends was answered, and what every node has of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, frames_of, request
from raftmq_wire.codec import FLAG_RESPONSE
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.support.live_nodes import LiveCluster
from tests.support.wait_until import until

OK, BUSY = ResponseCode.SUCCESS.value, ResponseCode.SYSTEM_BUSY.value
PADDING = b"." * 1000
LIVELY_S = 0.01
"""Seconds between two looks at what is due."""


class Sender(asyncio.Protocol):
    """One connection. Sends are numbered by the one who sends; each is answered once at most."""

    def __init__(self, topic: str) -> None:
        self._fields = send_fields(topic)
        self._buffer = bytearray()
        self._transport: Any = None
        self._waiting: set[int] = set()
        self.codes: dict[int, int] = {}
        """Number of a send -> the code that it was answered with."""
        self.twice: list[int] = []
        """Numbers of answers that nothing waited for."""
        self.lost: set[int] = set()
        """Sends whose connection was lost before they were answered: their fate is unknown."""
        self.is_open = False

    @classmethod
    async def dial(cls, port: int, topic: str, address: str = HOST) -> Self:
        """Opens a connection from that address. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(topic), HOST, port, local_addr=(address, 0))
        return made

    @property
    def waiting(self) -> int:
        """The number of sends without an answer."""
        return len(self._waiting)

    def send(self, number: int) -> None:
        """Sends a message of 1 KiB. Without a connection its fate counts as unknown."""
        if not self.is_open:
            self.lost.add(number)
            return
        self._waiting.add(number)
        _, frame = request(RequestCode.SEND_MESSAGE_V2, self._fields, body_of(number), opaque=number)
        self._transport.write(frame)

    def close(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for header, _ in frames_of(self._buffer):
            if header.flag & FLAG_RESPONSE:
                if header.opaque not in self._waiting:
                    self.twice.append(header.opaque)
                self._waiting.discard(header.opaque)
                self.codes[header.opaque] = header.code

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.lost |= self._waiting
        self._waiting.clear()


def body_of(number: int) -> bytes:
    return b"%d-" % number + PADDING


class OpenLoop:
    """Senders in turn, at a rate that does not follow the answers. Made by `open_loop`."""

    def __init__(self) -> None:
        self.senders: list[Sender] = []
        self.sent = 0

    def send_each(self) -> None:
        """Lets every client send one message at once."""
        for each in self.senders:
            each.send(self.sent)
            self.sent += 1

    async def run(self, seconds: float, per_second: float) -> None:
        """Sends what is due until the time is over. The sends of a process that was late are due together."""
        begun_s, before = time.monotonic(), self.sent
        while (passed_s := time.monotonic() - begun_s) < seconds:
            due = before + int(per_second * passed_s)
            while self.sent < due:
                self.senders[self.sent % len(self.senders)].send(self.sent)
                self.sent += 1
            await asyncio.sleep(LIVELY_S)

    async def answered(self) -> Counter[int]:
        """Waits until no send waits any more. Returns code -> number of sends."""

        def waiting() -> int:
            return sum(each.waiting for each in self.senders)

        await until(lambda: not waiting(), progress=waiting, every_s=0.05)
        assert not [each.twice for each in self.senders if each.twice], "answered twice"
        return Counter(code for each in self.senders for code in each.codes.values())

    def of(self, code: int) -> set[int]:
        """Returns the numbers of the sends that were answered with it."""
        return {number for each in self.senders for number, found in each.codes.items() if found == code}

    @property
    def lost(self) -> set[int]:
        """The sends whose fate is unknown to the client."""
        return set().union(*(each.lost for each in self.senders))


@asynccontextmanager
async def open_loop(ports: list[int], topic: str, count: int, addresses: int = 1) -> AsyncIterator[OpenLoop]:
    """Opens so many connections at once, to these ports in turn, from so many addresses in turn; closes them in the
    end. Raises OSError."""
    loop = OpenLoop()

    async def dial(number: int) -> None:
        address = f"127.0.0.{2 + number % addresses}"
        loop.senders.append(await Sender.dial(ports[number % len(ports)], topic, address))

    try:
        await asyncio.gather(*(dial(number) for number in range(count)))
        yield loop
    finally:
        for each in loop.senders:
            each.close()
        await asyncio.sleep(0)


def judge_stored(cluster: LiveCluster, topic: str, loop: OpenLoop) -> None:
    """Demands of every node: it has each acknowledged send, none that was refused, and none twice."""
    cluster.wait_equal()
    acknowledged, refused = loop.of(OK), loop.of(BUSY)
    for node, messages in cluster.stored(topic).items():
        found = Counter(int(message.body.partition(b"-")[0]) for message in messages)
        assert not acknowledged - found.keys(), f"node {node} lost what was acknowledged"
        assert not refused & found.keys(), f"node {node} has what was refused"
        assert max(found.values()) == 1, f"node {node} has a send twice"


def load_of(cluster: LiveCluster, node: int) -> dict[str, Any]:
    """What a node says of its load."""
    found: dict[str, Any] = cluster.ask(node, "/v1/status")["load"]
    return found


@contextmanager
def slow_disks(cluster: LiveCluster, kilobytes_per_second: int) -> Iterator[None]:
    """Gives every node's log a disk that takes so much, so that few sends are more than it takes."""
    nodes = [node.id for node in cluster.nodes]
    for node in nodes:
        cluster.failpoint(node, "append.fdatasync", f"rate:{kilobytes_per_second}kB")
    try:
        yield
    finally:
        cluster.heal()
        for node in nodes:
            cluster.failpoint(node, "append.fdatasync", "off")
