"""Users that create and revoke their own tokens, and an operator that gives users new secrets and keeps some of their
tokens. They propose the commands that the HTTP API would, because simulated nodes do not serve that API. The check of
shared things (`shared_check`) decides which tokens may exist.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster.broker.access.user_admin import Asker
from jepsen_like.sim.clients.client_machines import Client, ClientHost
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.users.first_users import OPERATOR, attempt
from jepsen_like.sim.users.user_clients import NAMES

if TYPE_CHECKING:
    from cluster.broker.access.user_admin import Changed, UserAdmin

LABELS, KEPT = ("job", "login on a laptop", "ci"), ("ci",)
"""LABELS: the labels of tokens. KEPT: the labels of the tokens that an operator may keep when it gives a user a new
secret."""
PAUSE_S: Final = (0.05, 0.3)
DAY_MS: Final = 86_400_000
DIGEST_BYTES: Final = 32


class TokenOwners(Client):
    """Creates and revokes tokens as users do, and gives users new secrets as an operator does. Makes these changes
    directly at the leader."""

    def __init__(
        self,
        host: ClientHost,
        leader: Callable[[], Machine | None],
        new_secret: Callable[[str], str],
    ) -> None:
        """`new_secret` returns a secret that a user never had, and records it as the user's newest."""
        super().__init__(host)
        self._leader, self._new_secret = leader, new_secret
        self._digests: list[bytes] = []

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stopped:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            machine = self._leader()
            if machine is not None and hasattr(machine.node, "serving"):
                act = rng.choice((self._gives, self._gives, self._gives, self._takes, self._changes))
                attempt(machine, partial(act, rng, rng.choice(NAMES)), [])

    def _gives(self, rng: random.Random, name: str, users: UserAdmin, told: Changed) -> None:
        self._digests.append(rng.randbytes(DIGEST_BYTES))
        ends_ms = self.host.environment.now_ms() + DAY_MS
        asker = Asker(name, self.host.process.host)
        users.put_token(asker, users.user(name), self._digests[-1], ends_ms, rng.choice(LABELS), told)

    def _takes(self, rng: random.Random, name: str, users: UserAdmin, told: Changed) -> None:
        if self._digests:
            digest = self._digests.pop(rng.randrange(len(self._digests)))
            users.remove_token(Asker(name, self.host.process.host), digest, told)

    def _changes(self, rng: random.Random, name: str, users: UserAdmin, told: Changed) -> None:
        kept = rng.choice(((), KEPT))
        users.user(name)  # raises if there is no such user
        users.change(OPERATOR, name, told, secret=self._new_secret(name), keep_tokens=kept)
