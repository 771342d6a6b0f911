"""The work of a task of the sink: it stages its rows as one attempt at the write.

Nothing here may depend on the order of rows or on the number of the attempt: a retry stages all rows again, as a new
attempt, and only the driver's commit decides which attempt counts.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from pyspark_raftmq.errors import WriteError
from pyspark_raftmq.writing.sink_options import SinkOptions
from raftmq.client.message import encode_properties
from raftmq.client.producing.send_frame import MessageIds
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.client.producing.staged_writes_client import StagedWrites

SLICE_BYTES = 512 << 10
"""The bytes of bodies after which a request is sent. The last row may make it larger."""


class StagedAttempt(NamedTuple):
    """The message that a task sends to the driver: the attempts that it staged."""

    name: str
    write: int
    attempts: Mapping[int, tuple[int, int]]
    """Group of brokers -> (the attempt's number, its messages). Empty if the task staged nothing, because it had no
    rows, or the write is committed already."""
    committed_before: bool = False
    """True if the task had rows and staged none, because the write is committed already."""


def stage_rows(options: SinkOptions, name: str, write: int, batches: Iterable[pa.RecordBatch]) -> StagedAttempt:
    """Stages all rows as one attempt. Raises WriteError."""
    with options.connect() as mq:
        try:
            groups = _groups_of(mq, options.topic)
            return _Stager(options, mq.staged_writes(timeout_s=options.timeout_s), name, write, groups).run(batches)
        except raftmq.RaftMQError as error:
            raise WriteError(f"a task of {name}, {write}, cannot stage its rows", str(error), error.hint) from error


def _groups_of(mq: raftmq.Client, topic: str) -> list[int]:
    """Returns the groups of brokers that have queues of the topic; the first group in a cluster of one group."""
    if mq.admin.broker_groups() == [FIRST_GROUP]:
        return [FIRST_GROUP]
    return sorted({group_of(queue.queue_id) for queue in mq.admin.describe_topic(topic).queues})


class _Attempt:
    """An attempt of this task in one group of brokers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = 0
        self.messages = 0


class _Stager:
    def __init__(
        self, options: SinkOptions, writes: StagedWrites, name: str, write: int, groups: Sequence[int]
    ) -> None:
        """`groups`: the groups of brokers that rows without a queue go to in turn, a slice at a time."""
        self._options = options
        self._groups = groups
        self._writes = writes
        self._name, self._write = name, write
        self._ids = MessageIds(os.urandom(16))
        self._attempts: dict[int, _Attempt] = {}
        self._turn = random.randrange(len(groups))  # a random start, so that tasks do not all begin with the same group
        self._waiting: dict[int | None, list[tuple[bytes, bytes]]] = {}
        """Rows that are not staged yet, as (body, properties), by queue; None: any queue."""
        self._sizes: dict[int | None, int] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> StagedAttempt:
        """Stages all rows of the batches."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._add(batch)
            for queue_id in list(self._waiting):
                self._flush(queue_id)
        except _CommittedError:  # a replay: the rows are already in the topic
            return StagedAttempt(self._name, self._write, {}, committed_before=True)
        staged = {group: (attempt.number, attempt.messages) for group, attempt in self._attempts.items()}
        return StagedAttempt(self._name, self._write, staged)

    def _attempt_in(self, group: int) -> _Attempt:
        """Returns the attempt in a group of brokers; opens it for the group's first rows. Raises _CommittedError."""
        attempt = self._attempts.get(group)
        if attempt is None:
            number = self._writes.open(self._name, self._write, group=group)
            if number is None:
                raise _CommittedError
            attempt = self._attempts[group] = _Attempt(number)
        return attempt

    def _add(self, batch: pa.RecordBatch) -> None:
        none = [None] * batch.num_rows
        named = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = {name: column.to_pylist() for name, column in named.items()}
        rows = zip(
            columns["body"],
            columns.get("tag", none),
            columns.get("keys", none),
            columns.get("properties", none),
            columns.get("queue_id", none),
            strict=True,
        )
        for body, tag, keys, properties, queue_id in rows:
            if body is None:
                raise WriteError("a row has no body", "the column body is null there", "filter such rows, or use ''")
            data = body.encode() if isinstance(body, str) else body
            text = encode_properties(self._ids.next(), keys, tag, dict(properties) if properties else None)
            self._waiting.setdefault(queue_id, []).append((data, text.encode()))
            self._sizes[queue_id] = size = self._sizes.get(queue_id, 0) + len(data) + len(text)
            if size >= SLICE_BYTES or len(self._waiting[queue_id]) >= self._options.slice_rows:
                self._flush(queue_id)

    def _flush(self, queue_id: int | None) -> None:
        if queue_id is None:
            self._turn = (self._turn + 1) % len(self._groups)
            group = self._groups[self._turn]
        else:
            group = group_of(queue_id) if group_of(queue_id) in self._groups else FIRST_GROUP
        attempt = self._attempt_in(group)
        items = self._waiting.pop(queue_id)
        self._sizes.pop(queue_id)
        attempt.sequence += 1
        born_ms = time.time_ns() // 1_000_000
        topic = self._options.topic
        self._writes.stage(attempt.number, attempt.sequence, topic, queue_id, items, born_ms, group=group)
        attempt.messages += len(items)


class _CommittedError(Exception):
    """Raised when the write is already committed."""
