"""The log checker: checks that every replica holds exactly the messages that clients were told it holds, once and in
order.

Most queues of most runs are perfect, so each queue is first compared with its expected content in one cheap pass; only
queues that differ are examined in detail. Every pass is O(n log n) or better.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from jepsen_like.checkers.history_steps import Operations, TopicQueue, place, queue_of, values_of
from jepsen_like.checkers.log_detail import judge_dumps
from jepsen_like.checkers.messages import Dump, Messages, Send
from jepsen_like.checkers.send_columns import NEVER, NO_SENDS, SendColumns
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import group_of_node

NAME = "log"


def check(operations: Operations, messages: Messages, workload: Workload) -> CheckerResult:
    """Checks sends against the final reads of the replicas, and their order against real time."""
    findings = Findings()
    judge(messages, findings, ordered=workload.ordered)
    _stale_reads(operations, messages, findings)
    for node, queue in unread(messages):
        findings.doubt(f"{queue[0]}/{queue[1]} was not read to its end on node {node}")
    for group in sorted({group_of_node(node) for node in messages.nodes}):
        nodes = [node for node in messages.nodes if group_of_node(node) == group]
        if len(nodes) < workload.replicas:
            findings.doubt(f"only nodes {nodes} were read; the workload has {workload.replicas} replicas")
    if messages.acknowledged and not messages.nodes and not operations.of("poll"):
        findings.doubt("messages were acknowledged, but none was read back")
    return findings.result(NAME, statistics(messages), workload.allowed)


def judge(messages: Messages, findings: Findings, *, ordered: bool) -> None:
    """Runs all passes over sends and dumps (replicas' copies of queues), and adds the anomalies to `findings`. Checks
    the order of each producer's sends only if `ordered`.
    """
    suspicious: set[TopicQueue] = set()
    shelves = dict(messages.shelves)
    waiting = {send.message_id: send for send in messages.unknown}
    for queue, dumps in messages.dumps.items():
        shelf = _with_guests(shelves.get(queue, NO_SENDS), dumps[0], waiting)
        if _is_perfect(shelf, queue, dumps):
            shelves[queue] = shelf
            messages.perfect[queue] = shelf.invoked
            _note_found(shelf, queue, waiting)
        else:
            suspicious |= _suspicious(messages, queue, dumps)
    for queue in suspicious:
        messages.perfect.pop(queue, None)
    judge_dumps(messages, suspicious, findings)
    for queue, shelf in messages.shelves.items():
        if len(set(shelf.offsets)) < len(shelf.offsets):
            _one_place_acknowledged_twice(messages.acked[queue], findings)
    _repeats(messages, findings)
    found = _found(messages)
    for queue in dict.fromkeys((*messages.shelves, *found)):
        knows_all = queue in messages.perfect or queue not in found
        if not knows_all or not shelves[queue].keeps_real_time():
            _real_time(queue, _placed(messages, queue, found), findings)
        if ordered:
            _producer_order(queue, _placed(messages, queue, found), findings)


def _repeats(messages: Messages, findings: Findings) -> None:
    """Checks that a repeated send was answered with the place where its message is stored. Ignores a repeat whose send
    is not in the history: the send was left out because its message may be gone.
    """
    for repeat in messages.repeats:
        send = messages.sends.get(repeat.message_id)
        if send is None or send.place == (repeat.queue, repeat.offset):
            continue
        told, steps = place(repeat.queue, repeat.offset), (send.invoked, repeat.completed)
        if send.place is not None:
            what = f"{repeat.message_id!r} is at {place(*send.place)}; when it was sent again, {told} was answered"
            findings.add("offset-mismatch", what, steps, subject=repeat.message_id)
        elif messages.nodes and not unread(messages):
            what = f"{repeat.message_id!r} was acknowledged at {told} when it was sent again, and is on no replica"
            findings.add("lost-write", what, steps, subject=repeat.message_id)


def unread(messages: Messages) -> list[tuple[int, TopicQueue]]:
    """Returns the (node, queue) pairs that were not read to the end, where nothing can be said about missing
    messages."""
    return sorted((dump.node, queue) for queue, dumps in messages.dumps.items() for dump in dumps if not dump.ended)


def statistics(messages: Messages) -> dict[str, Any]:
    """Returns the numbers of sends by outcome, and of the messages that were read from each node."""
    stored = sum(send.found is not None for send in messages.unknown)
    rows = dict.fromkeys(messages.nodes, 0)
    for dumps in messages.dumps.values():
        for dump in dumps:
            rows[dump.node] += len(dump.ids)
    return {
        "acked": messages.acknowledged,
        "failed": len(messages.failed),
        "unknown": len(messages.unknown),
        "unknown_stored": stored,
        "read": {str(node): count for node, count in rows.items()},
    }


def _with_guests(shelf: SendColumns, dump: Dump, waiting: dict[str, Send]) -> SendColumns:
    """Returns the shelf (the columns of acknowledged sends) plus those sends of unknown outcome that are in the dump.
    `waiting` holds the sends of unknown outcome by id. If the dump has such a message twice, returns the shelf as it
    is.
    """
    if not waiting or len(dump.ids) <= len(shelf.ids):
        return shelf
    offsets = [offset for message_id, offset in zip(dump.ids, dump.offsets, strict=True) if message_id in waiting]
    guests = [waiting[message_id] for message_id in dump.ids if message_id in waiting]
    ids = [send.message_id for send in guests]
    if len(set(ids)) < len(ids):
        return shelf
    return shelf.with_guests(offsets, ids, [send.invoked for send in guests], [send.topic for send in guests])


def _note_found(shelf: SendColumns, queue: TopicQueue, waiting: dict[str, Send]) -> None:
    if waiting and NEVER in shelf.completed:
        for message_id, offset, completed in zip(shelf.ids, shelf.offsets, shelf.completed, strict=True):
            if completed == NEVER:
                waiting.pop(message_id).found = (queue, offset)


def _is_perfect(shelf: SendColumns, queue: TopicQueue, dumps: list[Dump]) -> bool:
    """Returns True if every replica holds exactly the messages of this shelf in their places, sent before they were
    read. This usual case is checked in cheap passes; if it does not hold, the other functions find out why."""
    first = dumps[0]
    return (
        not first.breaks
        and shelf.offsets == first.offsets
        and shelf.ids == first.ids
        and shelf.topics <= {queue[0]}
        and all(dump.ended and not dump.breaks and dump.holds_the_same(first) for dump in dumps)
        and max(shelf.invoked, default=-1) < min(dump.first_op for dump in dumps)
    )


def _suspicious(messages: Messages, queue: TopicQueue, dumps: list[Dump]) -> set[TopicQueue]:
    """Returns the queues to examine in detail: none if this queue is perfect (all replicas equal, read to the end, and
    every row in its place), else this one and those from which messages strayed into it. Records in every send the
    place where it was found."""
    first = dumps[0]
    suspects: set[TopicQueue] = set()
    if first.breaks or not all(dump.ended and dump.holds_the_same(first) for dump in dumps):
        suspects.add(queue)
    earliest = min(dump.first_op for dump in dumps)
    for dump in dumps if suspects else [first]:
        matched = 0
        for message_id, offset in zip(dump.ids, dump.offsets, strict=True):
            send = messages.sends.get(message_id)
            if send is None:
                suspects.add(queue)
                continue
            if send.queue == queue and send.offset == offset and send.invoked < earliest:
                matched += 1
                if send.found is None:
                    send.found = (queue, offset)
                continue
            suspects |= _stray(send, queue, offset, earliest)
        if matched != len(messages.shelves.get(queue, NO_SENDS).ids):
            suspects.add(queue)
    return suspects


def _stray(send: Send, queue: TopicQueue, offset: int, earliest: int) -> set[TopicQueue]:
    """Returns the queues to examine in detail because of a row that is not an acknowledged message in its acknowledged
    place. Returns none if the send's outcome is unknown, this is its topic and only place, and it was sent before the
    first read. Else returns this queue and the message's own.
    """
    home = send.place
    if send.found is None:
        send.found = (queue, offset)
    is_fine = send.outcome == "info" and send.topic == queue[0] and send.invoked < earliest
    if is_fine and home in (None, (queue, offset)):
        return set()
    return {queue} if home is None else {queue, home[0]}


def _one_place_acknowledged_twice(acked: list[Send], findings: Findings) -> None:
    holder: dict[int, Send] = {}
    for send in acked:
        first = holder.setdefault(send.offset, send)
        if first is not send and send.queue is not None:
            what = f"{place(send.queue, send.offset)} was acknowledged for {first.message_id!r} and {send.message_id!r}"
            findings.add("inconsistent-offset", what, (first.completed, send.completed), subject=send.message_id)


def _found(messages: Messages) -> dict[TopicQueue, list[Send]]:
    """Returns the sends of unknown outcome by the queue in which they were found, in order of invocation."""
    found: dict[TopicQueue, list[Send]] = defaultdict(list)
    for send in messages.unknown:
        if send.found is not None:
            found[send.found[0]].append(send)
    return found


def _placed(messages: Messages, queue: TopicQueue, found: dict[TopicQueue, list[Send]]) -> list[Send]:
    """Returns the sends of a queue, in order of invocation: those acknowledged there, and those of unknown outcome that
    were found there."""
    return sorted((*messages.acked.get(queue, ()), *found.get(queue, ())), key=attrgetter("invoked"))


def _offset(send: Send) -> int:
    return send.offset if send.found is None or send.queue is not None else send.found[1]


def _real_time(queue: TopicQueue, placed: list[Send], findings: Findings) -> None:
    """Checks real-time order: a comes before b in the queue if a was acknowledged before b was invoked.

    Walks the sends by invocation, and the acknowledged ones beside them by completion. `highest` is the send with the
    highest offset of those that had been acknowledged when `send` was invoked; the offset of `send` must be higher. A
    send of unknown outcome takes part only as b.
    """
    acked = sorted((send for send in placed if send.queue is not None), key=attrgetter("completed"))
    highest: Send | None = None
    position, top = 0, -1
    due = acked[0].completed if acked else -1
    for send in placed:
        while position < len(acked) and due < send.invoked:
            if acked[position].offset > top:
                highest = acked[position]
                top = highest.offset
            position += 1
            if position < len(acked):
                due = acked[position].completed
        if top >= 0 and _offset(send) < top and highest is not None:
            what = (
                f"{highest.message_id!r} was acknowledged at {place(queue, top)} before {send.message_id!r} was sent, "
                f"which is nevertheless at offset {_offset(send)}"
            )
            findings.add("realtime-order", what, (highest.completed, send.invoked), subject=send.message_id)


def _producer_order(queue: TopicQueue, placed: list[Send], findings: Findings) -> None:
    """Checks that sends which name a producer are in the order of their invocations, even if several were in flight."""
    last: dict[str, Send] = {}
    for send in placed:
        if send.producer is None:
            continue
        before = last.get(send.producer)
        if before is not None and _offset(before) > _offset(send):
            what = (
                f"producer {send.producer!r} sent {before.message_id!r} before {send.message_id!r}, but they are at "
                f"{place(queue, _offset(before))} and {_offset(send)}"
            )
            findings.add("producer-order", what, (before.invoked, send.invoked), subject=send.message_id)
        else:
            last[send.producer] = send


class _Acked(NamedTuple):
    completed: int
    offset: int
    message_id: str


def _higher(a: _Acked, b: _Acked) -> _Acked:
    return a if a.offset >= b.offset else b


def _stale_reads(operations: Operations, messages: Messages, findings: Findings) -> None:
    """Reports reads of a queue's end (the next offset) that were invoked after an offset was acknowledged, but returned
    an end that is not above that offset.
    """
    frontiers: dict[TopicQueue, tuple[list[int], list[_Acked]]] = {}
    with values_of(operations.answered("max_offset")) as watched:
        for operation in watched:
            assert operation.completed is not None
            queue = queue_of(operation.invoked.value)
            answered = int(operation.completed.value["offset"])
            if queue not in frontiers:
                shelf = messages.shelves.get(queue, NO_SENDS)
                acked = sorted(map(_Acked, shelf.completed, shelf.offsets, shelf.ids))
                frontiers[queue] = [send.completed for send in acked], list(accumulate(acked, _higher))
            completions, highest = frontiers[queue]
            before = bisect_left(completions, operation.invoked.index)
            if before and highest[before - 1].offset >= answered:
                send = highest[before - 1]
                what = (
                    f"{send.message_id!r} was acknowledged at {place(queue, send.offset)}, but later the end of "
                    f"the queue was reported as {answered}"
                )
                steps = (send.completed, operation.invoked.index, operation.completed.index)
                findings.add("stale-read", what, steps, subject=send.message_id)
