"""A topic's route as far as a client needs it: the queues to read and to write, in each group of brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from raftmq_wire.queue_numbers import number_of

PERM_READ = 4
PERM_WRITE = 2


class BrokerData(msgspec.Struct):
    """The addresses of one broker name of a route, by broker id; "0" is the leader."""

    brokerName: str  # field names of the protocol, here and below
    brokerAddrs: dict[str, str] = {}


class QueueData(msgspec.Struct):
    """The queues of a topic under one broker name."""

    brokerName: str
    readQueueNums: int
    writeQueueNums: int
    perm: int


class RouteBody(msgspec.Struct):
    """The body of a route reply (code 105)."""

    brokerDatas: list[BrokerData] = []
    queueDatas: list[QueueData] = []


class GroupQueues(NamedTuple):
    """The queues of a topic in one group of brokers."""

    group: int
    broker_name: str
    """The name of the group, to be shown to people."""
    read: int
    write: int


class Route(NamedTuple):
    """The queues of a topic. `exists` is False if the topic does not exist yet and its first message would create
    it."""

    topic: str
    groups: tuple[GroupQueues, ...]
    """Ordered by their names as text, as RocketMQ's clients order them; at least one."""
    readable: Sequence[int]
    """The numbers of the queues to read (`raftmq_wire.queue_numbers`), in the order in which the members of a consumer
    group share them."""
    writable: Sequence[int]
    """The numbers of the queues to write, in the order in which keys choose one."""
    fetched_at: float
    exists: bool


def route_over(topic: str, groups: Iterable[GroupQueues], fetched_at: float, exists: bool) -> Route:
    """Returns the route of a topic with these queues."""
    ordered = tuple(sorted(groups, key=attrgetter("broker_name")))
    readable = [range(number_of(each.group, 0), number_of(each.group, each.read)) for each in ordered]
    writable = [range(number_of(each.group, 0), number_of(each.group, each.write)) for each in ordered]
    return Route(topic, ordered, _joined(readable), _joined(writable), fetched_at, exists)


def _joined(ranges: list[range]) -> Sequence[int]:
    return ranges[0] if len(ranges) == 1 else [number for each in ranges for number in each]


def read_route(
    topic: str, queues: list[QueueData], fetched_at: float, exists: bool, group_of: Callable[[str], int] = lambda _: 1
) -> Route | None:
    """Returns the route in a reply; None if the reply names no queues. `group_of`: broker name -> number of its group,
    0 if no group has the name.

    All broker names of a group stand for one Raft group, and so for the same queues. Consumers read under the group's
    own name; aliases per node, if there are any, list the queues again for writing (docs/adr/0010-broker-names.md).
    """
    by_group: dict[int, list[QueueData]] = {}
    for each in queues:
        if group := group_of(each.brokerName):
            by_group.setdefault(group, []).append(each)
    groups = []
    for group, rows in by_group.items():
        readable = [q for q in rows if q.perm & PERM_READ]
        read = max((q.readQueueNums for q in readable), default=0)
        write = max((q.writeQueueNums for q in rows if q.perm & PERM_WRITE), default=0)
        name = min((q.brokerName for q in rows), key=len)  # aliases are longer than the group's own name
        groups.append(GroupQueues(group, name, read, write))
    return route_over(topic, groups, fetched_at, exists) if groups else None
