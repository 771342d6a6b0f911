"""The offsets of each queue that a read covers: fixed once, before anything is read."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from raftmq.client.admin import QueueInfo
from raftmq.client.errors import Failed
from raftmq_wire.queue_numbers import queue_text, queues_text
from raftmq_wire.topic_identity import Position, TopicIdentity

logger = logging.getLogger(__name__)

EARLIEST = "earliest"
LATEST = "latest"


class AtTime(NamedTuple):
    """A time as the bound of a read: the first offset stored at or after this log time, milliseconds since the epoch;
    the queue's end if there is none."""

    ms: int


Bound = int | str | AtTime | Position
"""A bound of a read: an offset, EARLIEST, LATEST, a time, or an offset that was kept with its topic."""


class Bounds(NamedTuple):
    """The start or the end of a read in each queue: the bound in `by_queue` if the queue is there, else `default`."""

    default: Bound
    by_queue: Mapping[int, Bound] = {}


class QueueRange(NamedTuple):
    """Messages of a queue from offset `start` up to, not including, `end`. A read returns all of them or fails."""

    topic: str
    queue_id: int
    start: int
    end: int
    counted_in: TopicIdentity | None = None
    """The identity of the topic in which the offsets count; None if it is not known."""

    def __str__(self) -> str:
        return f"{self.topic} queue {queue_text(self.queue_id)} [{self.start}, {self.end})"


class Unreadable(Failed):
    """The data that the caller asked for does not exist, or does not exist any more. `what`, `why` and `hint` are three
    lines for a person."""

    def __init__(self, what: str, why: str, hint: str) -> None:
        super().__init__(f"{what}: {why}", hint=hint)
        self.what = what
        self.why = why

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.hint)  # pickle needs all three arguments


class Described(Protocol):
    """The parts of a topic's description that a read needs."""

    @property
    def queues(self) -> list[QueueInfo]:
        """The bounds of each queue, in order of queue ids."""

    @property
    def identity(self) -> TopicIdentity | None:
        """The identity of the topic; None if it is not known."""


