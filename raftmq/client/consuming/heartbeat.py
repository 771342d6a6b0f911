"""A client's registration with the nodes: heartbeats (request 34) to every node over connections of its own, and the
unregistering (request 35)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import ConnectionPool, OnRequest, Reply
from raftmq_wire.codes import RequestCode

CALL_S = 3.0
_GOODBYE_S = 1.0


class Heartbeats:
    """Sends the heartbeats of one client. Servers tie a client to its connection, so the connections in `links` belong
    to this client alone, and requests of the servers to it arrive on them."""

    def __init__(
        self, view: ClusterView, *, consumers: list[dict[str, Any]], producers: list[dict[str, Any]], ask: OnRequest
    ) -> None:
        """`consumers` and `producers` are RocketMQ's ConsumerData and ProducerData. `ask` takes the requests of
        servers."""
        self.client_id = f"python@{view.environment.entropy(8).hex()}"
        self.links = ConnectionPool(view.environment, ask)
        self._view = view
        self._body = msgspec.json.encode(
            {
                "clientID": self.client_id,
                "consumerDataSet": consumers,
                "heartbeatFingerprint": 0,
                "producerDataSet": producers,
                "withoutSub": False,
            }
        )

    async def beat(self) -> list[Reply]:
        """Sends a heartbeat to every node; a node that does not answer gets the next one. Returns the answers."""
        leader = await self._view.find_leader()
        nodes = dict.fromkeys((leader, *self._view.brokers))
        replies = await asyncio.gather(*(self._beat(node) for node in nodes))
        return [reply for reply in replies if reply is not None]

    async def _beat(self, node: str) -> Reply | None:
        try:
            link = await self.links.get(node)
            return await link.call(RequestCode.HEART_BEAT, {}, self._body, timeout_s=CALL_S)
        except TimeoutError:
            self.links.drop(node)
        except OSError:
            pass
        return None

    async def leave(self, *, consumer_group: str = "", producer_group: str = "") -> None:
        """Unregisters the client at every node that can be reached, then closes its connections."""
        ext = {"clientID": self.client_id, "consumerGroup": consumer_group, "producerGroup": producer_group}
        await asyncio.gather(*(self._unregister(node, ext) for node in self._view.brokers))
        self.links.close()

    async def _unregister(self, node: str, ext: dict[str, str]) -> None:
        try:
            link = await self.links.get(node)
            await link.call(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=_GOODBYE_S)
        except OSError:
            return
