"""Users and access rules as steps of a scripted run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.options import ROOT
from jepsen_like.sim.users.access_check import AccessCheck, Request
from jepsen_like.sim.users.user_clients import ELSEWHERE, PULLS, TOPICS, Signer, UserStories, usual_rules
from raftmq_wire.codes import RequestCode

TRIES, TRY_S = 3_000, 0.002
"""TRIES: the most times that a step looks for an answer. TRY_S: seconds between two looks."""
SOURCES = {"clients": "10.0.1.0/24", "elsewhere": ELSEWHERE}
PULL_STEPS = ("pull", "lite")
PULL_MS = 10_000


class UserSteps(UserStories):
    """The users of a script. Each user keeps one connection to each node."""

    def __init__(self, host: ClientHost, report: Report, check: AccessCheck) -> None:
        super().__init__(host, report, check)
        self._connections: dict[tuple[str, str], RawConnection] = {}

    async def step(self, node: str, step: str, *, waits: bool) -> None:
        """Takes one step (`what/name/...`) at a node. With `waits`, a change or a send waits for its answer; a pull
        never does. Raises KeyError for an unknown step."""
        what, name, *more = step.split("/")
        connection = await self._at(node, name)
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: self.create(connection, name),
            "remove": lambda: self.remove(connection, name),
            "secret": lambda: self.set_secret(connection, name),
            "disable": lambda: self.set_status(connection, name, enabled=False),
            "enable": lambda: self.set_status(connection, name, enabled=True),
            "usual": lambda: self.set_rules(connection, name, usual_rules()),
            "clear": lambda: self.admin(connection, RequestCode.AUTH_DELETE_ACL, {"subject": f"User:{name}"}),
            "allow": lambda: self.set_rules(connection, name, [_rule(more, allow=True)]),
            "deny": lambda: self.set_rules(connection, name, [_rule(more, allow=False)]),
        }
        if what in changes:
            work = changes[what]()
            await (work if waits else asyncio.sleep(0, self.host.loop.create_task(_awaited(work))))
            return
        request = self._request_of(what, connection, name)
        for _ in range(TRIES if waits and what not in PULL_STEPS else 0):
            if request.answered_s >= 0:
                break
            await asyncio.sleep(TRY_S)

    def _request_of(self, what: str, connection: RawConnection, name: str) -> Request:
        users, topic = self.users, TOPICS[0]
        if what in PULL_STEPS:
            return users.pull(connection, users.signer(name), topic, 0, PULLS[what == "lite"], PULL_MS)
        signers: dict[str, Callable[[], Signer | None]] = {
            "send": lambda: users.signer(name),
            "old": lambda: users.signer(name, old=True),
            "unsigned": lambda: None,
            "forged": lambda: Signer(ROOT[0], users.signer(name).secret),
        }
        return users.send(connection, signers[what](), topic, 0)

    async def _at(self, node: str, name: str) -> RawConnection:
        made = self._connections.get((node, name))
        if made is None or made.closed:
            made = RawConnection(f"{name} at {node}", self.host.loop, self._report)
            self._connections[node, name] = made
            await made.reach(node)
        return made


async def _awaited(work: Awaitable[object]) -> None:
    await work


def _rule(words: list[str], *, allow: bool) -> list[object]:
    """Builds a rule from the words RESOURCE, ACTION and optionally `clients` or `elsewhere`, which limit it to those
    addresses."""
    resource, action, *sources = words
    return [1, resource, [action], [SOURCES[source] for source in sources], allow]
