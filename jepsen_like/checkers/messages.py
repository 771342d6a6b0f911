"""Tables of the messages that were sent and the places where they were found, built once per history and shared by the
log and poll checkers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec

from jepsen_like.checkers.history_steps import MalformedStep, Operations, TopicQueue, queue_of, values_of
from jepsen_like.checkers.send_columns import QueueSends, SendColumns, no_rows
from jepsen_like.history import Operation, OpType, group_of_node
from raftmq_wire.queue_numbers import group_of

# gc=False: every full garbage collection would otherwise walk a million sends.


class Send(msgspec.Struct, gc=False):
    """One send and everything known about its message."""

    message_id: str
    topic: str
    producer: str | None
    outcome: OpType
    invoked: int
    """Index of the step that invoked the send."""
    completed: int
    """Index of the step that completed the send; -1 if it was still open at the end."""
    queue: TopicQueue | None = None
    """The queue in which the send was acknowledged; None unless the outcome is ok."""
    offset: int = -1
    found: tuple[TopicQueue, int] | None = None
    """The queue and offset where the message was first found. None if it was not found, and for acknowledged messages
    of a queue that is perfect.
    """

    @property
    def place(self) -> tuple[TopicQueue, int] | None:
        """The place where the send was acknowledged, else the place where it was found; None if there is neither."""
        return self.found if self.queue is None else (self.queue, self.offset)


class Repeat(NamedTuple):
    """A repeated send that was answered with ok, and the place that the answer named."""

    message_id: str
    queue: TopicQueue
    offset: int
    completed: int


def columns(rows: list[tuple[int, str]]) -> tuple[list[int], list[str]]:
    """Returns offsets and message ids of an answer. Raises TypeError if a row is no pair."""
    if not rows:
        return [], []
    try:
        offsets, ids = zip(*rows, strict=True)
    except (TypeError, ValueError):
        raise TypeError("a row is a pair of an offset and a message id") from None
    return list(offsets), list(ids)


class AnsweredMessage(NamedTuple):
    """One message in one answer."""

    message_id: str
    offset: int
    op: int


class Dump:
    """One replica's copy of one queue, as it was read, including repeated rows."""

    def __init__(self, node: int, queue: TopicQueue) -> None:
        self.node = node
        self.queue = queue
        self.ids: list[str] = []
        self.offsets: list[int] = []
        self.breaks: list[tuple[int, int]] = []
        """(position, expected offset) of each row whose offset is not the expected one: the requested offset for the
        first row, else one above the offset before.
        """
        self.fell_back = False
        """True if the offset of any row is below the expected one."""
        self.ended = False
        self.next_offset: int | None = None
        self.last_op = -1
        """Index of the last step that answered a read of this queue."""
        self._starts: list[int] = []
        self._ops: list[int] = []

    def extend(self, asked: int, offsets: list[int], ids: list[str], ended: bool, op: int) -> None:
        """Appends the rows of one answer. `asked`: the requested offset. `op`: the index of the step that answered."""
        self.ended |= ended
        self.last_op = op
        expected = asked if self.next_offset is None else self.next_offset
        if not offsets:
            self.next_offset = expected
            return
        position = len(self.ids)
        self._starts.append(position)
        self._ops.append(op)
        if offsets != list(range(expected, expected + len(offsets))):
            for i, offset in enumerate(offsets):
                if offset != expected:
                    self.breaks.append((position + i, expected))
                    self.fell_back |= offset < expected
                expected = offset + 1
        self.offsets += offsets
        self.ids += ids
        self.next_offset = offsets[-1] + 1

    def op_at(self, position: int) -> int:
        """Returns the index of the step that returned this row."""
        return self._ops[bisect_right(self._starts, position) - 1]

    def passed_at(self, offset: int) -> int:
        """Returns the index of the answer that reached or passed this offset. Returns that of the last answer if none
        did, or if the offsets ever fell back.
        """
        if self.fell_back:
            return self.last_op
        position = bisect_left(self.offsets, offset)
        return self.last_op if position == len(self.offsets) else self.op_at(position)

    @property
    def first_op(self) -> int:
        """Index of the first step that returned a row; -1 if none did."""
        return self._ops[0] if self._ops else -1

    def rows(self) -> Iterator[AnsweredMessage]:
        """Yields all rows in the order in which they were answered."""
        ends = [*self._starts[1:], len(self.ids)]
        for start, end, op in zip(self._starts, ends, self._ops, strict=False):
            for position in range(start, end):
                yield AnsweredMessage(self.ids[position], self.offsets[position], op)

    def holds_the_same(self, other: Dump) -> bool:
        """Returns True if both replicas answered the same rows in the same order."""
        return self.offsets == other.offsets and self.ids == other.ids


