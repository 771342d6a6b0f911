"""The second pass of the log checker: examines queues that are not perfect, copy by copy."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jepsen_like.checkers.history_steps import TopicQueue, place
from jepsen_like.checkers.messages import Dump, Messages, Send
from jepsen_like.checkers.verdict import Findings


class MessageOnReplica(NamedTuple):
    """One message in one place on one replica, or in an answer to a poll (`node` is -1). `op` is the index of the step
    that returned it.
    """

    node: int
    queue: TopicQueue
    offset: int
    op: int


def judge_dumps(messages: Messages, queues: set[TopicQueue], findings: Findings) -> None:
    """Reports everything that is wrong with the dumps of these queues."""
    if not queues:
        return
    dumps = [dump for queue in sorted(queues) for dump in messages.dumps.get(queue, ())]
    copies: dict[str, list[MessageOnReplica]] = defaultdict(list)
    for dump in dumps:
        for message_id, offset, op in dump.rows():
            copies[message_id].append(MessageOnReplica(dump.node, dump.queue, offset, op))
    _breaks(dumps, findings)
    _disagreement(dumps, findings)
    for message_id, found in copies.items():
        _duplicates(message_id, found, findings)
        for node in {copy.node: copy for copy in reversed(found)}.values():
            judge_origin(messages.sends.get(message_id), message_id, node, findings)
        for copy in found:
            judge_place(messages.sends.get(message_id), copy, findings)
    _losses(messages, queues, copies, findings)


def judge_origin(send: Send | None, message_id: str, copy: MessageOnReplica, findings: Findings) -> None:
    """Adds a finding if this copy must not exist: its message was never sent, its send failed, or it was read before it
    was sent or in another topic than it was sent to. A negative `copy.node` means that a poll returned the copy.
    """
    node: int | None = None if copy.node < 0 else copy.node
    where = place(copy.queue, copy.offset)
    if send is None:
        findings.add("phantom", f"{message_id!r} at {where}: never sent", (copy.op,), node=node, subject=message_id)
    elif send.outcome == "fail":
        what = f"{message_id!r} at {where}: its send was answered with a failure that guarantees that it was not stored"
        findings.add("aborted-read", what, (send.completed, copy.op), node=node, subject=message_id)
    elif copy.op < send.invoked:
        what = f"{message_id!r} at {where}: it was read before it was sent"
        findings.add("future-read", what, (copy.op, send.invoked), node=node, subject=message_id)
    elif send.topic != copy.queue[0]:
        what = f"{message_id!r} was sent to {send.topic!r} and stands in {copy.queue[0]!r}"
        findings.add("misplaced", what, (send.invoked, copy.op), node=node, subject=message_id)


def judge_place(send: Send | None, copy: MessageOnReplica, findings: Findings) -> None:
    """Adds a finding if this copy of an acknowledged message is at another place than the acknowledgement named."""
    if send is None or send.queue is None or (copy.queue, copy.offset) == (send.queue, send.offset):
        return
    told, found = place(send.queue, send.offset), place(copy.queue, copy.offset)
    what = f"{send.message_id!r} was acknowledged at {told} and found at {found}"
    node = None if copy.node < 0 else copy.node
    findings.add("offset-mismatch", what, (send.completed, copy.op), node=node, subject=send.message_id)


def _breaks(dumps: Iterable[Dump], findings: Findings) -> None:
    """Reports breaks in the offsets: within one replica and queue they must rise by exactly one from the requested
    offset."""
    for dump in dumps:
        for position, expected in dump.breaks:
            offset = dump.offsets[position]
            kind = "replica-skip" if offset > expected else "replica-nonmonotonic"
            what = f"node {dump.node} answered {place(dump.queue, offset)} where offset {expected} was due"
            steps = dict.fromkeys((dump.op_at(max(position - 1, 0)), dump.op_at(position)))
            findings.add(kind, what, steps, node=dump.node, subject=dump.ids[position])


def _disagreement(dumps: Iterable[Dump], findings: Findings) -> None:
    holder: dict[tuple[TopicQueue, int], tuple[str, int, int]] = {}
    for dump in dumps:
        for message_id, offset, op in dump.rows():
            first_id, node, first_op = holder.setdefault((dump.queue, offset), (message_id, dump.node, op))
            if first_id != message_id:
                where = place(dump.queue, offset)
                what = f"{where} is {first_id!r} on node {node} and {message_id!r} on node {dump.node}"
                findings.add("inconsistent-offset", what, (first_op, op), node=dump.node, subject=message_id)


def _duplicates(message_id: str, copies: list[MessageOnReplica], findings: Findings) -> None:
    """Reports a message that one node holds in several places. Rows with the same place count once: if a node answers
    one offset twice, `_breaks` reports it.
    """
    if len(copies) < 2:
        return
    places: dict[int, dict[tuple[TopicQueue, int], int]] = defaultdict(dict)
    for copy in copies:
        places[copy.node].setdefault((copy.queue, copy.offset), copy.op)
    for node, held in places.items():
        (first, first_op), *others = held.items()
        for other, op in others:
            what = f"{message_id!r} is on node {node} at {place(*first)} and again at {place(*other)}"
            findings.add("duplicate", what, dict.fromkeys((first_op, op)), node=node, subject=message_id)


def _losses(
    messages: Messages, queues: set[TopicQueue], copies: dict[str, list[MessageOnReplica]], findings: Findings
) -> None:
    """Reports messages that were acknowledged, or seen anywhere, and are missing on a replica that was read to the end
    or at least to their place."""
    reached = {
        (dump.node, queue): float("inf") if dump.ended else max(dump.offsets, default=-1)
        for queue in queues
        for dump in messages.dumps.get(queue, ())
    }
    everywhere: list[Send] = []
    for send in _expected(messages, queues, copies):
        assert send.place is not None
        queue, offset = send.place
        found = copies.get(send.message_id, [])
        holders = [dump.node for dump in messages.dumps.get(queue, ())]
        have = {copy.node for copy in found}
        missing = [node for node in holders if node not in have and reached.get((node, queue), -1) >= offset]
        if missing and missing == holders:
            everywhere.append(send)
            continue
        seen = "acknowledged at" if send.outcome == "ok" else "seen by a reader at"
        for node in missing:
            what = f"{send.message_id!r} was {seen} {place(queue, offset)} and is not on node {node}"
            steps = [_last_word(send), *(copy.op for copy in found[:1])]
            if findings.keeps("lost-on-node"):
                steps += [dump.passed_at(offset) for dump in messages.dumps[queue] if dump.node == node]
            findings.add("lost-on-node", what, steps, node=node, subject=send.message_id)
    _lost_writes(messages, everywhere, findings)


def _expected(messages: Messages, queues: set[TopicQueue], copies: dict[str, list[MessageOnReplica]]) -> Iterator[Send]:
    """Yields the sends that must be in these queues: acknowledged there, or of unknown outcome and seen there."""
    for queue in sorted(queues):
        yield from messages.acked.get(queue, ())
    for message_id in copies:
        send = messages.sends.get(message_id)
        if send is not None and send.outcome == "info" and send.found is not None and send.found[0] in queues:
            yield send


def _lost_writes(messages: Messages, lost: list[Send], findings: Findings) -> None:
    """Reports the messages that are lost on every replica. The report says which part of a producer's messages is
    missing, because that hints at the cause."""
    if not lost:
        return
    shares = _surviving(messages, {send.message_id for send in lost})
    for send in lost:
        assert send.place is not None
        part = _part(send, shares)
        findings.tally[f"lost_{part}"] += 1
        name = "" if send.producer is None else f" of producer {send.producer!r}"
        seen = "acknowledged at" if send.outcome == "ok" else "seen by a reader at"
        what = f"{send.message_id!r} was {seen} {place(*send.place)} and is on no replica ({part}{name})"
        queue, offset = send.place
        passed = [messages.dumps[queue][0].passed_at(offset)] if findings.keeps("lost-write") else []
        findings.add("lost-write", what, (_last_word(send), *passed), subject=send.message_id)


def _last_word(send: Send) -> int:
    return send.completed if send.completed >= 0 else send.invoked


def _surviving(messages: Messages, lost: set[str]) -> dict[str | None, list[int]]:
    """Returns per producer the invocations of the acknowledged messages that were not lost, ascending."""
    shares: dict[str | None, list[int]] = defaultdict(list)
    for send in messages.sends.values():
        if send.outcome == "ok" and send.message_id not in lost:
            shares[send.producer].append(send.invoked)
    return shares


def _part(send: Send, shares: dict[str | None, list[int]]) -> str:
    survivors = shares.get(send.producer, [])
    before = bisect_left(survivors, send.invoked)
    if not survivors:
        return "everything"
    return "prefix" if before == 0 else "postfix" if before == len(survivors) else "middle"
