"""Reading one planned range: every message of it, in order, or an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import raftmq
from pyspark_raftmq.errors import ReadError
from pyspark_raftmq.plan import QueueRange

MAX_PULL_MESSAGES = 1024
MAX_BATCH_BYTES = 8 << 20
"""A batch is closed when its bodies reach this, whatever its row count: it is held in memory twice."""
LAG_PATIENCE_S = 30.0
"""How long the leader may lack what the plan saw. A new leader applies what it has within moments of its election."""
_WAIT_S = 1.0


class Puller(Protocol):
    """The part of raftmq.Client that is needed here."""

    def pull(
        self, topic: str, queue_id: int, offset: int, max_messages: int, *, wait_s: float, timeout_s: float
    ) -> raftmq.PullResult:
        """As raftmq.Client.pull."""


def read_range(
    mq: Puller,
    topic: str,
    planned: QueueRange,
    batch_rows: int,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[raftmq.Message]]:
    """Lists of at most `batch_rows` consecutive messages, together exactly `planned`. Raises ReadError otherwise."""
    batch: list[raftmq.Message] = []
    size = 0
    for message in _messages(mq, topic, planned, clock):
        batch.append(message)
        size += len(message.body)
        if len(batch) >= batch_rows or size >= MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _messages(mq: Puller, topic: str, planned: QueueRange, clock: Callable[[], float]) -> Iterator[raftmq.Message]:
    """Invariant: what was yielded is exactly the offsets from `planned.start` up to `offset`."""
    offset = planned.start
    give_up_at = clock() + LAG_PATIENCE_S
    while offset < planned.end:
        result = _pull(mq, topic, planned, offset)
        if result.status is not raftmq.PullStatus.FOUND:
            _check_lag(topic, planned, offset, result, clock() >= give_up_at)
            continue
        for message in result.messages:
            if message.queue_offset != offset or message.queue_id != planned.queue_id or message.topic != topic:
                raise _gap(
                    topic,
                    planned,
                    offset,
                    f"the cluster sent offset {message.queue_offset} of {message.topic} queue {message.queue_id}",
                )
            yield message
            offset += 1
            if offset == planned.end:
                return
        give_up_at = clock() + LAG_PATIENCE_S


def _pull(mq: Puller, topic: str, planned: QueueRange, offset: int) -> raftmq.PullResult:
    wanted = min(MAX_PULL_MESSAGES, planned.end - offset)
    try:
        return mq.pull(topic, planned.queue_id, offset, wanted, wait_s=_WAIT_S, timeout_s=LAG_PATIENCE_S)
    except raftmq.RaftMQError as error:
        raise ReadError(
            f"reading {_where(topic, planned)} stopped at offset {offset}",
            str(error),
            error.hint or "run the read again; every executor must reach the brokers",
        ) from error


def _check_lag(topic: str, planned: QueueRange, offset: int, result: raftmq.PullResult, too_late: bool) -> None:
    """Returns if the leader may merely lag behind the plan: then the pull is asked again."""
    if result.status is raftmq.PullStatus.MOVED and offset < result.min_offset:
        raise _gap(topic, planned, offset, f"the queue now begins at {result.min_offset}: retention removed the rest")
    if too_late:
        raise _gap(
            topic, planned, offset, f"the leader has had no more than {result.max_offset} for {LAG_PATIENCE_S:g} s"
        )


def _gap(topic: str, planned: QueueRange, offset: int, why: str) -> ReadError:
    return ReadError(
        f"offset {offset} of {_where(topic, planned)} cannot be read",
        why,
        "rows would be missing, so the read fails; read again, with startingOffsets at what is still kept",
    )


def _where(topic: str, planned: QueueRange) -> str:
    return f"{topic} queue {planned.queue_id} [{planned.start}, {planned.end})"
