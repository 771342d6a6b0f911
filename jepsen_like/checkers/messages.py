"""Tables of what was sent and where it was found, built once per history and shared by the log and poll checkers."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from jepsen_like.checkers.steps import Operations, Queue, queue_of, values_of
from jepsen_like.history import Operation, OpType

# gc=False: a million of these would otherwise be walked by every full collection.


class Send(msgspec.Struct, gc=False):
    """One send and everything known about its message."""

    message_id: str
    topic: str
    producer: str | None
    outcome: OpType
    invoked: int
    """Index of the step, like `completed`."""
    completed: int
    """-1 if the send was still open at the end."""
    queue: Queue | None = None
    """Where it was acknowledged; None unless the outcome is ok."""
    offset: int = -1
    found: tuple[Queue, int] | None = None
    """Where a reader first saw it."""

    @property
    def place(self) -> tuple[Queue, int] | None:
        """Acknowledged place, else the place it was found at."""
        return self.found if self.queue is None else (self.queue, self.offset)


def columns(rows: list[tuple[int, str]]) -> tuple[list[int], list[str]]:
    """Offsets and message ids of an answer. Raises TypeError if a row is no pair."""
    if not rows:
        return [], []
    try:
        offsets, ids = zip(*rows, strict=True)
    except (TypeError, ValueError):
        raise TypeError("a row is a pair of an offset and a message id") from None
    return list(offsets), list(ids)


class Row(NamedTuple):
    """One message in one answer."""

    message_id: str
    offset: int
    op: int


class Dump:
    """One replica's copy of one queue, as it was read, nothing removed."""

    def __init__(self, node: int, queue: Queue) -> None:
        self.node = node
        self.queue = queue
        self.ids: list[str] = []
        self.offsets: list[int] = []
        self.breaks: list[tuple[int, int]] = []
        """(position, expected offset) wherever an offset is not one above the offset before."""
        self.fell_back = False
        """Whether any offset is lower than the one before it."""
        self.ended = False
        self.next_offset: int | None = None
        self.last_op = -1
        """Index of the last answer."""
        self._starts: list[int] = []
        self._ops: list[int] = []

    def extend(self, asked: int, messages: list[tuple[int, str]], ended: bool, op: int) -> None:
        """Appends one answer."""
        self.ended |= ended
        self.last_op = op
        expected = asked if self.next_offset is None else self.next_offset
        if not messages:
            self.next_offset = expected
            return
        position = len(self.ids)
        self._starts.append(position)
        self._ops.append(op)
        offsets, ids = columns(messages)
        if offsets != list(range(expected, expected + len(offsets))):
            for i, offset in enumerate(offsets):
                if offset != expected:
                    self.breaks.append((position + i, expected))
                    self.fell_back |= offset < expected
                expected = offset + 1
        "".join(ids)  # the cheapest way to refuse an id that is no string
        self.offsets += offsets
        self.ids += ids
        self.next_offset = offsets[-1] + 1

    def op_at(self, position: int) -> int:
        """Index of the step that returned this row."""
        return self._ops[bisect_right(self._starts, position) - 1]

    def passed_at(self, offset: int) -> int:
        """Index of the answer that went past this offset; the last one if none did, or if offsets fell back."""
        if self.fell_back:
            return self.last_op
        position = bisect_left(self.offsets, offset)
        return self.last_op if position == len(self.offsets) else self.op_at(position)

    @property
    def first_op(self) -> int:
        """Index of the first step that returned a row; -1 if none did."""
        return self._ops[0] if self._ops else -1

    def rows(self) -> Iterator[Row]:
        """All rows in the order they came."""
        ends = [*self._starts[1:], len(self.ids)]
        for start, end, op in zip(self._starts, ends, self._ops, strict=False):
            for position in range(start, end):
                yield Row(self.ids[position], self.offsets[position], op)

    def holds_the_same(self, other: Dump) -> bool:
        """Whether both replicas answered the same rows in the same order."""
        return self.offsets == other.offsets and self.ids == other.ids


class Messages:
    """Sends by id and by queue, and dumps by queue."""

    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.acked: dict[Queue, list[Send]] = defaultdict(list)
        """Acknowledged sends per queue, in order of invocation."""
        self.dumps: dict[Queue, list[Dump]] = {}
        """Per queue one dump for every node that was read at all, in order of nodes."""
        self.unknown: list[Send] = []
        """Sends of unknown outcome, in order of invocation."""
        self.nodes: list[int] = []
        self.perfect: dict[Queue, list[int]] = {}
        """Queues that are the same on all replicas, every row an acknowledged message in its place, and for each place
        the step that sent what stands there; known once the log checker has run.
        """

    @classmethod
    def of(cls, operations: Operations) -> Messages:
        """Raises MalformedStep for a value of another shape and for an id that was sent twice."""
        self = cls()
        dumps: dict[tuple[Queue, int], Dump] = {}
        with values_of(operations.of("send")) as sends:
            self._add_sends(sends)
        with values_of(operations.of("read")) as reads:
            for operation in reads:
                self._read(operation, dumps)
        self.nodes = sorted({node for _, node in dumps})
        queues = sorted({queue for queue, _ in dumps} | self.acked.keys())
        for queue, node in itertools.product(queues, self.nodes):
            self.dumps.setdefault(queue, []).append(dumps.get((queue, node)) or Dump(node, queue))
        return self

    def _add_sends(self, operations: Iterator[Operation]) -> None:
        """One loop and no calls: most of a history is sends."""
        sends, acked = self.sends, self.acked
        queues: dict[Queue, Queue] = {}
        for invoked, completed in operations:
            value = invoked.value
            message_id, topic, producer = value["id"], value["topic"], value.get("producer")
            if not isinstance(message_id, str) or not isinstance(topic, str):
                raise TypeError("id and topic are strings")
            if producer is not None and not isinstance(producer, str):
                raise TypeError("a producer is a string")
            if completed is None:
                send = Send(message_id, topic, producer, "info", invoked.index, -1)
            else:
                send = Send(message_id, topic, producer, completed.type, invoked.index, completed.index)
            if sends.setdefault(message_id, send) is not send:
                raise ValueError(f"message id {message_id!r} was sent before; ids must be unique")
            if send.outcome == "info":
                self.unknown.append(send)
            elif send.outcome == "ok":
                assert completed is not None
                answer = completed.value
                if answer.get("id", message_id) != message_id:
                    raise ValueError(f"answers {answer['id']!r}, not {message_id!r}")
                queue_id = answer["queue_id"]
                queue = queues.get((answer.get("topic", topic), queue_id))
                if queue is None or type(queue_id) is not int:
                    queue = queue_of({"topic": topic, **answer})
                    queue = queues.setdefault(queue, queue)
                send.queue, send.offset = queue, int(answer["queue_offset"])
                acked[queue].append(send)

    @staticmethod
    def _read(operation: Operation, dumps: dict[tuple[Queue, int], Dump]) -> None:
        value = operation.invoked.value
        queue, node = queue_of(value), int(value["node"])
        dump = dumps.setdefault((queue, node), Dump(node, queue))
        if operation.completed is not None and operation.completed.type == "ok":
            answer = operation.completed.value
            dump.extend(int(value["offset"]), answer["messages"], bool(answer["end"]), operation.completed.index)
