"""A member of a consumer group: heartbeats to every node, the list of members, and which queues are mine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cluster.wire.codec import Header, ext_of
from cluster.wire.codes import RequestCode, ResponseCode
from cluster.wire.java_hash import java_hash
from raftmq.client.connection import ConnectionPool, Reply
from raftmq.client.errors import Failed
from raftmq.client.subscription import Subscription
from raftmq.client.view import ClusterView

_CALL_S = 3.0
_JOIN_TRIES = 40
_JOIN_PAUSE_S = 0.05


class _ConsumerList(msgspec.Struct):
    consumerIdList: list[str] = []  # the protocol's name


def allocate_averagely(members: Sequence[str], me: str, queues: int) -> range:
    """The queue ids of `me`: consecutive shares, the first members getting one more. Every member computes the same
    from the same sorted list (RocketMQ's AllocateMessageQueueAveragely, as its Java clients do by default).
    """
    ordered = sorted(members)
    if me not in ordered:
        return range(0)
    index = ordered.index(me)
    share, more = divmod(queues, len(ordered))
    start = index * share + min(index, more)
    return range(start, start + share + (1 if index < more else 0))


def _subscription_data(topic: str, subscription: Subscription, version: int) -> dict[str, Any]:
    """RocketMQ's SubscriptionData."""
    wanted = sorted(subscription.tags or ())
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(t) for t in wanted],
        "expressionType": subscription.kind,
        "subString": subscription.text,
        "subVersion": version,
        "tagsSet": wanted,
        "topic": topic,
    }


class GroupMember:
    """Membership over connections of its own: servers tie a member to its connection."""

    def __init__(
        self,
        view: ClusterView,
        group: str,
        topic: str,
        subscription: Subscription,
        from_where: str,
        on_change: Callable[[], None],
    ) -> None:
        self.client_id = f"python@{view.environment.entropy(8).hex()}"
        self.links = ConnectionPool(view.environment, self._on_request)
        self._view = view
        self._group = group
        self._on_change = on_change
        self._subscription = _subscription_data(topic, subscription, view.environment.now_ms())
        self._body = msgspec.json.encode(self._heartbeat(from_where))

    def _heartbeat(self, from_where: str) -> dict[str, Any]:
        consumer = {
            "consumeFromWhere": from_where,
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self._group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [self._subscription],
            "unitMode": False,
        }
        return {
            "clientID": self.client_id,
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": 0,
            "producerDataSet": [],
            "withoutSub": False,
        }

    def _on_request(self, header: Header) -> None:
        if header.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            group = ext_of(header).get("consumerGroup")
            if group in (None, self._group):
                self._on_change()

    async def join(self) -> None:
        """Heartbeats until the leader lists this member. Raises RaftMQError, Refused for a filter that is none."""
        if self._subscription["expressionType"] != "TAG":
            await self._check_filter()
        for _ in range(_JOIN_TRIES):
            await self.heartbeat()
            if self.client_id in await self.members():
                return
            await asyncio.sleep(_JOIN_PAUSE_S)
        raise Failed(f"group {self._group} does not list this member after {_JOIN_TRIES} heartbeats", retryable=True)

    async def _check_filter(self) -> None:
        body = {"clientId": self.client_id, "group": self._group, "subscriptionData": self._subscription}
        await self._view.call(
            RequestCode.CHECK_CLIENT_CONFIG,
            {},
            msgspec.json.encode(body),
            what=f"filter of group {self._group}",
            timeout_s=_CALL_S * 2,
        )

    async def heartbeat(self) -> None:
        """To every node; one that does not answer gets the next one."""
        leader = await self._view.find_leader()
        nodes = dict.fromkeys((leader, *self._view.brokers))
        await asyncio.gather(*(self._beat(node) for node in nodes))

    async def _beat(self, node: str) -> None:
        try:
            link = await self.links.get(node)
            await link.call(RequestCode.HEART_BEAT, {}, self._body, timeout_s=_CALL_S)
        except TimeoutError:
            self.links.drop(node)
        except OSError:
            return

    async def members(self) -> list[str]:
        """Client ids of the group; empty while nobody is known. Raises RaftMQError."""
        reply = await self._view.call(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            {"consumerGroup": self._group},
            what=f"members of group {self._group}",
            timeout_s=_CALL_S * 2,
            accept=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
        )
        listed = self._listed(reply)
        if self.client_id not in listed:
            # Who answered may have passed the request on to a leader that this client does not know: a node that
            # joined has never heard of it. To look for the leader is to learn who the nodes are.
            self._view.suspect(self._view.leader)
        return listed

    def _listed(self, reply: Reply) -> list[str]:
        if reply.code != ResponseCode.SUCCESS:
            return []
        try:
            return msgspec.json.decode(reply.body, type=_ConsumerList).consumerIdList
        except msgspec.DecodeError as error:
            raise Failed(f"members of group {self._group}: the answer is not understood: {error}") from error

    async def leave(self) -> None:
        """Unregisters everywhere it can, then closes its connections."""
        ext = {"clientID": self.client_id, "consumerGroup": self._group, "producerGroup": ""}
        nodes = self._view.brokers
        await asyncio.gather(*(self._unregister(node, ext) for node in nodes))
        self.links.close()

    async def _unregister(self, node: str, ext: dict[str, str]) -> None:
        try:
            link = await self.links.get(node)
            await link.call(RequestCode.UNREGISTER_CLIENT, ext, timeout_s=1.0)
        except OSError:
            return
