"""Queue locks as steps of a scripted run: clients `a`, `b`, ... lock, unlock and commit, and an operator deletes the
group or the topic that they locked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.locks.lock_client import LockClient
from jepsen_like.sim.locks.lock_judge import LockJudge

GROUP, TOPIC, QUEUES = "locks", "locks", 2
_QUEUE_IDS = range(QUEUES)


class LockSteps:
    """The clients of a script, by name. Each keeps its connection until one of its steps names another node."""

    def __init__(self, host: ClientHost, report: Report) -> None:
        self.host, self._report = host, report
        self._judge = LockJudge(report, lambda: host.loop.now, lambda: True)
        self._clients: dict[str, LockClient] = {}

    async def step(self, node: str, step: str) -> None:
        """Takes one step at a node: `make` creates the topic, `group` and `topic` delete and recreate, `a+` lets client
        `a` lock, `a-` unlock, `a:5` commit offset 5. Raises ValueError for anything else."""
        whole: dict[str, Callable[[LockClient], Awaitable[object]]] = {
            "make": lambda client: client.make_topic(QUEUES),
            "group": LockClient.delete_group,
            "topic": lambda client: client.remake_topic(QUEUES),
        }
        if step in whole:
            await whole[step](await self._client("operator", node))
            return
        client = await self._client(step[0], node)
        if step[1:] == "+":
            await client.lock(_QUEUE_IDS)
        elif step[1:] == "-":
            await client.unlock(_QUEUE_IDS)
        else:
            await client.commit(0, int(step.removeprefix(f"{step[0]}:")))

    async def _client(self, name: str, node: str) -> LockClient:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = LockClient(name, GROUP, TOPIC, self.host, self._judge)
        if client.node != node or client.connection is None or client.connection.closed:
            await client.connect(node, self._report)
        return client
