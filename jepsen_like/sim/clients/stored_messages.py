"""Reads a node's messages of a topic directly from its rows and its log, not through a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq_wire.message_format import Message, decode_message

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine


def stored_on(machine: Machine, name: str) -> tuple[list[Message], bool]:
    """Returns every message of the topic that consumers can see at this node, and True if some may have been
    trimmed."""
    assert machine.node is not None
    state, read = machine.node.state, machine.node.serving.services.read_log
    topic = state.topics.get(name)
    messages: list[Message] = []
    trimmed = False
    for queue_id in range(topic.queues) if topic is not None else ():
        assert topic is not None
        first, end = state.min_offset(topic.id, queue_id), state.max_offset(topic.id, queue_id)
        trimmed |= first > 0
        items = state.fetch(topic.id, queue_id, first, end - first)
        messages += [decode_message(read(item.position, item.size))[0] for item in items]
    return messages, trimmed
