"""Says where clients find the queues of a topic, and which node to ask. No other place knows how many groups there are.

A group of brokers is a Raft group as clients see it: one log, one broker name, and the nodes that hold the log
(docs/adr/0102-one-route-map.md). Routes, aliases, forwarding and reports ask the group that holds the topic, or the
group of this node, and never the configuration. Other groups are those in the map that nodes of different groups tell
each other (`cluster.placement.group_map`); topics are in this node's group today.

Readers see the group as one broker name: id 0 is the leader, every other node has its own id. Producers see one more
name per node, an alias, because they repeat a failed send only at another name (docs/adr/0010-broker-names.md). The
addresses are those of the listener that was asked.
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
"""The numbers of read queues and of write queues of a topic."""
StandIns = Callable[[Collection[NodeId]], Mapping[NodeId, NodeId]]
"""Nodes -> for each of them the node to which its broker name leads."""


class BrokerData(NamedTuple):
    """One broker name, as a route shows it."""

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
        """`config` returns the configuration in force. `advertised` returns node -> the "ip:port" that its listener of
        that name advertises. `http` returns the "host:port" of a node's HTTP API, "" if it is unknown. `slots` returns
        the number of aliases of each group of a cluster of several, 0 in a cluster of one: then each node has one."""
        self.config = config
        """Returns the configuration in force."""
        self._advertised = advertised
        self._stand_ins = stand_ins
        self.slots = slots
        """Returns the number of aliases of each group in a cluster of several; 0 in a cluster of one."""
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
        """True if producers are shown a name for each node."""
        return self.config().cluster.producer_aliases

    def names(self, listener: str) -> set[str]:
        """Returns every name under which a client of the listener may know the group."""
        return {self.name, *(name for name, _ in self._named(self._addresses(listener)))}

    def has_choice(self, listener: str) -> bool:
        """Returns True if clients of the listener find more than one node."""
        return len(self._addresses(listener)) > 1

    def brokers(self, listener: str) -> BrokerData:
        """Returns the group's name with the address of every node: "0" is the leader's, "n" those of the other nodes n.

        Without a leader the last known one keeps its place. If there never was one, no address has id 0, and producers
        ask again before each send.
        """
        addresses = self._addresses(listener)
        leader = self.leader()
        if leader != NOBODY:
            self._last_leader = leader
        by_id = {("0" if node == self._last_leader else str(node)): addresses[node] for node in addresses}
        return self._data(self.name, dict(sorted(by_id.items())))

    def readers(self, listener: str) -> BrokerData:
        """Returns what `brokers` does, for a route. If consumers may read from followers, the id of a node that is out
        of reach or leaving leads to another node, because a consumer that was once directed there keeps using that
        id."""
        data = self.brokers(listener)
        if not self.config().modes.slave_read_enable:
            return data
        addresses = self._addresses(listener)
        instead = {str(node): addresses[stand_in] for node, stand_in in self._stand_ins(addresses).items()}
        return data._replace(addresses={name: instead.get(name, address) for name, address in data.addresses.items()})

    def aliases(self, listener: str) -> list[BrokerData]:
        """Returns the further names of the group, each with the address to which it leads as that of id 0; none if they
        are off, or in a cluster of one node. Names and their number stay when a node is out of reach, and in a cluster
        of several groups also when one joins or leaves, so that a key keeps its queue."""
        addresses = self._addresses(listener)
        if not self.has_aliases or len(addresses) < (1 if self.slots() else 2):
            return []
        leads_to = self._stand_ins(addresses)
        return [self._data(name, {"0": addresses[leads_to[node]]}) for name, node in self._named(addresses)]

    def _named(self, addresses: Mapping[NodeId, str]) -> list[tuple[str, NodeId]]:
        """Returns each alias with its node, in the order of a route."""
        slots = self.slots()
        if not slots:
            return [(self._alias(node), node) for node in addresses]
        # Clients use the rows in this order, or sort them by name as text: with this order, both have the same result.
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
        """The group's broker name."""
        return self._record.name

    @property
    def has_aliases(self) -> bool:
        """True if producers are shown further names, whose number the cluster has fixed."""
        return super().has_aliases and self.slots() > 0

    def names(self, listener: str) -> set[str]:
        """Returns the group's name and its aliases."""
        return super().names(listener) if self.slots() else {self.name}


class RouteMap:
    """Topic -> the group that holds its queues. Event loop only."""

    def __init__(self, own: BrokerGroup, others: Callable[[], GroupRecords] = dict) -> None:
        """`own` is the group to which this node belongs. `others` returns number -> record of each other group."""
        self.own = own
        """The group to which this node belongs: what another node of it has to answer is forwarded there."""
        self._others = others

    def groups(self) -> tuple[BrokerGroup, ...]:
        """Returns all groups of the cluster: this node's, then the others in the order of their names as text. A name
        stands for one group, the own one or that with the lowest number; the others with it are left out."""
        by_name: dict[str, OtherGroup] = {}
        for _, record in sorted(self._others().items()):
            if record.name != self.own.name:
                by_name.setdefault(record.name, OtherGroup(self.own.config, record, self.own.slots))
        return (self.own, *(by_name[name] for name in sorted(by_name)))

    def others(self) -> GroupRecords:
        """Returns number -> the last known record of each other group."""
        return self._others()

    def numbers(self) -> dict[str, int]:
        """Returns the name of each group that `groups` returns -> its number; empty in a cluster of one group."""
        others = self._others()
        if not others:
            return {}
        named = {record.name: number for number, record in sorted(others.items(), reverse=True)}
        return {**named, self.own.name: self.own.config().cluster.group}

    def group_of(self, topic: str) -> BrokerGroup:
        """Returns the group that holds the queues of the topic, or would hold them if it were created."""
        return self.own

    def placed(self, place: Mapping[int, QueueCounts]) -> list[tuple[BrokerGroup, QueueCounts]] | None:
        """Returns the groups of a topic with its queues there, in the order of the groups' names as text; None if this
        node does not know one of them yet. `place`: number of a group -> (read queues, write queues)."""
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
