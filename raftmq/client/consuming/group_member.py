"""A member of a consumer group: it sends heartbeats to every node, fetches the list of members, and computes which
queues it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from raftmq.client.cluster_view import ClusterView
from raftmq.client.connection import Reply
from raftmq.client.consuming.heartbeat import CALL_S, Heartbeats
from raftmq.client.consuming.subscription import Subscription
from raftmq.client.errors import Failed, RaftMQError
from raftmq.client.group_views import of_each
from raftmq_wire.codec import Header, ext_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import java_hash
from raftmq_wire.queue_numbers import FIRST_GROUP

_JOIN_TRIES = 40
_JOIN_PAUSE_S = 0.05


class MemberList(msgspec.Struct, frozen=True):
    """The reply to request 38 (GET_CONSUMER_LIST_BY_GROUP): the members of a group, and the topics that each one
    reads."""

    consumerIdList: list[str] = []  # the protocol's field name
    raftmqWishes: list[list[str]] = []
    raftmqWishOf: list[int] = []
    """Index in `raftmqWishes` of the topics of each member in `consumerIdList`. Empty if the broker does not know
    them."""

    def sharers(self, topic: str) -> list[str]:
        """Returns the members among which the topic's queues are divided: those that read the topic, or all if the
        broker does not know who reads what. Raises IndexError or ValueError if the answer is not well-formed."""
        if not self.raftmqWishOf:
            return self.consumerIdList
        wanted = [topic in wish for wish in self.raftmqWishes]
        return [each for each, wish in zip(self.consumerIdList, self.raftmqWishOf, strict=True) if wanted[wish]]


def together(lists: Sequence[MemberList]) -> MemberList:
    """Merges the lists of several groups of brokers. Returns the members that are in any of them, each with its
    topics."""
    wishes: dict[str, list[str] | None] = {}
    for each in lists:
        unknown: list[list[str] | None] = [None] * len(each.consumerIdList)
        of = [each.raftmqWishes[wish] for wish in each.raftmqWishOf]
        wishes.update(zip(each.consumerIdList, of or unknown, strict=True))
    members = sorted(wishes)
    if None in wishes.values():  # if one list lacks topics, all share all topics
        return MemberList(members)
    return MemberList(members, [wishes[member] or [] for member in members], list(range(len(members))))


def allocate_averagely(members: Sequence[str], me: str, queues: int) -> range:
    """Returns which of `queues` queues, numbered in their order, the member `me` reads. Each member gets a consecutive
    range; if the division leaves a remainder, the first members get one queue more. The range is empty if `me` is no
    member. Every member computes the same from the same sorted list (RocketMQ's AllocateMessageQueueAveragely, the
    default of its Java clients)."""
    ordered = sorted(members)
    if me not in ordered:
        return range(0)
    index = ordered.index(me)
    share, more = divmod(queues, len(ordered))
    start = index * share + min(index, more)
    return range(start, start + share + (1 if index < more else 0))


def _subscription_data(topic: str, subscription: Subscription, version: int) -> dict[str, Any]:
    """Returns RocketMQ's SubscriptionData for a topic."""
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
    """The group membership of one consumer: heartbeats over separate connections, and the list of members."""

    def __init__(
        self,
        view: ClusterView,
        group: str,
        subscriptions: Mapping[str, Subscription],
        from_where: str,
        on_change: Callable[[], None],
    ) -> None:
        """`subscriptions`: topic -> the subscription of the group to it. `from_where`: RocketMQ's consumeFromWhere,
        which heartbeats carry. `on_change` is called when the members may have changed."""
        self._view = view
        self._group = group
        self._on_change = on_change
        version = view.environment.now_ms()
        self._subscriptions = [_subscription_data(topic, of, version) for topic, of in subscriptions.items()]
        consumer = {
            "consumeFromWhere": from_where,
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "raftmqByTopic": True,
            "subscriptionDataSet": self._subscriptions,
            "unitMode": False,
        }
        self._heartbeats = Heartbeats(view, consumers=[consumer], producers=[], ask=self._on_request)
        self.client_id = self._heartbeats.client_id
        self.links = self._heartbeats.links
        """Group of brokers -> the connections to its nodes, which carry the heartbeats."""
        self._groups: frozenset[int] = frozenset((FIRST_GROUP,))

    @property
    def groups(self) -> frozenset[int]:
        """The groups of brokers that have queues of the topics, without retired groups; each keeps its own list of
        members. Returns the first group if none is left, until a new route says where the topics are."""
        there = frozenset(group for group in self._groups if self._view.groups.known(group) is not None)
        return there or frozenset((FIRST_GROUP,))

    def belong_to(self, groups: Iterable[int]) -> None:
        """Sets the groups of brokers that get heartbeats from now on, and that are asked for the members."""
        self._groups = frozenset(groups)

    def close(self) -> None:
        """Closes the connections without unregistering at the nodes."""
        self._heartbeats.close()

    def _on_request(self, group_of_brokers: int, header: Header, _: bytes) -> None:
        if header.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            group = ext_of(header).get("consumerGroup")
            if group in (None, self._group):
                self._on_change()

    async def join(self) -> None:
        """Sends heartbeats until each group of brokers that answers lists this member. Raises Refused if a filter is no
        valid expression, Failed if the member is still not listed after 40 heartbeats, and other RaftMQErrors."""
        for subscription in self._subscriptions:
            if subscription["expressionType"] != "TAG":
                await self._check_filter(subscription)
        for _ in range(_JOIN_TRIES):
            await self.heartbeat()
            if all(self.client_id in each.consumerIdList for each in await self._lists()):
                return
            await asyncio.sleep(_JOIN_PAUSE_S)
        raise Failed(f"group {self._group} does not list this member after {_JOIN_TRIES} heartbeats", retryable=True)

    async def _check_filter(self, subscription: dict[str, Any]) -> None:
        body = {"clientId": self.client_id, "group": self._group, "subscriptionData": subscription}
        await self._view.call(
            RequestCode.CHECK_CLIENT_CONFIG,
            {},
            msgspec.json.encode(body),
            what=f"filter of group {self._group}",
            timeout_s=CALL_S * 2,
        )

    async def heartbeat(self) -> None:
        """Sends a heartbeat to every node. A node that does not answer is tried again with the next heartbeat."""
        await self._heartbeats.beat(self.groups)

    async def members(self) -> MemberList:
        """Returns the group's members, those of all groups of brokers together; an empty list while the cluster knows
        no members. Raises RaftMQError if no group of brokers answers."""
        lists = await self._lists()
        return lists[0] if len(lists) == 1 else together(lists)

    async def _lists(self) -> list[MemberList]:
        """Returns the member list of each group of brokers that answers. Raises RaftMQError if none does."""
        if len(self.groups) == 1:
            return [await self._list_of(group) for group in self.groups]
        found = (await of_each({group: self._list_of(group) for group in self.groups})).values()
        lists = [each for each in found if isinstance(each, MemberList)]
        failures = [each for each in found if isinstance(each, Exception)]
        other = next((each for each in failures if not isinstance(each, RaftMQError)), None)
        if other is not None or not lists:
            raise other or failures[0]
        return lists

    async def _list_of(self, group_of_brokers: int) -> MemberList:
        view = self._view.groups.of(group_of_brokers)
        reply = await view.call(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            {"consumerGroup": self._group},
            what=f"members of group {self._group}",
            timeout_s=CALL_S * 2,
            accept=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
        )
        listed = self._listed(reply)
        if self.client_id not in listed.consumerIdList:
            # The node that answered may have forwarded the request to a leader that this client does not know: a node
            # that has just joined does not know this client. The search for the leader also fetches the list of nodes.
            view.suspect(view.leader)
        return listed

    def _listed(self, reply: Reply) -> MemberList:
        if reply.code != ResponseCode.SUCCESS:
            return MemberList()
        try:
            listed = msgspec.json.decode(reply.body, type=MemberList)
            listed.sharers("")
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            raise Failed(f"members of group {self._group}: the answer is not understood: {error}") from error
        return listed

    async def leave(self) -> None:
        """Unregisters this member at every node that can be reached, then closes its connections."""
        await self._heartbeats.leave(consumer_group=self._group)
