"""Takes a right away after all faults are healed: pulls are parked on every node, and each must be answered with code
16 (no permission) within a second. A follower may answer that no message came instead: then the pull is sent again, and
must not be let in (ADR 0104).

Only nodes that keep up are judged: those that had applied the user's rules when the pulls came, and apply the change
within a quarter of that second. Others learn of the rules or of the change too late (seed 940080016).

A node that has just installed a snapshot restarts, and may then answer for a moment that it can verify no signature
(code 14), because it has not heard from a leader yet. Such pulls are asked again before the right is taken away (seed
790000171).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from cluster.peer.confirmed_index import WAIT_MS as UNSURE_MS
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import dial
from jepsen_like.sim.users.access_check import AccessCheck, Request
from jepsen_like.sim.users.user_clients import CALM_TOPIC, PULLS, Signer, UserStories, first_secret, usual_rules
from raftmq_wire.codes import RequestCode, ResponseCode

NAME = "dot"
PULLS_EACH, WAIT_MS, AGAIN_MS = 3, 60_000, 100
PARKED_S, TOLD_S = 1.0, 1.0
"""PARKED_S: time in seconds until all pulls are parked. TOLD_S: time in seconds from the change until all of them must
be answered."""
SURE_S = 1.5 * UNSURE_MS / 1000
"""Time in seconds within which a follower becomes sure of a denial, or answers that it cannot be sure."""
KNOWN_S = TOLD_S / 4
"""Time in seconds from the change until a node that keeps up has applied it."""
TRIES = 5
"""The most times that a node is asked to park the pulls; then it counts as one that does not deny them."""

Parked = tuple[RawConnection, list[Request]]


class Revocation(UserStories):
    """Runs the scenario once, with a user that does nothing else (NAME). `done` is True when everything has been
    observed."""

    def __init__(self, host: ClientHost, report: Report, check: AccessCheck, nodes: Callable[[], list[str]]) -> None:
        """`nodes`: returns the addresses of the running nodes."""
        super().__init__(host, report, check)
        self._nodes = nodes
        self.users.secrets[NAME] = [first_secret(NAME)]

    def start(self) -> None:
        """Starts the scenario as a task."""
        self._spawn(self._work)

    async def _work(self) -> None:
        admin = await self._connect(self._nodes()[0])
        if admin is None:
            return
        await self.create(admin, NAME)
        await self.set_rules(admin, NAME, usual_rules())
        allowed = self.check.look()
        await asyncio.sleep(PARKED_S)
        signer = self.users.signer(NAME)
        waiting = await self._park(signer)
        if await self._revoke(admin):
            gone, gone_s = self.check.look(), self.host.loop.now
            await asyncio.sleep(TOLD_S)
            told_nothing = list[str]()
            for address, (_, requests) in waiting.items():
                keeping_up = [
                    each
                    for each in requests
                    if self.check.had_applied(each.node, allowed, each.asked_s)
                    and self.check.had_applied(each.node, gone, gone_s + KNOWN_S)
                ]
                if any(each.passed and self.check.makes_sure(each.node) for each in keeping_up):
                    told_nothing.append(address)
                else:
                    self._judge(keeping_up)
            await self._ask_again(told_nothing, signer)
        for connection, _ in waiting.values():
            connection.transport.close()
        admin.transport.close()

    async def _park(self, signer: Signer) -> dict[str, Parked]:
        """Parks pulls on every node; returns them by the node's address."""
        waiting: dict[str, Parked] = {}
        for _ in range(TRIES):
            for node in [node for node, parked in waiting.items() if _are_lost(*parked)]:
                waiting.pop(node)[0].transport.close()
            for node in self._nodes():
                connection = None if node in waiting else await self._connect(node)
                if connection is not None:
                    pulls = partial(self.users.pull, connection, signer, CALM_TOPIC, 0)
                    waiting[node] = connection, [pulls(PULLS[at % 2], WAIT_MS) for at in range(PULLS_EACH)]
            await asyncio.sleep(PARKED_S)
            if not any(_are_lost(*parked) for parked in waiting.values()):
                break
        return waiting

    async def _revoke(self, admin: RawConnection) -> bool:
        """Revokes the user's right by deleting its rules, disabling it, changing its secret or deleting it. Returns
        True if the change was made."""
        name = {"username": NAME}
        status = {**name, "userStatus": "disable"}
        other = {**name, "password": self.users.new_secret(NAME)}
        ways: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: self.admin(admin, RequestCode.AUTH_DELETE_ACL, {"subject": f"User:{NAME}"}),
            lambda: self.admin(admin, RequestCode.AUTH_UPDATE_USER, name, status),
            lambda: self.admin(admin, RequestCode.AUTH_UPDATE_USER, name, other),
            lambda: self.admin(admin, RequestCode.AUTH_DELETE_USER, name),
        )
        answer = await self.rng.choice(ways)()
        return getattr(answer, "code", None) == ResponseCode.SUCCESS

    async def _ask_again(self, told_nothing: list[str], signer: Signer) -> None:
        """Sends a pull to each node that answered that no message came; none of these pulls may be let through. Other
        answers, or none, are right: a pull may get code 14, or wait behind wrong signatures of others at this
        address."""
        asked = list[Parked]()
        for address in told_nothing:
            connection = await self._connect(address)
            if connection is not None:
                asked.append((connection, [self.users.pull(connection, signer, CALM_TOPIC, 0, PULLS[0], AGAIN_MS)]))
        if asked:
            await asyncio.sleep(SURE_S)
        pulls = [request for _, requests in asked for request in requests]
        self._judge([pull for pull in pulls if pull.passed])
        for connection, _ in asked:
            connection.transport.close()

    def _judge(self, waiting: list[Request]) -> None:
        for request in waiting:
            if request.denied:
                continue
            how = "has no answer" if request.answered_s < 0 else "is not denied"
            self._report("users", f"{request.what} at node {request.node} {how} {TOLD_S} s after its right was gone")
            return

    async def _connect(self, node: str) -> RawConnection | None:
        return await dial(self.host, node, f"{NAME} at {node}", self._report, signs=False)


def _are_lost(connection: RawConnection, requests: list[Request]) -> bool:
    """Returns True if these pulls cannot be judged: the node has closed the connection, or has refused a pull without a
    decision about the right.
    """
    refused = [each for each in requests if each.answered_s >= 0 and not (each.passed or each.denied)]
    return connection.closed or bool(refused)
