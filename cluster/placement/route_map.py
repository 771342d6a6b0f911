"""Says where clients find the queues of a topic, and which node to ask. No other module knows how many groups there
are.

A group of brokers is a Raft group as clients see it: one log, one broker name, and the nodes that hold the log
(docs/adr/0102-one-route-map.md). The code for routes, aliases, forwarding and reports asks this module for the groups
of a topic, or for the group of this node. It does not read them from the configuration. Other groups are those in the
map that nodes of different groups tell each other (`cluster.placement.group_map`).

Consumers see the group as one broker name: broker id 0 is the leader, every other node has its own id. Producers see
one more name per node, an alias, because they repeat a failed send only at another name
(docs/adr/0010-broker-names.md). The addresses are those that nodes advertise for the listener through which the client
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cluster.config.loading import addresses_behind
from cluster.peer.reachability import stand_ins
from raftlog.types import NOBODY, NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.placement.group_map import GroupRecord, GroupRecords

QueueCounts = tuple[int, int]
"""(read queues, write queues) of a topic in one group."""
StandIns = Callable[[Collection[NodeId]], Mapping[NodeId, NodeId]]
"""Nodes -> mapping of each of them to the node at whose address its broker name leads: itself, or another one if it is
out of reach or leaving."""


class BrokerData(NamedTuple):
    """One broker name with its addresses, as a route shows it."""

    name: str
    cluster: str
    addresses: dict[str, str]
    """Broker id -> "ip:port", in the order of the ids as text; "0" takes writes."""


class BrokerGroup:
    """A Raft group as clients see it. Remembers the last leader, so that a route stays complete while there is none.
    Event loop only."""

    def __init__(
        self,
        config: Callable[[], Config],
        *,
        leader: Callable[[], NodeId],
        advertised: Callable[[str], dict[NodeId, str]],
        stand_ins: StandIns,
        http: Callable[[NodeId], str],
        slots: Callable[[], int] = lambda: 0,
    ) -> None:
        """`config` returns the configuration in force. `leader` returns the node that leads the group, NOBODY if
        unknown. `advertised` returns node -> the "ip:port" that the node advertises for a listener. `stand_ins` says to
        which node each node's name leads. `http` returns the "host:port" of a node's HTTP API, "" if it is unknown.
        `slots` returns the number of aliases of each group if the cluster has several groups, and 0 if it has one
        group. With 0, each node has one alias."""
        self.config = config
        """Returns the configuration in force."""
        self._advertised = advertised
        self._stand_ins = stand_ins
        self.slots = slots
        """Returns the number of aliases of each group if the cluster has several groups; 0 if it has one group."""
        self.leader = leader
        """Returns the node that leads the group, as far as this node knows; NOBODY if there is none."""
        self.http_address = http
        """Returns the "host:port" of a node's HTTP API, "" if it is unknown."""
        self._last_leader = NOBODY

    @property
    def name(self) -> str:
        """The group's broker name."""
        return self.config().cluster.broker_name

    @property
    def has_aliases(self) -> bool:
        """True if producers are shown aliases too."""
        return self.config().cluster.producer_aliases

    def names(self, listener: str) -> set[str]:
        """Returns the broker names under which clients of the listener may know the group: its name and its aliases."""
        return {self.name, *(name for name, _ in self._named(self._addresses(listener)))}

    def has_choice(self, listener: str) -> bool:
        """Returns True if the group has more than one node with an address for clients of the listener."""
        return len(self._addresses(listener)) > 1

    def brokers(self, listener: str) -> BrokerData:
        """Returns the group's name with the address of every node. Broker id "0" is the leader; every other node has
        its own number as broker id.

        While there is no leader, the last known leader keeps id 0. If no leader was ever known, no address has id 0,
        and producers ask for the route again before each send.
        """
        addresses = self._addresses(listener)
        leader = self.leader()
        if leader != NOBODY:
            self._last_leader = leader
        by_id = {("0" if node == self._last_leader else str(node)): addresses[node] for node in addresses}
        return self._data(self.name, dict(sorted(by_id.items())))

    def readers(self, listener: str) -> BrokerData:
        """Returns the result of `brokers`, as consumers need it in a route. If consumers may read from followers, the
        id of a node that is out of reach or leaving has the address of another node: a consumer that was once directed
        to an id keeps using it."""
        data = self.brokers(listener)
        if not self.config().modes.slave_read_enable:
            return data
        addresses = self._addresses(listener)
        instead = {str(node): addresses[stand_in] for node, stand_in in self._stand_ins(addresses).items()}
        return data._replace(addresses={name: instead.get(name, address) for name, address in data.addresses.items()})

    def aliases(self, listener: str) -> list[BrokerData]:
        """Returns the aliases of the group, each with one address under id 0. Empty if aliases are off, or if the group
        has one node in a cluster of one group. The names and their number stay when a node is out of reach. In a
        cluster of several groups they also stay when a node joins or leaves. So messages with a key keep their
        queue."""
        addresses = self._addresses(listener)
        if not self.has_aliases or len(addresses) < (1 if self.slots() else 2):
            return []
        leads_to = self._stand_ins(addresses)
        return [self._data(name, {"0": addresses[leads_to[node]]}) for name, node in self._named(addresses)]

    def _named(self, addresses: Mapping[NodeId, str]) -> list[tuple[str, NodeId]]:
        """Returns (alias, node) pairs, in the order of a route."""
        slots = self.slots()
        if not slots:
            return [(self._alias(node), node) for node in addresses]
        # Some clients use the rows in this order, others sort them by name as text. In this order both get the same
        # result.
        nodes = sorted(addresses)
        return sorted((self._alias(slot), nodes[(slot - 1) % len(nodes)]) for slot in range(1, slots + 1) if nodes)

    def _addresses(self, listener: str) -> dict[NodeId, str]:
        return addresses_behind(self.config(), listener, self._advertised)

    def _alias(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _data(self, name: str, addresses: dict[str, str]) -> BrokerData:
        return BrokerData(name, self.config().cluster.name, addresses)


class OtherGroup(BrokerGroup):
    """A group to which this node does not belong, as the last record from that group describes it: its leader, and
    which of its nodes are out of reach."""

    def __init__(self, config: Callable[[], Config], record: GroupRecord, slots: Callable[[], int]) -> None:
        super().__init__(
            config,
            leader=lambda: NodeId(record.leader),
            advertised=lambda listener: {NodeId(node): at for node, at in record.addresses(listener).items()},
            stand_ins=lambda nodes: stand_ins(nodes, [NodeId(node) for node in record.away]),
            http=record.http_address,
            slots=slots,
        )
        self._record = record

    @property
    def name(self) -> str:
        """The group's broker name, as its last record has it."""
        return self._record.name

    @property
    def has_aliases(self) -> bool:
        """True if producers are shown aliases, and the cluster has fixed their number."""
        return super().has_aliases and self.slots() > 0

    def names(self, listener: str) -> set[str]:
        """Returns the group's name, and its aliases if their number is fixed."""
        return super().names(listener) if self.slots() else {self.name}


class RouteMap:
    """Says which group holds the queues of a topic. Event loop only."""

    def __init__(self, own: BrokerGroup, others: Callable[[], GroupRecords] = dict) -> None:
        """`own` is the group to which this node belongs. `others` returns number -> record of each other group."""
        self.own = own
        """The group to which this node belongs. A request that another node of it has to answer is forwarded there."""
        self._others = others

    def groups(self) -> tuple[BrokerGroup, ...]:
        """Returns all groups of the cluster: this node's first, then the others in the order of their names as text. If
        several groups have one name, only this node's group or the one with the lowest number is returned."""
        by_name: dict[str, OtherGroup] = {}
        for _, record in sorted(self._others().items()):
            if record.name != self.own.name:
                by_name.setdefault(record.name, OtherGroup(self.own.config, record, self.own.slots))
        return (self.own, *(by_name[name] for name in sorted(by_name)))

    def others(self) -> GroupRecords:
        """Returns number -> the last known record of each other group."""
        return self._others()

    def numbers(self) -> dict[str, int]:
        """Returns name -> number of each group that `groups` returns; empty in a cluster of one group."""
        others = self._others()
        if not others:
            return {}
        named = {record.name: number for number, record in sorted(others.items(), reverse=True)}
        return {**named, self.own.name: self.own.config().cluster.group}

    def group_of(self, topic: str) -> BrokerGroup:
        """Returns the group that holds the queues of the topic that this node serves: always this node's group.
        `placed` finds all groups of a topic."""
        return self.own

    def placed(self, place: Mapping[int, QueueCounts]) -> list[tuple[BrokerGroup, QueueCounts]] | None:
        """Returns the groups of a topic, each with the topic's queues there, in the order of the groups' names as text.
        `place`: number of a group -> (read queues, write queues). None if this node does not know one of the groups
        yet."""
        own, others = self.own.config().cluster.group, self._others()
        if place.keys() == {own}:
            return [(self.own, place[own])]
        if not place.keys() <= {own, *others}:
            return None
        found = [
            (self.own if group == own else OtherGroup(self.own.config, others[group], self.own.slots), queues)
            for group, queues in place.items()
        ]
        return sorted(found, key=lambda each: each[0].name)
