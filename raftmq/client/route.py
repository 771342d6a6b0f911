"""A topic's route as far as a client needs it: the numbers of queues to read and to write."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

PERM_READ = 4
PERM_WRITE = 2


class BrokerData(msgspec.Struct):
    """One broker name of a route: addresses by broker id, where "0" is the leader."""

    brokerName: str  # the protocol's names, here and below
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


class Route(NamedTuple):
    """The queues of a topic. `exists` is False if the topic does not exist yet and its first message would create
    it."""

    topic: str
    broker_name: str
    read_queues: int
    write_queues: int
    fetched_at: float
    exists: bool


def read_route(topic: str, queues: list[QueueData], fetched_at: float, exists: bool) -> Route | None:
    """Returns the route in a reply; None if the reply names no queues.

    All broker names stand for one Raft group and so for the same queues. The name of the group is for reading; names
    per node, if there are any, list the queues again for writing (docs/adr/0010-broker-names.md).
    """
    if not queues:
        return None
    readable = [q for q in queues if q.perm & PERM_READ]
    read = max((q.readQueueNums for q in readable), default=0)
    write = max((q.writeQueueNums for q in queues if q.perm & PERM_WRITE), default=0)
    return Route(topic, (readable or queues)[0].brokerName, read, write, fetched_at, exists)
