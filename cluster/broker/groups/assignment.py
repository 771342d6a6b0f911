"""Divides a topic's queues among the clients of a group, for clients that leave the choice to the broker.

A client gets the queues that it would have chosen for itself by the same strategy over the same sorted lists. Source:
RocketMQ's AllocateMessageQueueAveragely, -AveragelyByCircle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cluster.broker.groups.group_members import Members
from cluster.broker.name_rules import PERM_READ
from cluster.broker.services import Services
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.groups.consumer_group import ConsumerGroup

Share = Callable[[Sequence[int], int, int], Sequence[int]]
"""(queues, rank of the client, number of clients) -> the client's queues."""


def sharers(group: ConsumerGroup | None, topic: str) -> list[str | None]:
    """Returns the client ids among which the topic's queues are divided; None in the place of one that does not read
    what falls to it."""
    if group is None:
        return []
    charge(ITEM_UNITS * len(group.members))
    return [client_id if group.wants(client_id, topic) else None for client_id in group.sharers(topic)]


def owner(queue: int, queues: int, clients: Sequence[str | None]) -> str | None:
    """Returns the client that gets the queue by AVG; None if there is none, or if it does not read it."""
    if not clients or not 0 <= queue < queues:
        return None
    size, more = divmod(queues, len(clients))
    longer = more * (size + 1)
    return clients[queue // (size + 1) if queue < longer else more + (queue - longer) // size]


def _average(queues: Sequence[int], rank: int, clients: int) -> Sequence[int]:
    size, more = divmod(len(queues), clients)
    start = rank * size + min(rank, more)
    return queues[start : start + size + (rank < more)]


def _circle(queues: Sequence[int], rank: int, clients: int) -> Sequence[int]:
    return queues[rank::clients]


STRATEGIES: dict[str, Share] = {"AVG": _average, "AVG_BY_CIRCLE": _circle}
"""AVG gives each client a run of neighbouring queues, and the first clients one more. AVG_BY_CIRCLE gives each of n
clients every n-th queue."""


def assigned_queues(
    services: Services, members: Members, group: str, client_id: str, topic: str, *, strategy: str, broadcasting: bool
) -> Sequence[int] | None:
    """Returns the ids of the client's queues; None if they are not known. The leader calls it, so that all members of a
    group are judged by the same list, after a ReadIndex round."""
    config = services.state.topics.get(topic)
    if config is None or not config.perm & PERM_READ:
        return None
    queues = range(config.read_queues)
    if broadcasting:
        return queues
    share, clients = STRATEGIES.get(strategy), members.consumers.get(group)
    if share is None or clients is None:
        return None
    if clients.by_topic:
        charge(ITEM_UNITS * len(clients.members))
        sharers = clients.sharers(topic)
        return share(queues, sharers.index(client_id), len(sharers)) if client_id in sharers else ()
    rank = clients.members.rank(client_id)
    return share(queues, rank, len(clients.members)) if rank is not None else ()
