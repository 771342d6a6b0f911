"""Clients that register in groups by heartbeats and stay: clients without a user that came before rights were enforced,
and clients whose user's rules change later. The check of shared things (`shared_check`) decides which of them may still
be registered."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, connects, dial
from jepsen_like.sim.users.user_clients import GROUP, NAMES, TOPICS, Signer
from raftmq_wire.codes import RequestCode

STRANGERS, PRODUCERS = "strangers", "users-producers"
KEPT_MAX = 12
"""The most connections of users that are open at once."""


def beat(client_id: str, consumers: str, producers: str) -> bytes:
    """Returns the body of a heartbeat of a client that consumes in one group and produces in another."""
    subscription = {"topic": TOPICS[0], "subString": "*", "subVersion": 1}
    consumer = {"groupName": consumers, "subscriptionDataSet": [subscription]}
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": producers}]}
    return json.dumps(body).encode()


class Registrations(Asker):
    """Registers clients without a user, and clients of users again and again. Setting `stopped` closes the connections
    of the users' clients."""

    def __init__(self, host: ClientHost, report: Report, signer: Callable[[str], Signer]) -> None:
        """`signer` returns a user with its newest secret."""
        super().__init__(host, report)
        self._signer = signer
        self._open: list[RawConnection] = []

    def come_early(self) -> None:
        """Registers a client without a user at each node. Must be called before there are users. The connections stay
        open."""
        for node in self.host.nodes:
            self._spawn(partial(self._stranger, node))

    async def _stranger(self, node: str) -> None:
        made = RawConnection(f"a stranger at {node}", self.host.loop, self._report)
        if await connects(made, node):
            await self._ask(made, RequestCode.HEART_BEAT, {}, beat(f"stranger-{node}", STRANGERS, STRANGERS))

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        await self._in_turns(rng, (0.1, 0.5), 1.0, "a registered user", partial(self._register, rng))
        for connection in self._open:
            connection.transport.close()

    async def _register(self, rng: random.Random, connection: RawConnection) -> None:
        name = rng.choice(NAMES)
        body = beat(f"{name}-{rng.randrange(4)}", GROUP, PRODUCERS)
        await self._ask(connection, RequestCode.HEART_BEAT, self._signer(name).signed({}, body), body)
        self._open.append(connection)
        if len(self._open) > KEPT_MAX:
            self._open.pop(rng.randrange(KEPT_MAX)).transport.close()

    async def _dial(self, rng: random.Random, name: str) -> RawConnection | None:
        return await dial(self.host, rng.choice(self.host.nodes), name, self._report, signs=False)
