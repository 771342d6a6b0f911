"""The vocabulary of histories, and reading values out of steps without trusting them.

Every `f` that a checker understands, with the value of its invocation and what `ok` adds:

    f               invoke                                               ok adds
    send            topic, id, [producer]                                queue_id, queue_offset
    repeat          topic, id (of a send)                                queue_id, queue_offset
    read            node, topic, queue_id, offset                        messages [[offset, id], …], end
    poll            consumer, [group], topic, queue_id, offset           messages [[offset, id], …], [end]
    rebalance       consumer, group, queues [[topic, queue_id], …]       -
    max_offset      topic, queue_id                                      offset (the next one to be given)
    commit_offset   group, topic, queue_id, offset                       -
    fetch_offset    group, topic, queue_id                               offset (null: none)
    reset_offset    group, topic, queue_id, offset                       -
    put             key, value                                           -
    get             key                                                  value (null: absent)
    delete          key                                                  -
    cas             key, old, new                                        swapped
    create          key, value                                           created
    digest          node, [group]                                        applied, digest
    fault           kind, nodes, [detail]                                - (the fault has been lifted)
    leader          node, term, [group]                                  - (a point in time)
    phase           name                                                 - (a point in time)

`repeat` sends the message of an earlier `send` again, with the same identity and to any queue. The answer must name the
place where the first one is stored.
`read` is the final read of one replica, made after the last send from nodes that have caught up. A completion may
repeat the fields of its invocation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import length_hint
from typing import Any

from jepsen_like.history import Operation, by_invocation

FAULT, LEADER, PHASE = "fault", "leader", "phase"
NOTES = frozenset({FAULT, LEADER, PHASE})
"""Kinds of steps about the run itself, which no client performed."""

NOT_CLIENTS = NOTES | {"read", "digest"}
"""NOTES, and the kinds that read a single replica. They say nothing about the availability of the cluster."""

VOCABULARY = NOTES | {
    *("send", "repeat", "read", "poll", "rebalance", "max_offset"),
    *("commit_offset", "fetch_offset", "reset_offset"),
    *("put", "get", "delete", "cas", "create"),
    "digest",
}

TopicQueue = tuple[str, int]
"""A queue: (topic, queue id)."""
GroupQueue = tuple[str, str, int]
"""A queue as a consumer group reads it: (group, topic, queue id)."""


class MalformedStep(Exception):
    """A step has a value of another shape than its `f` requires."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"line {index + 2}: {why}")
        self.index = index


class Operations:
    """The operations of a history, in order of invocation, by kind."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._by_f: dict[str, list[Operation]] = defaultdict(list)
        self.add(operations)

    def add(self, operations: Iterable[Operation]) -> None:
        """Adds operations. `close` must be called afterwards unless they come in order of invocation."""
        for operation in operations:
            self._by_f[operation.invoked.f].append(operation)

    def close(self) -> None:
        """Sorts the operations by invocation."""
        for found in self._by_f.values():
            found.sort(key=by_invocation)

    @property
    def kinds(self) -> frozenset[str]:
        """Every `f` that occurs."""
        return frozenset(f for f, found in self._by_f.items() if found)

    def of(self, *kinds: str) -> list[Operation]:
        """Returns all operations of these kinds, in order of invocation."""
        found = [self._by_f[f] for f in kinds if self._by_f.get(f)]
        if len(found) == 1:
            return found[0]
        return sorted(chain.from_iterable(found), key=by_invocation)

    def answered(self, *kinds: str) -> list[Operation]:
        """Returns the operations of these kinds that were answered with ok."""
        return [o for o in self.of(*kinds) if o.completed is not None and o.completed.type == "ok"]


@contextmanager
def values_of(operations: list[Operation]) -> Iterator[Iterator[Operation]]:
    """Yields an iterator over the operations. If the body of the context fails on a value, because a field is missing
    or has the wrong type, MalformedStep is raised for the operation that was read last.
    """
    walk = iter(operations)
    try:
        yield walk
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        position = len(operations) - length_hint(walk) - 1
        if position < 0:
            raise
        step = operations[position].completed or operations[position].invoked
        what = f"the value has no {error}" if isinstance(error, KeyError) else str(error)
        raise MalformedStep(step.index, f"{step.f} {step.type}: {what}") from error


def queue_of(value: dict[str, Any]) -> TopicQueue:
    """Returns the queue that a value names. Raises KeyError for a missing field, TypeError for one of another type."""
    topic, queue_id = value["topic"], value["queue_id"]
    if not isinstance(topic, str) or not isinstance(queue_id, int):
        raise TypeError("topic is a string and queue_id a whole number")
    return topic, queue_id


def place(queue: TopicQueue, offset: int) -> str:
    """Returns a place in a log as text for people: topic/queue@offset."""
    return f"{queue[0]}/{queue[1]}@{offset}"
