"""Divides a topic's queues among the clients of a group, for clients that leave the choice to the broker.

A client gets the queues that it would have chosen for itself: by the same strategy, over the same sorted lists of
clients and queues. The queues are those of all groups of brokers that hold the topic, in the order of the groups' names
as text. Source: RocketMQ's AllocateMessageQueueAveragely, -AveragelyByCircle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cluster.broker.name_rules import PERM_READ
from cluster.broker.services import Services
from cluster.broker.topics import place_of
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.groups.consumer_group import ConsumerGroup
    from cluster.placement.route_map import BrokerGroup

ShareQueues = Callable[[Sequence[int], int, int], Sequence[int]]
"""(queues, rank of the client from 0, number of clients) -> the client's queues."""


def sharers(group: ConsumerGroup | None, topic: str) -> list[str | None]:
    """Returns the client ids among which the topic's queues are divided, sorted. A client that does not read its queues
    of the topic is replaced by None. Empty if there is no such group."""
    if group is None:
        return []
    charge(ITEM_UNITS * len(group.members))
    return [client_id if group.wants(client_id, topic) else None for client_id in group.sharers(topic)]


def read_queues(services: Services, topic: str) -> list[tuple[BrokerGroup, int]] | None:
    """Returns the groups of brokers that have the topic's queues, each with the number of queues that consumers read.
    Clients divide the queues in this order. None if the topic does not exist, may not be read, or has queues in a group
    that this node does not know."""
    config = services.state.topics.get(topic)
    if config is None or not config.perm & PERM_READ:
        return None
    placed = services.routes.placed(place_of(services, config))
    return None if placed is None else [(group, read) for group, (read, _) in placed]


def queue_at(placed: Sequence[tuple[BrokerGroup, int]], place: int) -> tuple[str, int]:
    """Returns the broker name and the queue id of the queue at position `place`, from 0, among all queues of the topic.
    Raises IndexError if the topic has no more than `place` queues."""
    for group, count in placed:
        if place < count:
            return group.name, place
        place -= count
    raise IndexError(place)


def own_place(services: Services, topic: str, queue: int) -> tuple[int, int]:
    """Returns the place of a queue of this group of brokers among all queues of the topic, and the number of all
    queues. Returns (0, 0) if consumers do not read the queue, or if this node does not know where all queues are."""
    placed = read_queues(services, topic) or []
    own = services.routes.own.name
    if not 0 <= queue < sum(count for group, count in placed if group.name == own):
        return 0, 0
    before = sum(count for group, count in placed if group.name < own)
    return before + queue, sum(count for _, count in placed)


def owner(place: int, queues: int, clients: Sequence[str | None]) -> str | None:
    """Returns the client that gets the queue at that place by the strategy AVG. None if there is no such client or
    queue, or if that client does not read the queue."""
    if not clients or not 0 <= place < queues:
        return None
    size, more = divmod(queues, len(clients))
    longer = more * (size + 1)
    return clients[place // (size + 1) if place < longer else more + (place - longer) // size]


def _average(queues: Sequence[int], rank: int, clients: int) -> Sequence[int]:
    size, more = divmod(len(queues), clients)
    start = rank * size + min(rank, more)
    return queues[start : start + size + (rank < more)]


def _circle(queues: Sequence[int], rank: int, clients: int) -> Sequence[int]:
    return queues[rank::clients]


STRATEGIES: dict[str, ShareQueues] = {"AVG": _average, "AVG_BY_CIRCLE": _circle}
"""Name -> strategy. AVG gives each client a run of neighbouring queues, and one more to each of the first clients if
the queues cannot be divided evenly. AVG_BY_CIRCLE gives each of n clients every n-th queue."""


def assigned_places(
    group: ConsumerGroup, others: Iterable[str], client_id: str, topic: str, share: ShareQueues, queues: int
) -> Sequence[int]:
    """Returns the places of the client's queues among all queues of the topic; empty if the client is not a member.
    `others`: client ids that other groups of brokers know. `queues`: the number of all queues. Called on the leader
    after a ReadIndex round, so that the same list of members counts for all clients."""
    found = {*others} - group.members.keys()
    if found or group.by_topic:
        charge(ITEM_UNITS * (len(group.members) + len(found)))
        sharers = sorted({*group.members, *found}) if found else group.sharers(topic)
        return share(range(queues), sharers.index(client_id), len(sharers)) if client_id in sharers else ()
    rank = group.members.rank(client_id)
    return share(range(queues), rank, len(group.members)) if rank is not None else ()
