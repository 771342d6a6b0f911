"""One question on a raw connection, and its answer."""

from __future__ import annotations

import asyncio
import random

from jepsen_like.sim.clients import ClientHost
from jepsen_like.sim.machine import BROKER_PORT
from jepsen_like.sim.raw_client import Answer, RawConnection, Report

ANSWER_S = 6.0


async def dial(host: ClientHost, rng: random.Random, name: str, report: Report) -> RawConnection | None:
    """A connection to any node; None if it does not come about."""
    made = RawConnection(name, host.loop, report)
    try:
        await asyncio.get_running_loop().create_connection(lambda: made, rng.choice(host.nodes), BROKER_PORT)
    except OSError:
        return None
    return made


async def ask(
    host: ClientHost, connection: RawConnection, code: int, ext: dict[str, str], body: bytes = b""
) -> Answer | None:
    """None: no answer in time, and the connection is given up."""
    future: asyncio.Future[Answer | None] = host.loop.create_future()

    def ended(answer: Answer | None) -> None:
        if not future.done():
            future.set_result(answer)

    if connection.closed:
        return None
    connection.on_lost.append(lambda: ended(None))
    connection.write(connection.frame(code, ext, body, heard=ended))
    try:
        async with asyncio.timeout(ANSWER_S):
            return await future
    except TimeoutError:
        connection.transport.abort()
        return None