class Catalog(Protocol):
    """A source of the bounds of topics: raftmq's Admin, or a copy of the log."""

    def describe_topic(self, name: str) -> Described:
        """Returns the description of a topic. Raises NotFound."""

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after the log time, milliseconds since the epoch; the queue's end if
        there is none."""


def plan_topic(
    admin: Catalog, topic: str, starting: Bounds, ending: Bounds, *, clamp: bool = False, words: tuple[str, str]
) -> list[QueueRange]:
    """Returns one range per queue, in order of queue ids, including empty ranges.

    The leader confirms its leadership for each bound, so everything acknowledged before is included. `clamp` moves
    offsets that the queue does not have to the nearest one that it has. `words`: the caller's names of the two bounds,
    for errors. Raises NotFound if there is no such topic, Unreadable for a queue or offset that does not exist, and
    other RaftMQErrors.
    """
    described = admin.describe_topic(topic)
    queues = described.queues
    _check_queues(topic, words[0], starting, queues)
    _check_queues(topic, words[1], ending, queues)
    met = {queue.queue_id: queue.counted_in or described.identity for queue in queues}
    starting, ending = (
        _counted(topic, met, described.identity, word, bounds, clamp=clamp)
        for word, bounds in zip(words, (starting, ending), strict=True)
    )
    ranges = [_range(admin, topic, queue, starting, ending, words, clamp=clamp) for queue in queues]
    return [each._replace(counted_in=met[each.queue_id]) for each in ranges]


def _counted(
    topic: str,
    met: Mapping[int, TopicIdentity | None],
    of_others: TopicIdentity | None,
    word: str,
    bounds: Bounds,
    *,
    clamp: bool,
) -> Bounds:
    """Returns the bounds with plain offsets in place of stored positions. `met`: queue -> the identity of the present
    topic; `of_others`: the identity for queues that are not in `met`. Raises Unreadable for a position in another
    topic; with `clamp` such a position becomes the first offset that is kept."""

    def plain(bound: Bound, met: TopicIdentity | None) -> Bound:
        if not isinstance(bound, Position):
            return bound
        another = bound.why_not_in(met)
        if another and not clamp:
            raise Unreadable(f"{word} asks for offset {bound.offset} of another topic {topic}", another, "leave it out")
        if another:
            logger.warning("%s asked for offset %d of %s: %s", word, bound.offset, topic, another)
        return EARLIEST if another else bound.offset

    by_queue = {queue: plain(bound, met[queue]) for queue, bound in bounds.by_queue.items()}
    return Bounds(plain(bounds.default, of_others), by_queue)


def _check_queues(topic: str, word: str, bounds: Bounds, queues: list[QueueInfo]) -> None:
    unknown = sorted(bounds.by_queue.keys() - {queue.queue_id for queue in queues})
    if unknown:
        raise Unreadable(
            f"{word} names queue {queue_text(unknown[0])} of {topic}",
            f"the topic has queues {queues_text(queue.queue_id for queue in queues)}",
            "leave that queue out",
        )


def _range(
    admin: Catalog,
    topic: str,
    queue: QueueInfo,
    starting: Bounds,
    ending: Bounds,
    words: tuple[str, str],
    *,
    clamp: bool,
) -> QueueRange:
    bounds = [each.by_queue.get(queue.queue_id, each.default) for each in (starting, ending)]
    start, end = (offset_of(admin, topic, queue, bound) for bound in bounds)
    where = f"{topic} queue {queue_text(queue.queue_id)}"
    kept = f"it keeps offsets {queue.min_offset} up to, not including, {queue.max_offset}"
    if clamp:
        start, end = (min(max(offset, queue.min_offset), queue.max_offset) for offset in (start, end))
    for word, offset in zip(words, (start, end), strict=True):
        if not queue.min_offset <= offset <= queue.max_offset:
            raise Unreadable(f"{word} asks for offset {offset} of {where}", kept, "ask for what is there")
    if start > end and (clamp or any(isinstance(bound, AtTime) for bound in bounds)):
        start = end  # of two times, the end may lie before the first kept message, and so before the start
    if start > end:
        raise Unreadable(f"the range of {where} begins at {start} and ends at {end}", kept, "swap them")
    return QueueRange(topic, queue.queue_id, start, end)


def offset_of(admin: Catalog, topic: str, queue: QueueInfo, bound: Bound) -> int:
    """Returns the offset that `bound` means in this queue. It lies within the offsets that the queue keeps, unless
    `bound` is an offset, which is returned as it is."""
    if isinstance(bound, AtTime):
        return min(max(admin.offset_at(topic, queue.queue_id, bound.ms), queue.min_offset), queue.max_offset)
    if isinstance(bound, int):
        return bound
    if isinstance(bound, Position):
        return bound.offset
    return {EARLIEST: queue.min_offset, LATEST: queue.max_offset}[bound]


def bounds_of(word: str, value: object, default: Bound) -> Bounds:
    """Returns the bounds that a caller of `read_arrow` wrote: one value for all queues, or a table by queue. `word`
    names the argument in errors. Raises ValueError."""
    if isinstance(value, Mapping):
        return Bounds(default, {_queue(word, queue): _bound(word, value[queue]) for queue in value})
    return Bounds(_bound(word, value))


def _queue(word: str, queue: object) -> int:
    if isinstance(queue, bool) or not isinstance(queue, int) or queue < 0:
        raise ValueError(f"{word}: {queue!r} is no queue id")
    return queue


def _bound(word: str, value: object) -> Bound:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise ValueError(f"{word}={value} has no time zone; use datetime.now(timezone.utc) or .astimezone()")
        return AtTime(int(value.timestamp() * 1000))
    if isinstance(value, Position):
        return value
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f'{word}={value!r} is not "earliest", "latest", an offset >= 0, a datetime, or a dict of those'
        )
    return value
