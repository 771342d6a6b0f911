"""Makes consumers ask for their routes as soon as these have changed, not at their next poll
(docs/adr/0055-early-routes.md).

A Java push consumer trusts its routes for 30 s. It asks earlier only while it divides the queues of a topic whose route
names no broker. It divides queues every 20 s, and when it is told that the members of its group changed (request 40).
The route of its retry topic therefore names no broker as long as there is nothing to read in that topic. When the
leader has changed, the consumers are sent request 40, ask for that route, and for a while get a complete one: its
addresses count for all their topics.

A consumer that never gets the complete route early asks at its next poll, as any other does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import TYPE_CHECKING

from cluster.broker.groups.consumer_group import CLUSTERING, PUSH, ConsumerGroup, Member
from cluster.broker.groups.group_members import Members
from cluster.broker.groups.group_notices import NOTICE_UNITS
from cluster.broker.services import Client, Services
from cluster.runtime.service_lifecycle import Part
from raftlog.types import NOBODY, NodeId
from raftlog.work import ITEM_UNITS, charge
from statemachine.rows.keys import Queue

if TYPE_CHECKING:
    from statemachine.topics.topics import TopicConfig

CALLS_MS = (0, 1_500, 4_000, 8_000)
"""Milliseconds after this node has seen a change at which consumers are notified. They are notified several times,
because they may ask a node that has not seen the change yet. Java's client divides queues at most once a second."""
FRESH_MS = 12_000
"""Milliseconds after a change during which every route names its brokers."""
ASKS_MAX, ASKS_MS = 6, 10_000
"""The most routes without brokers for one connection and group: ASKS_MAX in ASKS_MS milliseconds. A consumer that
reaches the limit asks again and again because it gets no brokers, so it then gets complete routes for PAUSE_MS.
Otherwise consumers that let the broker divide their queues (request 400) would ask every second."""
PAUSE_MS = 600_000
V4_0_0 = 212
"""The protocol version of RocketMQ 4.0.0, the first under Apache (MQVersion.V4_0_0_SNAPSHOT)."""


class _Asks:
    """Counts the routes without brokers that a connection got for one retry topic."""

    __slots__ = ("began_ms", "count", "topic_id")

    def __init__(self, topic_id: int, began_ms: int) -> None:
        self.topic_id = topic_id
        self.began_ms = began_ms
        self.count = 0


