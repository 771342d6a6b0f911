"""A group of brokers that joins moves no key of a topic that is there, by the rules with which clients choose a queue
by a key; only an operator's command does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.remoting.handlers.route import HOLD_MS
from raftlog.types import NodeId
from raftmq_wire.message_format import java_hash
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic

KEYS = [f"order-{number}" for number in range(200)]
WRITE = 2


def fnv(key: str, *, offset: int, prime: int, bits: int) -> int:
    found = offset
    for byte in key.encode():
        found = (found ^ byte) * prime % (1 << bits)
    return found


class Client(NamedTuple):
    """How a client calls itself, and chooses among n queues by a key."""

    language: str
    version: int
    choose: Callable[[str, int], int]
    sorts: bool
    """True if it sorts the rows of a route by name; else they stay as they come."""


def java(key: str, n: int) -> int:
    """The remainder has the sign of the hash, and loses it."""
    return abs(java_hash(key)) % n


def go(key: str, n: int) -> int:
    return fnv(key, offset=0x811C9DC5, prime=0x01000193, bits=32) % n


def cpp(key: str, n: int) -> int:
    """An unsigned hash of 64 bits, as that of the standard library."""
    return fnv(key, offset=0xCBF29CE484222325, prime=0x100000001B3, bits=64) % n


CLIENTS = {
    "java": Client("JAVA", 479, java, sorts=True),
    "java 4": Client("JAVA", 212, java, sorts=True),
    "go": Client("GO", 317, go, sorts=True),
    "cpp": Client("CPP", 401, cpp, sorts=False),
    "node": Client("JAVA", 121, java, sorts=True),  # it calls itself so
}


def queues_of_keys(node: Any, client: Client) -> dict[str, tuple[str, int]]:
    """Returns key -> (group, queue) as the client finds it in a route."""
    answer = node.ask(105, topic="T", language=client.language, version=client.version)
    node.advance(HOLD_MS)  # the first route of a C++ client is late
    rows = [row for row in json.loads(answer.answer.body)["queueDatas"] if row["perm"] & WRITE]
    if client.sorts:
        rows.sort(key=lambda row: row["brokerName"])
    queues = [(row["brokerName"], queue) for row in rows for queue in range(row["writeQueueNums"])]
    known = {"raftmq", *(record.name for record in node.other_groups.values())}
    return {key: home(queues[client.choose(key, len(queues))], known) for key in KEYS}


def home(queue: tuple[str, int], groups: set[str]) -> tuple[str, int]:
    """Returns the queue with the name of its group in place of an alias."""
    name, number = queue
    return (name if name in groups else name.rpartition("-")[0]), number


def join(node: Any, group: int, name: str) -> None:
    node.command(AddBrokerGroup(group, name, None if node.other_groups else ("raftmq", 3)))
    members = [GroupMember(each, "h", 1, "", {"broker": f"10.0.{group}.{each}:10911"}) for each in (1, 2, 3)]
    node.other_groups[group] = GroupRecord(group, name, Epoch(1, 1), 2, members)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_group_that_joins_moves_no_key(node: Any, name: str, seed: int) -> None:
    """Whatever the topic's queues and order, the names of the groups, and who is out of reach meanwhile; also if the
    topic was spread over two groups before."""
    rng, client = random.Random(seed), CLIENTS[name]
    node.command(Finalize(GROUPS_LEVEL))
    node.command(CreateTopic({"name": "T", "write_queues": rng.randrange(1, 12), "order": seed % 2 == 0}, False))
    first = queues_of_keys(node, client)
    names = rng.sample(["a", "raftmq-g02", "raftmqz", "z-2", "RAFTMQ", "raft"], 3)
    join(node, 2, names[0])
    assert queues_of_keys(node, client) == first
    node.unreached = {NodeId(rng.randrange(1, 4))}
    assert queues_of_keys(node, client) == first
    node.unreached = set()

    node.command(CreateTopic({"name": "T", "place": [[2, 4, rng.randrange(1, 12)]]}, False))
    spread = queues_of_keys(node, client)
    assert {group for group, _ in spread.values()} == {"raftmq", names[0]}, "an operator's command moves keys"
    join(node, 3, names[1])
    join(node, 17, names[2])
    node.unreached = {NodeId(rng.randrange(1, 4))}
    assert queues_of_keys(node, client) == spread
