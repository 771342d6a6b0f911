"""Looking for the next leader: the first acknowledged send counts, whatever the nodes did before."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from bench.peers import failover
from bench.peers.loads import Window, acknowledges
from bench.peers.system import HOST, Generator, Load, Node, NoLeader, System, Traits


class OneByte(Window):
    """A protocol of one byte: "?" asks, "y" acknowledges, "n" refuses."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.begin()

    def send(self, places: list[int]) -> None:
        self.transport.write(b"?" * len(places))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.answered([0] * len(data), sum(byte != ord("y") for byte in data), now)


class Server:
    """A node that goes through `script` connection by connection, the last entry for ever: "y", "n", "" hangs up,
    "-" says nothing."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.transports: list[asyncio.Transport] = []

    @property
    def connections(self) -> int:
        return len(self.transports)

    def accepted(self) -> asyncio.Protocol:
        return Accepted(self, self.script.pop(0) if len(self.script) > 1 else self.script[0])

    async def close(self) -> None:
        for transport in self.transports:
            transport.abort()
        await asyncio.sleep(0)  # sockets are closed by the next iteration of the loop


class Accepted(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, server: Server, word: str) -> None:
        self.server, self.word = server, word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.transports.append(self.transport)
        if not self.word:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.word in ("y", "n"):
            self.transport.write(self.word.encode())


class OneByteSystem:
    """The part of a system that a send needs."""

    traits = Traits("fake", "1", "nowhere", warm_s=0.0, batches=False)

    def generator(self, load: Load) -> Generator:
        return OneByte(load)


SYSTEM = cast(System, OneByteSystem())


async def listening(stack: AsyncExitStack, *servers: Server) -> list[Node]:
    nodes = []
    for number, server in enumerate(servers):
        listener = await asyncio.get_running_loop().create_server(server.accepted, HOST, 0)
        stack.push_async_callback(server.close)
        stack.callback(listener.close)
        nodes.append(Node(number, listener.sockets[0].getsockname()[1], 0))
    return nodes


@pytest.mark.parametrize("before", ["n", "", "-"])
async def test_the_first_acknowledged_send_ends_the_search(before: str) -> None:
    """The others refuse, hang up or hang before one of them leads: a send that hangs holds up none."""
    never, later = Server(before), Server(*[before] * 5, "y")
    async with AsyncExitStack() as stack:
        nodes = await listening(stack, never, later)
        await failover.first_acknowledged(SYSTEM, nodes)
    assert later.connections > 5
    assert never.connections > 0


async def test_without_an_acknowledged_send_there_is_no_failover() -> None:
    async with AsyncExitStack() as stack:
        nodes = await listening(stack, Server("n"))
        with pytest.raises(TimeoutError):
            await failover.first_acknowledged(SYSTEM, nodes, 0.1)


@pytest.mark.parametrize(("word", "is_taken"), [("y", True), ("n", False), ("", False)])
async def test_a_send_is_taken_or_not(word: str, is_taken: bool) -> None:
    async with AsyncExitStack() as stack:
        [node] = await listening(stack, Server(word))
        assert await acknowledges(SYSTEM, node, 60.0) is is_taken


def test_what_was_measured_before_a_failure_stays() -> None:
    outcomes: list[Any] = [0.25, 0.5, NoLeader("none came")]

    def once(system: object, fault: failover.Fault) -> float:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return float(outcome)

    told: list[str] = []
    assert failover.repeated(SYSTEM, 2, failover.of_processes(SYSTEM), told.append, once) == [
        {"system": "fake", "fault": "kill -9", "seconds": [0.25, 0.5]},
        {"system": "fake", "fault": "SIGSTOP", "seconds": [], "error": "NoLeader: none came"},
    ]
