"""One lost message, told step by step from the history: when it was promised, what was broken then, what stands there.

Reads the same steps that the checkers read, so everything it says can be looked up by line number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jepsen_like.history import Op

_FAULTS_BEFORE_NS = 5_000_000_000


class Loss(NamedTuple):
    """An acknowledged message that a replica, read to its end, does not hold."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    acked: Op
    missing_on: list[int]


def find_losses(ops: Sequence[Op]) -> list[Loss]:
    """Every acknowledged message missing on some replica, in the order of the acknowledgements."""
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
            missing = [node for node, ids in sorted(held.items()) if message_id not in ids]
            if missing:
                place = (op.value["topic"], int(op.value["queue_id"]), int(op.value["queue_offset"]))
                losses.append(Loss(message_id, *place, op, missing))
    return losses


def explain(ops: Sequence[Op], evidence: Iterable[str] = ()) -> list[str]:
    """The story of one loss, one step per line; empty if nothing is lost."""
    losses = find_losses(ops)
    if not losses:
        return []
    loss = min(losses, key=lambda each: (-len(each.missing_on), each.acked.index))
    nodes = sorted({int(op.value["node"]) for op in ops if op.f == "read" and op.type == "invoke"})
    start = ops[0].time_ns
    invoked = next(op for op in ops if op.f == "send" and op.type == "invoke" and op.value["id"] == loss.message_id)
    place = f"{loss.topic}/{loss.queue_id} at offset {loss.queue_offset}"
    told = [f"{_at(invoked, start)} a client sends {loss.message_id}"]
    told += _surroundings(ops, invoked, start)
    told.append(f"{_at(loss.acked, start)} it is acknowledged: it stands in {place}")
    told += _afterwards(ops, loss, start)
    told.append(f"in the end it is missing on node {', '.join(map(str, loss.missing_on))} of {nodes}")
    told += [f"node {node} holds {what} at that offset" for node, what in _holders(ops, loss).items()]
    told += evidence
    told.append(f"{len(losses)} acknowledged messages are lost like this one: {_ids(losses)}")
    return [f"{number}. {line}" for number, line in enumerate(told, 1)]


def _surroundings(ops: Sequence[Op], invoked: Op, start: int) -> list[str]:
    """Who led, and what was broken shortly before."""
    told = []
    leader = None
    for op in ops[: invoked.index]:
        if op.f == "leader" and op.type == "ok":
            leader = op
        if op.f == "fault" and op.type == "ok" and op.time_ns > invoked.time_ns - _FAULTS_BEFORE_NS:
            told.append(f"{_at(op, start)} (shortly before) {op.value['kind']}: {op.value.get('detail', '')}")
    if leader is not None:
        told.insert(0, f"{_at(leader, start)} node {leader.value['node']} leads term {leader.value['term']}")
    return told


def _afterwards(ops: Sequence[Op], loss: Loss, start: int) -> list[str]:
    """The fault under way at the acknowledgement, the next leader, and the first sign that the log went back."""
    told: list[str] = []
    fault = next((op for op in ops[loss.acked.index :] if op.f == "fault" and op.type == "ok"), None)
    if fault is not None:
        told.append(f"{_at(fault, start)} a fault ends: {fault.value['kind']}: {fault.value.get('detail', '')}")
    leader = next((op for op in ops[loss.acked.index :] if op.f == "leader" and op.type == "ok"), None)
    if leader is not None:
        told.append(f"{_at(leader, start)} node {leader.value['node']} leads term {leader.value['term']}")
    for op in ops[loss.acked.index + 1 :]:
        if op.f == "send" and op.type == "ok" and _place(op) == (loss.topic, loss.queue_id, loss.queue_offset):
            told.append(f"{_at(op, start)} {op.value['id']} is acknowledged at the very same offset: the log went back")
            break
    return told


def _place(op: Op) -> tuple[str, int, int]:
    return op.value["topic"], int(op.value["queue_id"]), int(op.value["queue_offset"])


def _holders(ops: Sequence[Op], loss: Loss) -> dict[int, str]:
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


def _ids(losses: list[Loss], shown: int = 12) -> str:
    ids = [loss.message_id for loss in losses]
    return ", ".join(ids[:shown]) + (f", … {ids[-1]}" if len(ids) > shown else "")
