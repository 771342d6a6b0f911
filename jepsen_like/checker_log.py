"""The log checker: does every replica hold what clients were told it holds, once and in order?

It reads two kinds of operation from a history. Message ids are unique in the whole history.

    send  value of every step  {"topic", "id"}
          ok adds              {"queue_id", "queue_offset"}
    read  value of invoke      {"node", "topic", "queue_id", "offset"}      one pull from one replica
          ok adds              {"messages": [[queue_offset, id], …], "end": true if nothing follows}

Reads are judged as final reads: they are made after the last send, from replicas that have caught up.

What each outcome of a send allows, per replica:

    outcome   0 copies            1 copy     2 or more
    ok        lost                fine       duplicated
    info      fine, unless        fine       duplicated
              another replica
              has it: lost
    fail      fine                phantom    phantom, duplicated
    never     -                   phantom    phantom, duplicated
    sent

and *reordered* is everything about order: a gap or a step back inside one queue, an offset other than the
acknowledged one, replicas that hold different messages at one offset, and a message that was acknowledged before
another was even sent but stands behind it (the order of real time). All passes are O(n log n).
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jepsen_like.history import Op, Operation, pair_up

Queue = tuple[str, int]
"""(topic, queue id)"""


class Anomaly(NamedTuple):
    """One proof that a promise was broken. `ops` are the indexes in the history that show it."""

    kind: str
    """lost, duplicated, reordered or phantom."""
    what: str
    node: int | None
    message_id: str
    ops: tuple[int, ...]


class Incomplete(NamedTuple):
    """A queue that a replica was never read to the end of: nothing can be said about what is missing there."""

    node: int
    topic: str
    queue_id: int


class LogVerdict(NamedTuple):
    """What the checker found. Counts are over every replica: one message lost on two replicas counts twice."""

    acked: int
    failed: int
    unknown: int
    read: dict[int, int]
    """Messages read per node, as they came, nothing removed."""
    unknown_stored: int
    """Sends of unknown outcome that turned out to be stored."""
    anomalies: list[Anomaly]
    incomplete: list[Incomplete]

    def count(self, kind: str) -> int:
        """How many anomalies of one kind."""
        return sum(anomaly.kind == kind for anomaly in self.anomalies)

    @property
    def valid(self) -> bool | None:
        """True: proved. False: broken. None: not everything was read, and what was read is fine."""
        if self.anomalies:
            return False
        return None if self.incomplete else True


class _Send(NamedTuple):
    outcome: str
    invoked: Op
    completed: Op | None
    queue: Queue | None
    queue_offset: int | None


class _Copy(NamedTuple):
    node: int
    queue: Queue
    queue_offset: int
    op: int


def check_log(ops: Iterable[Op]) -> LogVerdict:
    """Judges a history of sends and final reads. Raises ValueError if ids repeat or steps cannot be paired."""
    operations = pair_up(ops)
    sends = _sends(operations)
    reads = [o for o in operations if o.invoked.f == "read" and o.outcome == "ok"]
    copies = list(_copies(reads))
    by_id: dict[str, list[_Copy]] = defaultdict(list)
    for message_id, copy in copies:
        by_id[message_id].append(copy)
    nodes = sorted({int(o.invoked.value["node"]) for o in operations if o.invoked.f == "read"})
    incomplete = _incomplete(operations, sends, by_id, nodes)
    anomalies = [
        *_lost(sends, by_id, nodes, incomplete),
        *_duplicated(by_id),
        *_phantom(sends, by_id),
        *_gaps(reads),
        *_wrong_offset(sends, by_id),
        *_disagreement(copies),
        *_real_time(sends, by_id),
    ]
    outcomes = Counter(send.outcome for send in sends.values())
    rows = Counter(copy.node for _, copy in copies)
    return LogVerdict(
        acked=outcomes["ok"],
        failed=outcomes["fail"],
        unknown=outcomes["info"],
        read={node: rows[node] for node in nodes},
        unknown_stored=sum(send.outcome == "info" and message_id in by_id for message_id, send in sends.items()),
        anomalies=anomalies,
        incomplete=incomplete,
    )


def _sends(operations: list[Operation]) -> dict[str, _Send]:
    sends: dict[str, _Send] = {}
    for operation in operations:
        invoked, completed = operation
        if invoked.f != "send":
            continue
        message_id = invoked.value["id"]
        if message_id in sends:
            raise ValueError(f"op {invoked.index}: message id {message_id!r} was sent before; ids must be unique")
        queue, queue_offset = None, None
        if completed is not None and completed.type == "ok":
            if completed.value["id"] != message_id:
                raise ValueError(f"op {completed.index}: answers {completed.value['id']!r}, not {message_id!r}")
            queue = (completed.value["topic"], int(completed.value["queue_id"]))
            queue_offset = int(completed.value["queue_offset"])
        sends[message_id] = _Send(operation.outcome, invoked, completed, queue, queue_offset)
    return sends


def _copies(reads: list[Operation]) -> Iterator[tuple[str, _Copy]]:
    for read in reads:
        assert read.completed is not None
        asked, answered = read.invoked.value, read.completed
        queue = (asked["topic"], int(asked["queue_id"]))
        for queue_offset, message_id in answered.value["messages"]:
            yield message_id, _Copy(int(asked["node"]), queue, int(queue_offset), answered.index)


def _incomplete(
    operations: list[Operation], sends: dict[str, _Send], by_id: dict[str, list[_Copy]], nodes: list[int]
) -> list[Incomplete]:
    """Every queue that anything is known of must have been read to its end on every replica that was read at all."""
    queues = {send.queue for send in sends.values() if send.queue is not None}
    queues |= {copy.queue for copies in by_id.values() for copy in copies}
    ended: set[tuple[int, Queue]] = set()
    for operation in operations:
        invoked, completed = operation
        if invoked.f != "read":
            continue
        queue = (invoked.value["topic"], int(invoked.value["queue_id"]))
        queues.add(queue)
        if completed is not None and completed.type == "ok" and completed.value["end"]:
            ended.add((int(invoked.value["node"]), queue))
    return [Incomplete(node, *queue) for node in nodes for queue in sorted(queues) if (node, queue) not in ended]


def _lost(
    sends: dict[str, _Send], by_id: dict[str, list[_Copy]], nodes: list[int], incomplete: list[Incomplete]
) -> Iterator[Anomaly]:
    """Missing on a replica that was read to the end of the queue, or at least beyond the acknowledged offset."""
    unread = {(item.node, (item.topic, item.queue_id)) for item in incomplete}
    reached: dict[tuple[int, Queue], int] = defaultdict(lambda: -1)
    for found in by_id.values():
        for copy in found:
            reached[copy.node, copy.queue] = max(reached[copy.node, copy.queue], copy.queue_offset)
    for message_id, send in sends.items():
        copies = by_id.get(message_id, [])
        if send.outcome != "ok" and not (send.outcome == "info" and copies):
            continue
        holders = {copy.node for copy in copies}
        queue = send.queue or copies[0].queue
        offset = copies[0].queue_offset if send.queue_offset is None else send.queue_offset
        op = send.completed or send.invoked
        seen = "acknowledged" if send.outcome == "ok" else "seen on another replica"
        for node in nodes:
            if node not in holders and ((node, queue) not in unread or reached[node, queue] > offset):
                what = f"{seen} in {queue[0]}/{queue[1]}, not on node {node}"
                yield Anomaly("lost", what, node, message_id, (op.index, *(copy.op for copy in copies[:1])))


def _duplicated(by_id: dict[str, list[_Copy]]) -> Iterator[Anomaly]:
    """A copy is a place, not a reading: pulling one offset twice is a step back, which `_gaps` reports."""
    for message_id, copies in by_id.items():
        if len(copies) < 2:
            continue
        places: dict[int, dict[tuple[Queue, int], int]] = defaultdict(dict)
        for copy in copies:
            places[copy.node].setdefault((copy.queue, copy.queue_offset), copy.op)
        for node, held in places.items():
            (first, first_op), *others = held.items()
            for other, op in others:
                what = f"on node {node} at {_place(*first)} and again at {_place(*other)}"
                yield Anomaly("duplicated", what, node, message_id, (first_op, op))


def _phantom(sends: dict[str, _Send], by_id: dict[str, list[_Copy]]) -> Iterator[Anomaly]:
    for message_id, copies in by_id.items():
        send = sends.get(message_id)
        for node, copy in {copy.node: copy for copy in reversed(copies)}.items():
            if send is None:
                yield Anomaly("phantom", "nobody sent it", node, message_id, (copy.op,))
            elif send.outcome == "fail":
                assert send.completed is not None
                what = "its send was answered with a failure that promises it was not stored"
                yield Anomaly("phantom", what, node, message_id, (send.completed.index, copy.op))
            elif copy.op < send.invoked.index:
                what = "it was read before it was sent"
                yield Anomaly("phantom", what, node, message_id, (copy.op, send.invoked.index))
            elif send.invoked.value["topic"] != copy.queue[0]:
                what = f"it was sent to {send.invoked.value['topic']!r} and stands in {copy.queue[0]!r}"
                yield Anomaly("phantom", what, node, message_id, (send.invoked.index, copy.op))


def _gaps(reads: list[Operation]) -> Iterator[Anomaly]:
    """Within one replica and queue, offsets rise by exactly one from the offset that was asked for."""
    expected: dict[tuple[int, Queue], int] = {}
    for read in reads:
        assert read.completed is not None
        asked = read.invoked.value
        node, queue = int(asked["node"]), (asked["topic"], int(asked["queue_id"]))
        next_offset = expected.get((node, queue), int(asked["offset"]))
        for queue_offset, message_id in read.completed.value["messages"]:
            if queue_offset != next_offset:
                way = "a gap" if queue_offset > next_offset else "a step back"
                what = f"{way} on node {node}: {_place(queue, queue_offset)} where offset {next_offset} was due"
                yield Anomaly("reordered", what, node, message_id, (read.completed.index,))
            next_offset = queue_offset + 1
        expected[node, queue] = next_offset


def _wrong_offset(sends: dict[str, _Send], by_id: dict[str, list[_Copy]]) -> Iterator[Anomaly]:
    for message_id, send in sends.items():
        if send.queue is None or send.queue_offset is None:
            continue
        for copy in by_id.get(message_id, ()):
            if (copy.queue, copy.queue_offset) != (send.queue, send.queue_offset):
                told, found = _place(send.queue, send.queue_offset), _place(copy.queue, copy.queue_offset)
                what = f"acknowledged at {told}, found at {found}"
                assert send.completed is not None
                yield Anomaly("reordered", what, copy.node, message_id, (send.completed.index, copy.op))


def _disagreement(copies: list[tuple[str, _Copy]]) -> Iterator[Anomaly]:
    holder: dict[tuple[Queue, int], tuple[str, _Copy]] = {}
    for message_id, copy in copies:
        first_id, first = holder.setdefault((copy.queue, copy.queue_offset), (message_id, copy))
        if first_id != message_id:
            place = _place(copy.queue, copy.queue_offset)
            what = f"{place} is {first_id!r} on node {first.node} and {message_id!r} on node {copy.node}"
            yield Anomaly("reordered", what, copy.node, message_id, (first.op, copy.op))


def _real_time(sends: dict[str, _Send], by_id: dict[str, list[_Copy]]) -> Iterator[Anomaly]:
    """If a was acknowledged before b was invoked, a stands before b in their queue.

    Per queue: acknowledged sends by completion, with the highest offset among the first k of them. A send must
    stand above that maximum taken over the sends that had completed when it was invoked. A send of unknown
    outcome takes part as b with the offset it was found at.
    """
    acked: dict[Queue, list[tuple[int, int, str]]] = defaultdict(list)
    placed: dict[Queue, list[tuple[int, int, str]]] = defaultdict(list)
    for message_id, send in sends.items():
        queue, offset = send.queue, send.queue_offset
        if queue is not None and offset is not None and send.completed is not None:
            acked[queue].append((send.completed.index, offset, message_id))
        elif send.outcome == "info" and message_id in by_id:
            queue, offset = by_id[message_id][0].queue, by_id[message_id][0].queue_offset
        if queue is not None and offset is not None:
            placed[queue].append((send.invoked.index, offset, message_id))
    for queue, earlier in acked.items():
        earlier.sort()
        completions = [completion for completion, _, _ in earlier]
        highest: list[tuple[int, int, str]] = []
        for completion, offset, message_id in earlier:
            item = (offset, completion, message_id)
            highest.append(max(highest[-1], item) if highest else item)
        for invocation, offset, message_id in placed[queue]:
            before = bisect.bisect_left(completions, invocation)
            if before and highest[before - 1][0] > offset:
                other_offset, completion, other = highest[before - 1]
                what = (
                    f"{other!r} was acknowledged at {_place(queue, other_offset)} before this one was sent, "
                    f"yet this one stands at offset {offset}"
                )
                yield Anomaly("reordered", what, None, message_id, (completion, invocation))


def _place(queue: Queue, queue_offset: int) -> str:
    return f"{queue[0]}/{queue[1]}@{queue_offset}"


def summary(verdict: LogVerdict) -> dict[str, Any]:
    """The verdict as one JSON object, with at most ten anomalies of each kind."""
    kinds = ("lost", "duplicated", "reordered", "phantom")
    shown = [a for kind in kinds for a in [b for b in verdict.anomalies if b.kind == kind][:10]]
    return {
        "valid": verdict.valid,
        "acked": verdict.acked,
        "failed": verdict.failed,
        "unknown": verdict.unknown,
        "unknown_stored": verdict.unknown_stored,
        "read": verdict.read,
        **{kind: verdict.count(kind) for kind in kinds},
        "anomalies": [anomaly._asdict() for anomaly in shown],
        "incomplete": [item._asdict() for item in verdict.incomplete],
    }
