"""The offsets up to which retention removed messages: a message below its queue's first offset may be missing, a
message at or above it may not."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from jepsen_like.history import Op
from jepsen_like.sim.machines.machine import Machine
from statemachine import queue_reads
from statemachine.broker_state import BrokerState

Floors = dict[tuple[str, int], int]
"""(topic, queue id) -> the highest first offset of the queue on any node."""


def floors(machines: Iterable[Machine], topics: Iterable[str]) -> Floors:
    """Returns the highest first offset of each queue of these topics on any node whose rows can be read."""
    found: Floors = {}
    for topic in topics:
        for state in [node.state for machine in machines if (node := machine.readable) is not None]:
            known = state.topics.get(topic)
            for queue in range(state.stored_queues(known) if known is not None else 0):
                assert known is not None
                found[topic, queue] = max(found.get((topic, queue), 0), _first(state, known.id, queue))
    return found


def _first(state: BrokerState, topic_id: int, queue_id: int) -> int:
    """Returns the first offset of the queue. Messages that were evicted to the tier count as present. Once segments are
    deleted from the tier too, the offset in a queue's row may be too low, so the first offset that the node itself has
    is returned."""
    if state.kept.position:
        # A batch that removes messages is in the rows before the state knows of it (seed 958500034).
        return max(state.min_offset(topic_id, queue_id), queue_reads.first_offset(state._kv, topic_id, queue_id))
    return state.kept_offset(topic_id, queue_id)


def above(ops: Iterable[Op], floor: Floors) -> list[Op]:
    """Returns the history without the acknowledged sends of trimmed messages. Reads, too, begin at the floor and show
    no message below it. All messages that remain in the history must be present."""
    if not any(floor.values()):
        return list(ops)
    kept = list(ops)
    gone = {op.process for op in kept if op.f == "send" and op.type == "ok" and is_below(op, floor)}
    lowest = {
        op.process: floor.get((op.value["topic"], op.value["queue_id"]), 0)
        for op in kept
        if op.f == "read" and op.type == "invoke"
    }
    left = [op for op in kept if op.process not in gone]
    return [replace(_cut(op, lowest.get(op.process, 0)), index=number) for number, op in enumerate(left)]


def is_below(op: Op, floor: Floors) -> bool:
    """Returns True if this acknowledged send's message was trimmed."""
    value = op.value
    return bool(value["queue_offset"] < floor.get((value["topic"], value["queue_id"]), 0))


def _cut(op: Op, lowest: int) -> Op:
    if not lowest:
        return op
    value = dict(op.value)
    if "offset" in value:
        value["offset"] = max(value["offset"], lowest)
    if "messages" in value:
        value["messages"] = [row for row in value["messages"] if row[0] >= lowest]
    return replace(op, value=value)
