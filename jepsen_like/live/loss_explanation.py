"""Explains one lost message step by step from the history: when it was acknowledged, which faults ended shortly before
and after, who led, and which message is in its place.

It reads the same steps as the checkers, so everything it says can be looked up by line number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jepsen_like.history import Op, group_of_node
from raftmq_wire.queue_numbers import group_of

_FAULTS_BEFORE_NS = 5_000_000_000


class LostMessage(NamedTuple):
    """An acknowledged message that the final read of at least one replica lacks. `acked` is the step that acknowledged
    it; `missing_on` has the nodes that lack it.
    """

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    acked: Op
    missing_on: list[int]


def find_losses(ops: Sequence[Op]) -> list[LostMessage]:
    """Returns a LostMessage for each acknowledged message that is missing on some replica, in the order of the
    acknowledgements.
    """
    held: dict[int, set[str]] = {}
    for op in ops:
        if op.f == "read" and op.type == "invoke":
            held.setdefault(int(op.value["node"]), set())
    node_of: dict[int, int] = {}
    for op in ops:
        if op.f != "read":
            continue
        if op.type == "invoke":
            node_of[op.process] = int(op.value["node"])
        elif op.type == "ok":
            held[node_of[op.process]].update(message_id for _, message_id in op.value["messages"])
    losses = []
    for op in ops:
        if op.f == "send" and op.type == "ok":
            message_id = op.value["id"]
            group = group_of(int(op.value["queue_id"]))
            holders = {node: ids for node, ids in sorted(held.items()) if group_of_node(node) == group}
            missing = [node for node, ids in holders.items() if message_id not in ids]
            if missing:
                place = (op.value["topic"], int(op.value["queue_id"]), int(op.value["queue_offset"]))
                losses.append(LostMessage(message_id, *place, op, missing))
    return losses


def explain(ops: Sequence[Op], evidence: Iterable[str] = ()) -> list[str]:
    """Returns the explanation of one loss, one step per line, with the lines of `evidence`; an empty list if nothing is
    lost. Chooses the message that the most replicas lack; of several, the one that was acknowledged first.
    """
    losses = find_losses(ops)
    if not losses:
        return []
    loss = min(losses, key=lambda each: (-len(each.missing_on), each.acked.index))
    read = {int(op.value["node"]) for op in ops if op.f == "read" and op.type == "invoke"}
    nodes = sorted(node for node in read if group_of_node(node) == group_of(loss.queue_id))
    start = ops[0].time_ns
    invoked = next(op for op in ops if op.f == "send" and op.type == "invoke" and op.value["id"] == loss.message_id)
    place = f"{loss.topic}/{loss.queue_id} at offset {loss.queue_offset}"
    steps = [
        (invoked, f"a client sends {loss.message_id}"),
        (loss.acked, f"it is acknowledged: it stands in {place}"),
        *_before(ops, invoked),
        *_after(ops, loss),
    ]
    told = [f"{_at(op, start)} {text}" for op, text in sorted(steps, key=lambda step: step[0].index)]
    told.append(f"in the end it is missing on node {', '.join(map(str, loss.missing_on))} of {nodes}")
    told += [f"node {node} holds {what} at that offset" for node, what in _holders(ops, loss).items()]
    told += evidence
    told.append(f"{len(losses)} acknowledged messages are lost like this one: {_ids(losses)}")
    return [f"{number}. {line}" for number, line in enumerate(told, 1)]


def _before(ops: Sequence[Op], invoked: Op) -> Iterator[tuple[Op, str]]:
    """Yields the faults that ended in the five seconds before the send, and the leader at that time."""
    leader = None
    for op in ops[: invoked.index]:
        if op.f == "leader" and op.type == "ok":
            leader = op
        if op.f == "fault" and op.type == "ok" and op.time_ns > invoked.time_ns - _FAULTS_BEFORE_NS:
            yield op, f"a fault has ended, {op.value['kind']}: {op.value.get('detail', '')}"
    if leader is not None:
        yield leader, f"node {leader.value['node']} leads term {leader.value['term']}"


def _after(ops: Sequence[Op], loss: LostMessage) -> Iterator[tuple[Op, str]]:
    """Yields the first fault that ended after the acknowledgement, the next leader, and the next message that was
    acknowledged at the same offset, which shows that the log went back.
    """
    later = ops[loss.acked.index + 1 :]
    if fault := next((op for op in later if op.f == "fault" and op.type == "ok"), None):
        yield fault, f"a fault has ended, {fault.value['kind']}: {fault.value.get('detail', '')}"
    if leader := next((op for op in later if op.f == "leader" and op.type == "ok"), None):
        yield leader, f"node {leader.value['node']} leads term {leader.value['term']}"
    place = (loss.topic, loss.queue_id, loss.queue_offset)
    if other := next((op for op in later if op.f == "send" and op.type == "ok" and _place(op) == place), None):
        yield other, f"{other.value['id']} is acknowledged at the very same offset: the log went back"


def _place(op: Op) -> tuple[str, int, int]:
    return op.value["topic"], int(op.value["queue_id"]), int(op.value["queue_offset"])


def _holders(ops: Sequence[Op], loss: LostMessage) -> dict[int, str]:
    found: dict[int, str] = {}
    asked: dict[int, Op] = {}
    for op in ops:
        if op.f != "read":
            continue
        if op.type == "invoke":
            asked[op.process] = op
            continue
        value = asked[op.process].value
        if (value["topic"], int(value["queue_id"])) != (loss.topic, loss.queue_id) or op.type != "ok":
            continue
        node = int(value["node"])
        found.setdefault(node, "nothing")
        for offset, message_id in op.value["messages"]:
            if offset == loss.queue_offset:
                found[node] = message_id
    return found


def _at(op: Op, start: int) -> str:
    return f"{(op.time_ns - start) / 1e9:8.3f} s (line {op.index + 2})"


def _ids(losses: list[LostMessage], shown: int = 12) -> str:
    ids = [loss.message_id for loss in losses]
    return ", ".join(ids[:shown]) + (f", … {ids[-1]}" if len(ids) > shown else "")
