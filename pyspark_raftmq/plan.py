"""Which offsets of which queues a read covers: fixed once, on the driver, before any task runs."""

from __future__ import annotations

from typing import NamedTuple

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import EARLIEST, LATEST, Bound, Bounds, ReadOptions


class QueueRange(NamedTuple):
    """Messages from offset `start` up to, not including, `end`; all of them, or the task fails."""

    queue_id: int
    start: int
    end: int


def plan(options: ReadOptions) -> list[QueueRange]:
    """One range per queue, in order of queue ids; empty ranges are kept. Raises PlanError.

    Bounds come from the leader, which confirms its leadership for each: everything acknowledged before the plan is in.
    """
    with raftmq.connect(options.servers) as mq:
        try:
            topic = mq.admin.describe_topic(options.topic)
        except raftmq.RaftMQError as error:
            raise _no_plan(options, error) from error
    queues = {queue.queue_id for queue in topic.queues}
    for name, bounds in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        _check_queues(options.topic, name, bounds, queues)
    return [_range(options, queue) for queue in topic.queues]


def _no_plan(options: ReadOptions, error: raftmq.RaftMQError) -> PlanError:
    if isinstance(error, raftmq.NotFound):
        return PlanError(f"there is no topic {options.topic}", str(error), error.hint)
    if isinstance(error, raftmq.Unreachable):
        return PlanError(
            f"no server answers at {options.servers}",
            str(error),
            "check the option servers, and that every executor reaches the addresses that `raftmq status` lists",
        )
    return PlanError(f"the offsets of {options.topic} are not known", str(error), error.hint)


def _check_queues(topic: str, name: str, bounds: Bounds, queues: set[int]) -> None:
    unknown = sorted(bounds.by_queue.keys() - queues)
    if unknown:
        raise PlanError(
            f"the option {name} names queue {unknown[0]} of {topic}",
            f"the topic has queues 0 to {len(queues) - 1}",
            "leave that queue out",
        )


def _range(options: ReadOptions, queue: raftmq.QueueInfo) -> QueueRange:
    start = _offset(options.starting, queue)
    end = _offset(options.ending, queue)
    where = f"{options.topic} queue {queue.queue_id}"
    kept = f"it keeps offsets {queue.min_offset} up to, not including, {queue.max_offset}"
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not queue.min_offset <= offset <= queue.max_offset:
            raise PlanError(f"the option {name} asks for offset {offset} of {where}", kept, "ask for what is there")
    if start > end:
        raise PlanError(f"the range of {where} begins at {start} and ends at {end}", kept, "swap them")
    return QueueRange(queue.queue_id, start, end)


def _offset(bounds: Bounds, queue: raftmq.QueueInfo) -> int:
    bound: Bound = bounds.by_queue.get(queue.queue_id, bounds.default)
    if isinstance(bound, int):
        return bound
    return {EARLIEST: queue.min_offset, LATEST: queue.max_offset}[bound]
