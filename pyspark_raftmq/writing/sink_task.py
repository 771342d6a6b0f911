"""The work of a task of the sink: it stages its rows as one attempt at the write.

Nothing here may depend on the order of rows or on the number of the attempt: a retry stages all rows again, as a new
attempt, and only the driver's commit decides which attempt counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import raftmq
from pyspark_raftmq.errors import WriteError
from pyspark_raftmq.writing.sink_options import SinkOptions
from raftmq.client.message import encode_properties
from raftmq.client.producing.send_frame import MessageIds

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.client.producing.staged_writes_client import StagedWrites

SLICE_BYTES = 512 << 10
"""Bytes of bodies after which a request is sent; its last row may exceed them."""


class StagedAttempt(NamedTuple):
    """The message of a task to the driver: the attempt that it staged."""

    name: str
    write: int
    attempt: int | None
    """The attempt's number; None if the task staged nothing, because it had no rows, or the write is committed
    already."""
    messages: int
    committed_before: bool = False
    """True if the task had rows and staged none, because the write is committed already."""


def stage_rows(options: SinkOptions, name: str, write: int, batches: Iterable[pa.RecordBatch]) -> StagedAttempt:
    """Stages all rows as one attempt. Raises WriteError."""
    with options.connect() as mq:
        try:
            return _Stager(options, mq.staged_writes(timeout_s=options.timeout_s), name, write).run(batches)
        except raftmq.RaftMQError as error:
            raise WriteError(f"a task of {name}, {write}, cannot stage its rows", str(error), error.hint) from error


class _Stager:
    def __init__(self, options: SinkOptions, writes: StagedWrites, name: str, write: int) -> None:
        self._options = options
        self._writes = writes
        self._name, self._write = name, write
        self._ids = MessageIds(os.urandom(16))
        self._attempt: int | None = None
        self._sequence = 0
        self._messages = 0
        self._waiting: dict[int | None, list[tuple[bytes, bytes]]] = {}
        """Rows that are not staged yet, as (body, properties), by queue; None: any queue."""
        self._sizes: dict[int | None, int] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> StagedAttempt:
        """Stages all rows of the batches."""
        for batch in batches:
            if not batch.num_rows:
                continue
            if self._attempt is None:
                self._attempt = self._writes.open(self._name, self._write)
                if self._attempt is None:  # a replay: the rows are in the topic
                    return StagedAttempt(self._name, self._write, None, 0, committed_before=True)
            self._add(batch)
        for queue_id in list(self._waiting):
            self._flush(queue_id)
        return StagedAttempt(self._name, self._write, self._attempt, self._messages)

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
        assert self._attempt is not None
        items = self._waiting.pop(queue_id)
        self._sizes.pop(queue_id)
        self._sequence += 1
        born_ms = time.time_ns() // 1_000_000
        self._writes.stage(self._attempt, self._sequence, self._options.topic, queue_id, items, born_ms)
        self._messages += len(items)
