"""Opens raw connections and sends single requests on them; `Asker` is the base class of the clients that do so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import Client, ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.machines.machine import BROKER_PORT

ANSWER_S = 6.0


async def connects(made: RawConnection, node: str, port: int = BROKER_PORT) -> bool:
    """Connects `made` to the node; returns False if that fails."""
    try:
        await made.reach(node, port)
    except OSError:
        return False
    return True


async def dial(
    host: ClientHost, node: str, name: str, report: Report, *, signs: bool = True, port: int = BROKER_PORT
) -> RawConnection | None:
    """Opens a raw connection to the node; returns None if that fails. `signs`: requests are signed with the host's
    credentials."""
    made = RawConnection(name, host.loop, report, host.credentials if signs else None)
    return made if await connects(made, node, port) else None


async def ask(
    host: ClientHost, connection: RawConnection, code: int, ext: dict[str, str], body: bytes = b""
) -> Answer | None:
    """Sends a request and returns its answer. Returns None if the connection is closed or gets lost, or if no answer
    comes within ANSWER_S seconds; in the last case the connection is closed."""
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


class Asker(Client):
    """A client of the load that sends its requests on raw connections and reports violations itself."""

    def __init__(self, host: ClientHost, report: Report) -> None:
        super().__init__(host)
        self._report = report

    async def _dial(self, rng: random.Random, name: str) -> RawConnection | None:
        return await dial(self.host, rng.choice(self.host.nodes), name, self._report)

    async def _ask(self, connection: RawConnection, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        return await ask(self.host, connection, code, ext, body)

    async def _in_turns(
        self,
        rng: random.Random,
        pause_s: tuple[float, float],
        redials: float,
        name: str,
        act: Callable[[RawConnection], Awaitable[None]],
    ) -> None:
        """Repeats until stopped: pauses, then calls `act` with a connection. With probability `redials` the connection
        is a new one; if that is 0, no random number is drawn."""
        connection: RawConnection | None = None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(*pause_s))
            if connection is None or connection.closed or (redials and rng.random() < redials):
                connection = await self._dial(rng, name)
            if connection is not None:
                await act(connection)
