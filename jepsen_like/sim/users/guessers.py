"""Clients that guess one user's secret, and another user who signs rightly from the same address. Guesses may delay
only the user whose secret is guessed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, dial
from jepsen_like.sim.users.attackers import NEIGHBOUR
from jepsen_like.sim.users.user_clients import NAMES, Signer, first_secret
from raftmq_wire.codes import RequestCode, ResponseCode

CHECKER = "guesses"
GUESSERS = 24
"""Number of connections that guess at the same time. A node checks guesses for one user from one address at a rate of
one per 75 ms.
"""
SOON_S = 1.0
"""Time in seconds within which the other user must be answered: as long as the network and the check of a signature
take.
"""
BEAT = b'{"clientID":"c"}'
"""A heartbeat of a client in no group: every user may send it, and no other node is asked."""
PAUSE_S = (0.3, 0.8)
ROUND_S = 2.5
"""Time in seconds after which the guessers of one round leave."""


class Guessers(Asker):
    """Runs rounds in which connections from one machine guess a user's secret while another user signs rightly."""

    def __init__(self, host: ClientHost, report: Report, is_calm: Callable[[], bool]) -> None:
        """`is_calm` returns True if no message between nodes is lost or delayed."""
        super().__init__(host, report)
        self._is_calm = is_calm
        self.calm = False
        """True once all faults are healed. Nobody guesses before that, because an answer may then be late for other
        reasons.
        """
        self.rounds = 0
        """Number of rounds in which the other user was answered."""

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stopped:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            if self.calm and self._is_calm():
                await self._round(rng, rng.choice(self.host.nodes))

    async def _round(self, rng: random.Random, node: str) -> None:
        guessed = Signer(rng.choice(NAMES), "guessed-secret")
        dialled = [await dial(self.host, node, "a guesser", self._report, signs=False) for _ in range(GUESSERS)]
        guessers = [made for made in dialled if made is not None]
        other = await dial(self.host, node, "who comes from where guessers are", self._report, signs=False)
        for guesser in guessers:
            guesser.write(guesser.frame(RequestCode.HEART_BEAT, guessed.signed({}, BEAT), BEAT))
        if other is not None:
            await asyncio.sleep(0.02)
            await self._comes(node, other)
        await asyncio.sleep(ROUND_S if guessers else 0)
        for guesser in guessers:
            guesser.transport.close()

    async def _comes(self, node: str, connection: RawConnection) -> None:
        began_s = self.host.loop.now
        signed = Signer(NEIGHBOUR, first_secret(NEIGHBOUR)).signed({}, BEAT)
        answer = await self._ask(connection, RequestCode.HEART_BEAT, signed, BEAT)
        took_s = self.host.loop.now - began_s
        if answer is not None and self._is_calm():
            self.rounds += 1
            if answer.code == ResponseCode.SYSTEM_BUSY:  # other codes may be right: a fresh node cannot verify yet
                what = f"is answered {answer.code} {answer.remark[:100]}"
                self._report(CHECKER, f"{NEIGHBOUR}, whom nobody guesses, {what} at {node}")
            elif took_s > SOON_S:
                self._report(CHECKER, f"{NEIGHBOUR}, whom nobody guesses, waits {took_s:.2f} s at {node}")
        connection.transport.close()
