"""Everything that attackers of the simulator know of other users: the names and ids of stored objects, senders and
clients.

The simulator assumes the worst case, in which all of these have leaked. They are read from the rows of a running node
and from the clients themselves. Only the secrets of users have not leaked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from cluster.node.node import Node
from jepsen_like.sim.machines.machine import Machine
from raftlog.errors import RaftLogError
from raftmq_wire.message_format import Message, RecallHandle, decode_message
from raftmq_wire.properties import parse_properties
from statemachine.delivery.half_messages import HalfMessage
from statemachine.delivery.staged_writes import Attempt, attempt_of
from statemachine.rows import keys
from statemachine.rows.kv import DEDUP
from statemachine.topics.topics import TopicConfig

SCANNED_MAX = 200
"""The most rows that one look reads."""


class ClientName(NamedTuple):
    """A client as its heartbeats named it."""

    group: str
    client_id: str
    is_producer: bool


class Leaks:
    """Picks messages, names and other things that attackers may want, from a random running node. The methods that pick
    one thing return None if there is none."""

    def __init__(
        self, machines: Callable[[], Sequence[Machine]], brought: Callable[[], Sequence[tuple[bytes, int]]], own: str
    ) -> None:
        """`machines`: returns the machines of the cluster. `brought`: returns the producer ids that honest clients name
        in their sends, each with its next sequence. `own`: prefix of the names of the attackers' own topics and groups,
        which are never returned."""
        self._machines, self._brought, self._own = machines, brought, own

    def _machine(self, rng: random.Random) -> Machine | None:
        machines = [machine for machine in self._machines() if hasattr(machine.node, "serving")]
        return rng.choice(machines) if machines else None

    def _node(self, rng: random.Random) -> Node | None:
        machine = self._machine(rng)
        return None if machine is None else machine.node

    def topics(self, node: Node) -> list[TopicConfig]:
        """Returns the topics of others that have queues."""
        return [topic for topic in node.state.topics.values() if topic.queues and self._own not in topic.name]

    def message(self, rng: random.Random) -> Message | None:
        """Returns a message in a queue of another user's topic: one of the newest or any other."""
        node = self._node(rng)
        if node is None:
            return None
        topics = self.topics(node)
        for topic in rng.sample(topics, min(4, len(topics))):
            queue_id = rng.randrange(topic.queues)
            first, end = node.state.min_offset(topic.id, queue_id), node.state.max_offset(topic.id, queue_id)
            if first < end:
                offset = rng.choice((end - 1, rng.randrange(first, end)))
                items = node.state.fetch(topic.id, queue_id, offset, 1)
                return _read(node, items[0].position, items[0].size) if items else None
        return None

    def half(self, rng: random.Random) -> tuple[HalfMessage, Message] | None:
        """Returns an open half message."""
        node = self._node(rng)
        found = [] if node is None else list(islice(node.state.halves.pinned(0, 1 << 62), 20))
        if node is None or not found:
            return None
        half = rng.choice(found)
        message = _read(node, half.place, half.size)
        return None if message is None else (half, message)

    def handle(self, rng: random.Random, topic: str) -> RecallHandle | None:
        """Returns the recall handle of a waiting message, which names, at random, the message's topic or `topic`; None
        if there is none."""
        node = self._node(rng)
        if node is None:
            return None
        rows = [
            row for row in islice(node.state.timers.pinned(0, 1 << 62), SCANNED_MAX) if attempt_of(row.due_ms) is None
        ]
        rows = [row for row in rows if row.topic_id in node.state.topics_by_id]
        if not rows:
            return None
        row = rng.choice(rows)
        name = node.state.topics_by_id[row.topic_id].name
        item, position = row.messages()[0], row.first_positions()[0]
        message = _read(node, item.position, item.size)
        if message is None:
            return None
        key = unique_key_of(message)
        broker = node.serving.services.config.cluster.broker_name
        return RecallHandle(rng.choice((name, topic)), broker, row.due_ms, key, position)

    def attempt(self, rng: random.Random) -> Attempt | None:
        """Returns the newest attempt at a staged write."""
        node = self._node(rng)
        attempts = [] if node is None else [one for one in node.state.writes.attempts() if self._own not in one.name]
        return attempts[-1] if attempts else None

    def session(self, rng: random.Random) -> tuple[bytes, int] | None:
        """Returns the id of a session and its next sequence: a session that a client names, one in the rows, or one
        that may be assigned next."""
        machine = self._machine(rng)
        if machine is None or machine.node is None:
            return None
        if rng.random() < 0.6 and (brought := self._brought()):
            return rng.choice(brought)
        ids = [key[1:17] for key, _ in islice(machine.kv.scan(DEDUP, *keys.PRODUCERS), SCANNED_MAX)]
        if not ids:
            return None
        known = rng.choice(ids)
        if rng.random() < 0.5:
            return known, machine.node.state.max_sequence(known) + 1
        return known[:8] + (int.from_bytes(known[8:], "big") + rng.randint(1, 4)).to_bytes(9, "big")[-8:], 1

    def client(
        self, rng: random.Random, *, is_producer: bool | None = None, of_group: str | None = None
    ) -> ClientName | None:
        """Returns a connected client of another user: a producer or a consumer (either if the role is None), of this
        group (any if the group is None). Returns None if there is none.
        """
        node = self._node(rng)
        if node is None:
            return None
        members, found = node.serving.broker.members, list[ClientName]()
        if is_producer is not False:
            for group, producers in members.producers.items():
                found += [ClientName(group, one.client_id, True) for one in islice(producers.values(), 8)]
        if is_producer is not True:
            for group, consumers in members.consumers.items():
                found += [ClientName(group, one.client_id, False) for one in islice(consumers.members.values(), 8)]
        found = [one for one in found if self._own not in one.client_id and self._own not in one.group]
        found = [one for one in found if of_group in (None, one.group)]
        return rng.choice(found) if found else None


def unique_key_of(message: Message) -> str:
    """Returns the message's UNIQ_KEY; "" if it has none."""
    return parse_properties(message.properties.decode("utf-8", "replace")).get("UNIQ_KEY", "")


def _read(node: Node, position: int, size: int) -> Message | None:
    try:
        return decode_message(node.serving.services.read_log(position, size))[0]
    except (RaftLogError, ValueError):
        return None