class EarlyRoutes:
    """Watches the leader and the reachable nodes, on which consumers' routes depend, and decides which routes name no
    broker."""

    def __init__(self, services: Services, members: Members, unreached: Callable[[], Collection[NodeId]]) -> None:
        """`unreached` returns the nodes that the leader does not reach (`cluster.peer.reachability`)."""
        self._services = services
        self._members = members
        self._unreached = unreached
        self._shown: tuple[NodeId, frozenset[NodeId]] | None = None
        """The leader and the unreached nodes at the last tick; None before the first."""
        self._changed_ms: int | None = None
        self._calls: list[int] = []
        """The times, in milliseconds, at which consumers will be notified again."""
        self._asks: dict[Client, dict[str, _Asks]] = {}
        """Open connection -> consumer group -> the routes without brokers that it got."""
        self._unaware: dict[int, dict[Client, str]] = {}
        """Id of a retry topic -> connection -> group, for the connections that got the topic's route without brokers
        since the topic last got messages."""
        services.on_applied(self._on_applied)

    @property
    def connections(self) -> int:
        """The number of connections about which something is remembered."""
        return len({*self._asks, *(client for each in self._unaware.values() for client in each)})

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="early routes", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Notifies consumers when the leader or the unreached nodes have changed, and a few times afterwards. Runs on a
        timer."""
        leader = self._services.routes.own.leader()
        if leader == NOBODY or not self._services.config.cluster.early_routes:
            return
        # Routes depend on the unreached nodes only if consumers may read from followers.
        moves = self._services.config.modes.slave_read_enable
        shown = leader, frozenset(self._unreached()) if moves else frozenset()
        if self._shown is not None and shown != self._shown:
            self._changed_ms = now_ms
            self._calls = [now_ms + after_ms for after_ms in CALLS_MS]
        self._shown = shown
        if self._calls and now_ms >= self._calls[0]:
            self._calls = [due_ms for due_ms in self._calls if due_ms > now_ms]
            self._services.turns.begin(self, self._call())

    def withholds(self, client: Client, group: str, retry_topic: TopicConfig) -> bool:
        """Returns True if the client gets the route of the group's retry topic without brokers, so that it will ask
        again.

        Returns False if there are messages to read in the topic: a client without a queue of it needs the brokers, to
        divide the queues. Returns False for orderly consumers too, because they send to the topic themselves.
        """
        if not self._services.config.cluster.early_routes or not self._asks_early(client, group) or self._is_fresh():
            return False
        if self._services.state.locks_of_group(group) or self._unread(group, retry_topic):
            return False
        return self._may_ask(client, group, retry_topic.id)

    def _is_fresh(self) -> bool:
        if self._changed_ms is None or self._services.routes.own.leader() == NOBODY:
            return False
        return self._services.monotonic_ms() - self._changed_ms < FRESH_MS

    def _asks_early(self, client: Client, group: str) -> bool:
        """Returns True if heartbeats over this connection named consumers of the group, all of a kind that asks early
        for routes."""
        found = self._members.consumers.get(group)
        if found is None or not _pushes(found):
            return False
        named = [found.members.get(client_id) for client_id in self._members.clients_of(client, group)]
        return bool(named) and all(one is not None and _asks_early(one) for one in named)

    def _may_ask(self, client: Client, group: str, topic_id: int) -> bool:
        """Counts one more route without brokers for this client and group. Returns False if it must not get one,
        because there were too many."""
        groups = self._asks.get(client)
        if groups is None:
            groups = self._asks[client] = {}
            client.on_close.append(lambda: self._forget(client))
        now_ms = self._services.monotonic_ms()
        asks = groups.get(group)
        if asks is not None and asks.topic_id != topic_id:  # the topic was deleted and created again
            self._is_aware(client, asks.topic_id)
            asks = None
        if asks is None or now_ms - asks.began_ms >= (ASKS_MS if asks.count <= ASKS_MAX else PAUSE_MS):
            asks = groups[group] = _Asks(topic_id, now_ms)
        asks.count += 1
        if asks.count > ASKS_MAX:
            return False
        self._unaware.setdefault(topic_id, {})[client] = group
        return True

    def _forget(self, client: Client) -> None:
        for asks in self._asks.pop(client, {}).values():
            self._is_aware(client, asks.topic_id)

    def _is_aware(self, client: Client, topic_id: int) -> None:
        unaware = self._unaware.get(topic_id, {})
        unaware.pop(client, None)
        if not unaware:
            self._unaware.pop(topic_id, None)

    def _on_applied(self, grown: Collection[Queue]) -> None:
        """Notifies the connections that got a retry topic's route without brokers when messages arrive in the topic:
        perhaps no consumer has its queues yet."""
        if not self._unaware:
            return
        for topic_id in {topic_id for topic_id, _ in grown} & self._unaware.keys():
            self._services.turns.begin(self, _tell(self._unaware.pop(topic_id)))

    def _unread(self, group: str, retry_topic: TopicConfig) -> bool:
        """Returns True if the retry topic may have messages to read. Also returns True if one of its queues ever had
        messages and the group never committed in that queue: a consumer may begin at the end of a queue that it gets
        late (CONSUME_FROM_TIMESTAMP), and would skip the messages that came in the meantime."""
        state, topic_id = self._services.state, retry_topic.id
        for queue in range(retry_topic.read_queues):
            committed, end = state.offset(group, topic_id, queue), state.max_offset(topic_id, queue)
            if end > (0 if committed is None else max(committed, state.min_offset(topic_id, queue))):
                return True
        return False

    def _call(self) -> Generator[None]:
        """Notifies each consumer's connection once. Its consumers then divide the queues of all their groups again."""
        told: dict[Client, str] = {}
        for name, group in self._members.consumers.items():
            for member in group.members.values() if _pushes(group) else ():
                charge(ITEM_UNITS)
                if _asks_early(member):
                    told[member.connection] = name
                yield
        yield from _tell(told)


def _tell(clients: Mapping[Client, str]) -> Generator[None]:
    for client, group in clients.items():
        charge(NOTICE_UNITS)
        client.consumers_changed(group)
        yield


def _pushes(group: ConsumerGroup) -> bool:
    """Returns True if the group's members divide the queues and subscribe to the retry topic. Pull consumers do not. If
    a pull consumer's request 36 is refused, it sends the message to the retry topic itself, and needs a broker for
    that."""
    return group.message_model == CLUSTERING and group.consume_type == PUSH


def _asks_early(member: Member) -> bool:
    """Returns True if the member is a Java client, the only kind that asks early. If one route names no broker, clients
    in C++ and Node.js divide no queue at all, and Go asks for routes over connections without heartbeats. Node.js
    (ali-ons) calls itself a Java client of version 121."""
    return member.language == "JAVA" and member.version >= V4_0_0
