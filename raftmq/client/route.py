"""A topic's route as a client needs it: how many queues there are to read and to write."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

PERM_READ = 4
PERM_WRITE = 2


class BrokerData(msgspec.Struct):
    """One broker name of a route; address by broker id, "0" is the leader."""

    brokerName: str  # the protocol's names, here and below
    brokerAddrs: dict[str, str] = {}


class QueueData(msgspec.Struct):
    """Queues of a topic at one broker name."""

    brokerName: str
    readQueueNums: int
    writeQueueNums: int
    perm: int


class RouteBody(msgspec.Struct):
    """The body of a route reply (code 105)."""

    brokerDatas: list[BrokerData] = []
    queueDatas: list[QueueData] = []


class Route(NamedTuple):
    """Queues of a topic; `exists` is False while it would be made by the first message."""

    topic: str
    broker_name: str
    read_queues: int
    write_queues: int
    fetched_at: float
    exists: bool


def read_route(topic: str, queues: list[QueueData], fetched_at: float, exists: bool) -> Route | None:
    """The route in a reply; None if it names no queues.

    All names stand for one Raft group and so for the same queues: the group's own is for reading, those per node, if
    there are any, list the queues again for writing (docs/adr/0010-broker-names.md).
    """
    if not queues:
        return None
    readable = [q for q in queues if q.perm & PERM_READ]
    read = max((q.readQueueNums for q in readable), default=0)
    write = max((q.writeQueueNums for q in queues if q.perm & PERM_WRITE), default=0)
    return Route(topic, (readable or queues)[0].brokerName, read, write, fetched_at, exists)
