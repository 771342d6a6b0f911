"""A client's registration with the nodes: heartbeats (request 34) to every node over separate connections, and the
request that unregisters it (35)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import ConnectionPool, Reply
from raftmq.client.group_views import of_each
from raftmq_wire.codec import Header
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import FIRST_GROUP

CALL_S = 3.0
_GOODBYE_S = 1.0


class Heartbeats:
    """Sends the heartbeats of one client. Servers identify a client by its connection. So the connections of `links`
    are used by this client only, and the servers send their requests to it over them."""

    def __init__(
        self,
        view: ClusterView,
        *,
        consumers: list[dict[str, Any]],
        producers: list[dict[str, Any]],
        ask: Callable[[int, Header, bytes], None],
    ) -> None:
        """`consumers` and `producers` are RocketMQ's ConsumerData and ProducerData, sent in each heartbeat. `ask` is
        called with each request that a server sends, and the number of its group of brokers."""
        self.client_id = f"python@{view.environment.entropy(8).hex()}"
        self._view = view
        self._ask = ask
        self._links: dict[int, ConnectionPool] = {}
        """Group of brokers -> the connections to its nodes."""
        self._body = msgspec.json.encode(
            {
                "clientID": self.client_id,
                "consumerDataSet": consumers,
                "heartbeatFingerprint": 0,
                "producerDataSet": producers,
                "withoutSub": False,
            }
        )

    def links(self, group: int) -> ConnectionPool:
        """Returns the connections to the nodes of a group of brokers."""
        pool = self._links.get(group)
        if pool is None:
            ask = functools.partial(self._ask, group)
            pool = self._links[group] = ConnectionPool(self._view.environment, ask)
        return pool

    async def beat(self, groups: Collection[int] = (FIRST_GROUP,)) -> list[Reply]:
        """Sends a heartbeat to every node of these groups of brokers; a node that does not answer is tried again with
        the next heartbeat. Waits for the leaders without limit, but once all nodes of one group have answered or
        failed, only one second more for the other groups. Returns all answers."""
        if len(groups) == 1:
            return await self._beat_group(*groups)
        found = await of_each({group: self._beat_group(group) for group in groups})
        return [reply for replies in found.values() if isinstance(replies, list) for reply in replies]

    async def _beat_group(self, group: int) -> list[Reply]:
        view = self._view.groups.of(group)
        leader = await view.find_leader()
        nodes = dict.fromkeys((leader, *view.brokers))
        replies = await asyncio.gather(*(self._beat(view, node) for node in nodes))
        return [reply for reply in replies if reply is not None]

    async def _beat(self, view: ClusterView, node: str) -> Reply | None:
        links = self.links(view.group)
        try:
            link = await links.get(node)
            return await link.call(RequestCode.HEART_BEAT, {}, self._body, timeout_s=CALL_S)
        except TimeoutError:
            links.drop(node)
        except OSError:
            pass
        return None

    async def leave(self, *, consumer_group: str = "", producer_group: str = "") -> None:
        """Unregisters the client at every node that can be reached, then closes its connections."""
        ext = {"clientID": self.client_id, "consumerGroup": consumer_group, "producerGroup": producer_group}
        views = self._view.groups.living(self._links)
        await asyncio.gather(*(self._unregister(view, node, ext) for view in views for node in view.brokers))
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        for links in self._links.values():
            links.close()

    async def _unregister(self, view: ClusterView, node: str, ext: dict[str, str]) -> None:
        try:
            link = await self.links(view.group).get(node)
            await link.call(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=_GOODBYE_S)
        except OSError:
            return
