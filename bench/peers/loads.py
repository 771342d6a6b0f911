"""Drives load generators: a window of prebuilt requests on each connection, and single sends that look for a leader.

Every system has the window of `raftmq.commands.bench_load`: one process, uvloop, no future or task per message, all
answers of a read counted at once. The cost of the generator must not be what limits a system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from typing import cast

import uvloop

from bench.peers.system import Generator, Load, Node, System
from raftmq.commands import bench_load
from raftmq.commands.bench_load import Result

PATIENCE_S = 30.0
ONE = Load(1024, 1, 1, 0.0)
"""A load of a single message."""


class Window(bench_load.Window):
    """The window of a `Load`; documented in its base class."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.in_flight, load.batch, load.seconds)


def body(size: int) -> bytes:
    """Returns a body of `size` bytes, the same for every system."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def run(system: System, node: Node, load: Load) -> Result:
    """Runs one load against one node to its end. Raises OSError (ConnectionError, TimeoutError)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(system, node, load, load.seconds + PATIENCE_S))


def takes_writes(system: System, node: Node, patience_s: float = 2.0) -> bool:
    """Sends one message to the node; returns True if it was acknowledged in time."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(acknowledges(system, node, patience_s))


def answers(system: System, node: Node, patience_s: float = 2.0) -> bool:
    """Sends one message to the node; returns True if it was acknowledged or refused in time."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(system, node, ONE, patience_s))
    except OSError:
        return False
    return True


async def acknowledges(system: System, node: Node, patience_s: float) -> bool:
    """Returns True if the node acknowledges a message in time: `takes_writes` for callers on an event loop."""
    try:
        return (await _run(system, node, ONE, patience_s)).messages == 1
    except OSError:
        return False


@asynccontextmanager
async def running(make: Callable[[Load], Generator], node: Node, load: Load) -> AsyncIterator[Generator]:
    """Yields a generator, made by `make`, that is running on the current event loop. However the block ends, its
    connection is cut then."""
    generator = make(load)
    generator.done.add_done_callback(_retrieve)
    # The generators are protocols of asyncio; the type `Generator` has only the attributes that are read from them.
    itself = partial(cast, asyncio.Protocol, generator)
    transport, _ = await asyncio.get_running_loop().create_connection(itself, node.host, node.port)
    try:
        yield generator
    finally:
        transport.abort()


async def _run(system: System, node: Node, load: Load, patience_s: float) -> Result:
    share = load._replace(in_flight=load.in_flight // load.connections, connections=1)
    async with AsyncExitStack() as ending:
        each = [
            await ending.enter_async_context(running(system.generator, node, share)) for _ in range(load.connections)
        ]
        await asyncio.wait_for(asyncio.gather(*[one.done for one in each]), patience_s)
    latencies = sorted(chain.from_iterable(one.latencies for one in each))
    return Result(
        sum(one.acked for one in each), max(one.elapsed for one in each), latencies, sum(one.errors for one in each)
    )


def _retrieve(done: asyncio.Future[None]) -> None:
    """Retrieves the exception of a task whose result is not used; otherwise asyncio would print it."""
    if not done.cancelled():
        done.exception()