class _Answer(NamedTuple):
    """The answer to one final read, its rows as columns."""

    asked: int
    """Index of the step that invoked the read."""
    dump: Dump
    offset: int
    offsets: list[int]
    ids: list[str]
    ended: bool
    op: int


class Messages:
    """Sends by id and by queue, and dumps by queue: first everything is added, then `close` is called."""

    def __init__(self) -> None:
        self.dumps: dict[TopicQueue, list[Dump]] = {}
        """Per queue one dump for every node of its group of brokers that was read, in order of nodes; for every node
        that was read if none of the group was.
        """
        self.nodes: list[int] = []
        self.perfect: dict[TopicQueue, list[int]] = {}
        """Queue -> index of the step that invoked each send, in order of offsets. Filled by the log checker, with the
        queues that hold exactly the expected messages on every replica.
        """
        self.unknown: list[Send] = []
        """Sends of unknown outcome, in order of invocation."""
        self.failed: list[Send] = []
        self.repeats: list[Repeat] = []
        """Answers to repeated sends."""
        self.shelves: dict[TopicQueue, SendColumns] = {}
        """The acknowledged sends of each queue, by offset."""
        self._rows: dict[TopicQueue, QueueSends] = {}
        self._answers: list[_Answer] = []
        self._read_at_all: dict[tuple[TopicQueue, int], Dump] = {}

    @classmethod
    def of(cls, operations: Operations) -> Messages:
        """Gathers sends and reads from operations. Raises MalformedStep for a value of another shape and for an id that
        was sent twice."""
        self = cls()
        self.add_sends(operations.of("send"))
        self.add_repeats(operations.answered("repeat"))
        self.add_reads(operations.of("read"))
        self.close()
        return self

    def add_sends(self, operations: list[Operation]) -> None:
        """Adds sends. They are most of a history, so this is one loop with few calls. Raises MalformedStep."""
        by_queue = self._rows
        with values_of(operations) as walk:
            for invoked, completed in walk:
                value = invoked.value
                message_id, topic, producer = value["id"], value["topic"], value.get("producer")
                if not isinstance(message_id, str) or not isinstance(topic, str):
                    raise TypeError("id and topic are strings")
                if producer is not None and not isinstance(producer, str):
                    raise TypeError("a producer is a string")
                if completed is None:
                    self.unknown.append(Send(message_id, topic, producer, "info", invoked.index, -1))
                    continue
                if completed.type != "ok":
                    send = Send(message_id, topic, producer, completed.type, invoked.index, completed.index)
                    (self.failed if send.outcome == "fail" else self.unknown).append(send)
                    continue
                answer = completed.value
                if answer.get("id", message_id) != message_id:
                    raise ValueError(f"answers {answer['id']!r}, not {message_id!r}")
                queue_id, offset = answer["queue_id"], answer["queue_offset"]
                rows = by_queue.get((answer.get("topic", topic), queue_id))
                if rows is None or type(queue_id) is not int or type(offset) is not int:
                    offset = int(offset)
                    rows = by_queue.setdefault(queue_of({"topic": topic, **answer}), no_rows())
                offsets, ids, topics, producers, begun, ended = rows
                offsets.append(offset)
                ids.append(message_id)
                topics.append(topic)
                producers.append(producer)
                begun.append(invoked.index)
                ended.append(completed.index)

    def add_repeats(self, operations: list[Operation]) -> None:
        """Adds repeated sends that were answered. Raises MalformedStep."""
        with values_of(operations) as walk:
            for invoked, completed in walk:
                assert completed is not None
                answer = completed.value
                queue, offset = queue_of({**invoked.value, **answer}), int(answer["queue_offset"])
                self.repeats.append(Repeat(invoked.value["id"], queue, offset, completed.index))

    def add_reads(self, operations: list[Operation]) -> None:
        """Adds final reads. Raises MalformedStep."""
        with values_of(operations) as walk:
            for invoked, completed in walk:
                value = invoked.value
                queue, node = queue_of(value), int(value["node"])
                dump = self._read_at_all.get((queue, node))
                if dump is None:
                    dump = self._read_at_all[queue, node] = Dump(node, queue)
                if completed is not None and completed.type == "ok":
                    answer = completed.value
                    offset, (offsets, ids) = int(value["offset"]), columns(answer["messages"])
                    sum(offsets)  # the cheapest way to refuse an offset that is no number, or an id that is no string
                    "".join(ids)
                    ended, op = bool(answer["end"]), completed.index
                    self._answers.append(_Answer(invoked.index, dump, offset, offsets, ids, ended, op))

    def close(self) -> None:
        """Ends the gathering, after everything was added. Raises MalformedStep for an id that was sent twice."""
        self.unknown.sort(key=attrgetter("invoked"))
        self.shelves = {queue: SendColumns.of(rows) for queue, rows in self._rows.items()}
        self._refuse_repeated_ids()
        for _, dump, offset, offsets, ids, ended, op in sorted(self._answers, key=itemgetter(0)):
            dump.extend(offset, offsets, ids, ended, op)
        self._answers.clear()
        self.nodes = sorted({node for _, node in self._read_at_all})
        queues = sorted({queue for queue, _ in self._read_at_all} | self.shelves.keys())
        for queue in queues:
            group = group_of(queue[1])
            holders = [node for node in self.nodes if group_of_node(node) == group]
            for node in holders or self.nodes:  # if no node of the group was read, all nodes lack the queue
                dump = self._read_at_all.get((queue, node)) or Dump(node, queue)
                self.dumps.setdefault(queue, []).append(dump)

    @property
    def acknowledged(self) -> int:
        """The number of sends that were acknowledged."""
        return sum(len(rows.ids) for rows in self._rows.values())

    @cached_property
    def sends(self) -> dict[str, Send]:
        """Every send by the id of its message, in order of invocation; built on first access."""
        return {send.message_id: send for send in self._all()}

    @cached_property
    def acked(self) -> dict[TopicQueue, list[Send]]:
        """The acknowledged sends of each queue, in order of invocation; built on first access."""
        acked: dict[TopicQueue, list[Send]] = defaultdict(list)
        for send in self.sends.values():
            if send.queue is not None:
                acked[send.queue].append(send)
        return acked

    def _all(self) -> list[Send]:
        """Returns all sends in order of invocation."""
        found = [*self.failed, *self.unknown]
        for queue, (offsets, ids, topics, producers, invoked, completed) in self._rows.items():
            rows = zip(offsets, ids, topics, producers, invoked, completed, strict=True)
            found += [
                Send(id_, topic, who, "ok", begun, ended, queue, at) for at, id_, topic, who, begun, ended in rows
            ]
        return sorted(found, key=attrgetter("invoked"))

    def _refuse_repeated_ids(self) -> None:
        others = [send.message_id for send in (*self.failed, *self.unknown)]
        distinct = set(others).union(*(rows.ids for rows in self._rows.values()))
        if len(distinct) == len(others) + self.acknowledged:
            return
        seen: set[str] = set()
        for send in self._all():
            if send.message_id in seen:
                why = f"send: message id {send.message_id!r} was sent before; ids must be unique"
                raise MalformedStep(send.completed if send.completed >= 0 else send.invoked, why)
            seen.add(send.message_id)
