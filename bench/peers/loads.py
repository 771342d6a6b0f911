"""Driving load generators: a window of prebuilt requests on one connection, and single sends that look for a leader.

As lean as `raftmq.commands.bench_load`, whose rules it shares: one process, uvloop, no future or task per message. What
the generator costs must not be what limits a system.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import uvloop

from bench.peers.system import HOST, Generator, Load, Node, System
from raftmq.commands.bench_load import Result

PATIENCE_S = 30.0
ONE = Load(1024, 1, 1, 0.0)
"""A single message."""


class Window(asyncio.Protocol):
    """Keeps `load.in_flight` requests out until `load.seconds` have passed, then waits for the last answers.

    A protocol's own module says how to greet (`connection_made`, then `begin`), how to `send` the requests of some
    places of the window, and calls `settle` for each answer and `again` once per `data_received`.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.acked = self.errors = 0
        self.elapsed = 0.0
        self._started = [0.0] * load.in_flight
        self._out = 0
        self._begin = self._until = 0.0

    def send(self, places: Iterable[int]) -> None:
        """Writes one request for each place, all in one write."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.transport = cast(asyncio.Transport, transport)  # what a stream connection gives (asyncio.Protocol)

    def begin(self) -> None:
        """Fills the window; the clock starts here, after the greeting."""
        self._begin = time.perf_counter()
        self._until = self._begin + self.load.seconds
        self._started = [self._begin] * self.load.in_flight
        self._out = self.load.in_flight
        self.send(range(self.load.in_flight))

    def settle(self, place: int, *, ok: bool, now: float) -> bool:
        """Counts one answer that came at `now` (perf_counter); True if the place is to be sent again."""
        self.latencies.append((now - self._started[place]) * 1000)
        if ok:
            self.acked += self.load.batch
        else:
            self.errors += 1
        if now < self._until:
            self._started[place] = now
            return True
        self._out -= 1
        return False

    def again(self, places: list[int], now: float) -> None:
        """Sends what `settle` said is to be sent, or ends the run when nothing is out any more."""
        if places:
            self.send(places)
        elif not self._out and self._begin and not self.done.done():
            self.elapsed = now - self._begin
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        """Ends the run as failed: the server said what no generator can go on with."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def body(size: int) -> bytes:
    """The same bytes for every system."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def run(system: System, node: Node, load: Load) -> Result:
    """Runs one load against one node to its end. Raises OSError (ConnectionError, TimeoutError)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(system, node, load, load.seconds + PATIENCE_S))


def takes_writes(system: System, node: Node, patience_s: float = 2.0) -> bool:
    """Sends one message to the node; True if it was acknowledged in time."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(acknowledges(system, node, patience_s))


def answers(system: System, node: Node, patience_s: float = 2.0) -> bool:
    """Sends one message to the node; True if it was acknowledged or refused in time."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(system, node, ONE, patience_s))
    except OSError:
        return False
    return True


async def acknowledges(system: System, node: Node, patience_s: float) -> bool:
    """`takes_writes` on the running loop."""
    try:
        return (await _run(system, node, ONE, patience_s)).messages == 1
    except OSError:
        return False


@asynccontextmanager
async def running(system: System, node: Node, load: Load) -> AsyncIterator[Generator]:
    """A generator at work on the running loop; its connection is cut when the block is left, whoever ended it."""
    generator = system.generator(load)
    generator.done.add_done_callback(_retrieve)
    # The generators are protocols; `Generator` names only what is read from them.
    make = partial(cast, asyncio.Protocol, generator)
    transport, _ = await asyncio.get_running_loop().create_connection(make, HOST, node.port)
    try:
        yield generator
    finally:
        transport.abort()


async def _run(system: System, node: Node, load: Load, patience_s: float) -> Result:
    async with running(system, node, load) as generator:
        await asyncio.wait_for(generator.done, patience_s)
    return Result(generator.acked, generator.elapsed, sorted(generator.latencies), generator.errors)


def _retrieve(done: asyncio.Future[None]) -> None:
    """Takes note of an error that nobody waits for: asyncio would print it."""
    if not done.cancelled():
        done.exception()
