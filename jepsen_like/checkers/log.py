"""The log checker: does every replica hold what clients were told it holds, once, in order, and nothing else?

Most queues of most runs are perfect, so each queue is first compared with what it should be in one cheap pass;
only queues that differ are taken apart. Every pass is O(n log n) or better.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, islice
from operator import attrgetter, lt
from typing import Any, NamedTuple

from jepsen_like.checkers.log_detail import judge_dumps
from jepsen_like.checkers.messages import Dump, Messages, Send
from jepsen_like.checkers.steps import Operations, Queue, place, queue_of, values_of
from jepsen_like.checkers.verdict import Findings, Result
from jepsen_like.checkers.workload import Workload

NAME = "log"


def check(operations: Operations, messages: Messages, workload: Workload) -> Result:
    """Judges sends against the final reads of the replicas, and their order against real time."""
    findings = Findings()
    judge(messages, findings, ordered=workload.ordered)
    _stale_reads(operations, messages, findings)
    for node, queue in unread(messages):
        findings.doubt(f"{queue[0]}/{queue[1]} was not read to its end on node {node}")
    if messages.nodes and len(messages.nodes) < workload.replicas:
        findings.doubt(f"only nodes {messages.nodes} were read; the workload has {workload.replicas} replicas")
    if messages.acked and not messages.nodes and not operations.of("poll"):
        findings.doubt("messages were acknowledged, and nobody read them back")
    return findings.result(NAME, statistics(messages), workload.allowed)


def judge(messages: Messages, findings: Findings, *, ordered: bool) -> None:
    """All passes over sends and dumps."""
    suspicious: set[Queue] = set()
    shelves = {queue: _Shelf.of(messages.acked.get(queue, ())) for queue in messages.dumps.keys() | messages.acked}
    for queue, dumps in messages.dumps.items():
        if _is_perfect(shelves[queue], queue, dumps):
            messages.perfect[queue] = shelves[queue].invoked
        else:
            suspicious |= _suspicious(messages, queue, dumps)
    for queue in suspicious:
        messages.perfect.pop(queue, None)
    judge_dumps(messages, suspicious, findings)
    for queue, acked in messages.acked.items():
        if len(set(shelves[queue].offsets)) < len(acked):
            _one_place_acknowledged_twice(acked, findings)
    for queue, placed in _placed(messages).items():
        if queue not in shelves or len(placed) > len(shelves[queue].offsets) or not shelves[queue].keeps_real_time():
            _real_time(queue, placed, findings)
        if ordered:
            _producer_order(queue, placed, findings)


def unread(messages: Messages) -> list[tuple[int, Queue]]:
    """(node, queue) that were not read to the end: nothing can be said about what is missing there."""
    return sorted((dump.node, queue) for queue, dumps in messages.dumps.items() for dump in dumps if not dump.ended)


def statistics(messages: Messages) -> dict[str, Any]:
    """Counts by outcome, and messages read per node."""
    acked = sum(map(len, messages.acked.values()))
    stored = sum(send.found is not None for send in messages.unknown)
    rows = dict.fromkeys(messages.nodes, 0)
    for dumps in messages.dumps.values():
        for dump in dumps:
            rows[dump.node] += len(dump.ids)
    return {
        "acked": acked,
        "failed": len(messages.sends) - acked - len(messages.unknown),
        "unknown": len(messages.unknown),
        "unknown_stored": stored,
        "read": {str(node): count for node, count in rows.items()},
    }


class _Shelf(NamedTuple):
    """The acknowledged sends of one queue in order of their offsets, column by column."""

    offsets: list[int]
    ids: list[str]
    topics: set[str]
    invoked: list[int]
    completed: list[int]

    @classmethod
    def of(cls, acked: Iterable[Send]) -> _Shelf:
        """Sorts them; sends at one offset stay in order of invocation."""
        sends = sorted(acked, key=attrgetter("offset"))
        offsets, ids, topics, invoked, completed = (
            map(attrgetter(name), sends) for name in ("offset", "message_id", "topic", "invoked", "completed")
        )
        return cls(list(offsets), list(ids), set(topics), list(invoked), list(completed))

    def keeps_real_time(self) -> bool:
        """Whether no send stands behind one invoked after it had completed: `_real_time` then finds nothing.

        Walked down from the highest offset: nothing above a send may have completed before it was invoked.
        """
        earliest_above = accumulate(reversed(self.completed), min)
        return not any(map(lt, earliest_above, islice(reversed(self.invoked), 1, None)))


def _is_perfect(shelf: _Shelf, queue: Queue, dumps: list[Dump]) -> bool:
    """Whether every replica holds exactly the acknowledged messages of this queue in their places, sent before they
    were read. The usual case, in passes that cost little; where it does not hold, the others find out why.
    """
    first = dumps[0]
    return (
        not first.breaks
        and shelf.offsets == first.offsets
        and shelf.ids == first.ids
        and shelf.topics <= {queue[0]}
        and all(dump.ended and not dump.breaks and dump.holds_the_same(first) for dump in dumps)
        and max(shelf.invoked, default=-1) < min(dump.first_op for dump in dumps)
    )


def _suspicious(messages: Messages, queue: Queue, dumps: list[Dump]) -> set[Queue]:
    """Empty if this queue is perfect: all replicas equal, read to the end, and every row where it belongs.

    Else the queues to take apart: this one, and those from which messages strayed into it. Notes in every send
    where it was found.
    """
    first = dumps[0]
    suspects: set[Queue] = set()
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
        if matched != len(messages.acked.get(queue, ())):
            suspects.add(queue)
    return suspects


def _stray(send: Send, queue: Queue, offset: int, earliest: int) -> set[Queue]:
    """The queues made suspicious by a row that is not an acknowledged message in its acknowledged place."""
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


def _placed(messages: Messages) -> dict[Queue, list[Send]]:
    """Acknowledged sends, and those of unknown outcome that were found, per queue in order of invocation."""
    placed: dict[Queue, list[Send]] = defaultdict(list, messages.acked)
    touched = set()
    for send in messages.unknown:
        if send.found is not None:
            queue = send.found[0]
            if queue not in touched:
                touched.add(queue)
                placed[queue] = list(placed[queue])
            placed[queue].append(send)
    for queue in touched:
        placed[queue].sort(key=attrgetter("invoked"))
    return placed


def _offset(send: Send) -> int:
    return send.offset if send.found is None or send.queue is not None else send.found[1]


def _real_time(queue: Queue, placed: list[Send], findings: Findings) -> None:
    """If a was acknowledged before b was invoked, a stands before b.

    Both lists are walked in time; `highest` is the highest offset among the sends that had been acknowledged when
    `send` was invoked, and `send` must stand above it. A send of unknown outcome takes part as b only.
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
                f"which yet stands at offset {_offset(send)}"
            )
            findings.add("realtime-order", what, (highest.completed, send.invoked), subject=send.message_id)


