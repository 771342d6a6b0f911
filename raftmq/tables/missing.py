"""Computes which messages a table lacks: the ranges between the offsets that it has reached and the ends of the
queues."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from raftmq.arrow.ranges import Described, QueueRange
from raftmq.tables.day_files import DayFile
from raftmq.tables.errors import TableError
from raftmq_wire.topic_identity import Position, TopicIdentity

logger = logging.getLogger(__name__)

Queue = tuple[str, int]
"""(topic, queue_id)."""


class TableSnapshot(Protocol):
    """The part of a table's snapshot that a plan needs: a Delta table, or a folder of Parquet files."""

    def reached(self, topic: str, queue_id: int, met: TopicIdentity | None = None) -> Position | None:
        """Returns the position to read next; None if the table has no rows of this queue. `met`: the identity of the
        present topic."""


class Kept(NamedTuple):
    """The messages that a queue keeps: offsets from `first` up to, not including, `end`, of the topic `counted_in`."""

    first: int
    end: int
    counted_in: TopicIdentity | None


def kept_of(topic: str, described: Described) -> dict[Queue, Kept]:
    """Returns queue -> the range of offsets that it keeps, for each queue of the topic."""
    return {
        (topic, queue.queue_id): Kept(queue.min_offset, queue.max_offset, queue.counted_in or described.identity)
        for queue in described.queues
    }


def moved(target: TableSnapshot, ends: Mapping[Queue, Kept], *, accept_loss: bool) -> dict[Queue, Position]:
    """Returns queue -> new position, for positions that change although no row is added: positions that an earlier
    release stored without the topic's identity get that of the present topic; with `accept_loss`, positions in a
    deleted topic are replaced by the beginning of the present one."""
    found = {}
    for queue, kept in ends.items():
        reached = target.reached(*queue, kept.counted_in)
        if reached is None or kept.counted_in is None:
            continue
        if reached.counted_in is None:
            found[queue] = Position(reached.offset, kept.counted_in)
        elif accept_loss and reached.why_not_in(kept.counted_in):
            found[queue] = Position(kept.first, kept.counted_in)
    return found


def missing(target: TableSnapshot, ends: Mapping[Queue, Kept], *, accept_loss: bool) -> list[QueueRange]:
    """Returns the ranges that the table does not have yet. Raises TableError if retention has removed some of them, or
    if the table's position is in another topic of the same name; with `accept_loss`, the queue then begins at the first
    kept message. Always raises TableError if the table's position lies beyond the end of the queue."""
    ranges = []
    for (topic, queue_id), (first, end, counted_in) in ends.items():
        reached = target.reached(topic, queue_id, counted_in)
        start = first if reached is None else reached.offset
        if reached is not None and (another := reached.why_not_in(counted_in)):
            where = f"offset {start} of {topic} queue {queue_id}"
            if not accept_loss:
                raise TableError(
                    f"the table goes on at {where}, in another topic of this name",
                    another,
                    "Take another folder; to begin with the new topic in this one, --accept-loss",
                )
            logger.warning("the table was at %s and goes on at %d: %s", where, first, another)
            start = first
        if start > end or (start < first and not accept_loss):
            raise TableError(
                f"the table goes on at offset {start} of {topic} queue {queue_id}, which is not there",
                f"the queue keeps offsets {first} up to, not including, {end}",
                "Was the topic made anew? Take another folder; if retention was faster, --accept-loss goes on",
            )
        ranges.append(QueueRange(topic, queue_id, max(start, first), end, counted_in))
    return [each for each in ranges if each.start < each.end]


def first_of(ranges: list[QueueRange], most: int) -> list[QueueRange]:
    """Returns the beginning of each range, in proportion to its length: at most about `most` messages in all, and at
    least one."""
    total = sum(each.end - each.start for each in ranges)
    if total <= most:
        return ranges
    parts = [each._replace(end=each.start + (each.end - each.start) * most // total) for each in ranges]
    return [each for each in parts if each.start < each.end] or [ranges[0]._replace(end=ranges[0].start + 1)]


def check_continues(files: Sequence[DayFile], ranges: Sequence[QueueRange]) -> None:
    """Raises TableError unless the files contain each offset of the ranges exactly once: the last check before a
    commit."""
    for planned in ranges:
        parts = sorted(
            (file.start, file.end)
            for file in files
            if (file.topic, file.queue_id) == planned[:2] and planned.start <= file.start < planned.end
        )
        at = planned.start
        for start, end in parts:
            if start != at:
                break
            at = end
        if at != planned.end or len(parts) != len({start for start, _ in parts}):
            raise TableError(
                f"the files of {planned} do not hold it", f"they hold {parts}", "Run it again; report this defect"
            )


def reached_by(ranges: Sequence[QueueRange]) -> dict[Queue, Position]:
    """Returns the positions that a table has reached once these ranges are in it."""
    return {(each.topic, each.queue_id): Position(each.end, each.counted_in) for each in ranges}