def _producer_order(queue: Queue, placed: list[Send], findings: Findings) -> None:
    """Sends that name a producer stand in the order of their invocations, also while both were under way."""
    last: dict[str, Send] = {}
    for send in placed:
        if send.producer is None:
            continue
        before = last.get(send.producer)
        if before is not None and _offset(before) > _offset(send):
            what = (
                f"producer {send.producer!r} sent {before.message_id!r} before {send.message_id!r}, and they stand at "
                f"{place(queue, _offset(before))} and {_offset(send)}"
            )
            findings.add("producer-order", what, (before.invoked, send.invoked), subject=send.message_id)
        else:
            last[send.producer] = send


def _higher(a: Send, b: Send) -> Send:
    return a if a.offset >= b.offset else b


def _stale_reads(operations: Operations, messages: Messages, findings: Findings) -> None:
    """The end of a queue, asked for after an offset was acknowledged, lies behind that offset."""
    frontiers: dict[Queue, tuple[list[int], list[Send]]] = {}
    with values_of(operations.answered("max_offset")) as watched:
        for operation in watched:
            assert operation.completed is not None
            queue = queue_of(operation.invoked.value)
            answered = int(operation.completed.value["offset"])
            if queue not in frontiers:
                acked = sorted(messages.acked.get(queue, ()), key=attrgetter("completed"))
                highest: list[Send] = list(accumulate(acked, _higher))
                frontiers[queue] = [send.completed for send in acked], highest
            completions, highest = frontiers[queue]
            before = bisect_left(completions, operation.invoked.index)
            if before and highest[before - 1].offset >= answered:
                send = highest[before - 1]
                what = (
                    f"{send.message_id!r} was acknowledged at {place(queue, send.offset)}, and afterwards the end of "
                    f"the queue was said to be {answered}"
                )
                steps = (send.completed, operation.invoked.index, operation.completed.index)
                findings.add("stale-read", what, steps, subject=send.message_id)
