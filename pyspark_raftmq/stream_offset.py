"""The offset of a stream, in the form in which Spark keeps it in checkpoints (docs/adr/0063). ::

    {"v": 1, "topics": {"orders": {"0": 120, "1": 97}}, "began": {"orders": {"1": 90}}, "ids": {"orders": "UUID/0/17"}}

`topics` has for each queue the offset to read next. `began` has the first offset of queues whose batch does not begin
where the offset before it ended: new queues, and those that were created again. Start and end together therefore name
exact ranges, whatever the cluster keeps when the batch is run again. `ids` has the identity of each topic in which the
offsets count. Each group of brokers has its own identity of a topic; in groups other than the first, the key is
"GROUP/TOPIC". `ids` is absent from checkpoints of earlier releases, and added by the first batch. Queue ids are numbers
of queues (`raftmq_wire.queue_numbers`), so a checkpoint of a cluster of one group stays valid when groups are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyspark_raftmq.errors import PlanError
from raftmq.arrow.ranges import QueueRange
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of
from raftmq_wire.topic_identity import Position, TopicIdentity, parse_identity

VERSION = 1
Queue = tuple[str, int]
"""A queue: topic, queue id."""


def id_key(queue: Queue) -> str:
    """Returns the key under which `ids` has the identity of the queue's topic."""
    topic, number = queue
    group = group_of(number)
    return topic if group == FIRST_GROUP else f"{group}/{topic}"


class StreamOffset(NamedTuple):
    """The offset of a stream. `next`: the offset to read next in each queue; `began` and `ids`: described in the
    module's docstring."""

    next: Mapping[Queue, int]
    began: Mapping[Queue, int] = {}
    ids: Mapping[str, TopicIdentity] = {}

    def position(self, queue: Queue) -> Position:
        """Returns the position to read next in a queue that the offset has."""
        return Position(self.next[queue], self.ids.get(id_key(queue)))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form, sorted, because Spark compares offsets as text."""
        told: dict[str, Any] = {"v": VERSION, "topics": _nested(self.next)}
        if self.began:
            told["began"] = _nested(self.began)
        if self.ids:
            told["ids"] = {topic: str(self.ids[topic]) for topic in sorted(self.ids)}
        return told


def read_offset(told: Mapping[str, Any]) -> StreamOffset:
    """Reads the JSON form that `to_json` returns. Raises PlanError for an offset of another version or form."""
    try:
        if told["v"] != VERSION:
            raise ValueError(f"it has version {told['v']}, and this release writes version {VERSION}")
        ids = {topic: parse_identity(text) for topic, text in told.get("ids", {}).items()}
        return StreamOffset(_flat(told["topics"]), _flat(told.get("began", {})), ids)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(
            f"the checkpoint's offset is not understood: {dict(told)}",
            str(error),
            "use the release that wrote it, or begin with a new checkpoint",
        ) from error


def report_offset(
    ends: Mapping[Queue, int], ids: Mapping[str, TopicIdentity], lags: Mapping[Queue, int]
) -> dict[str, Any]:
    """Returns the JSON form of the ends of queues for reports of progress, with `lag`: the messages of each queue that
    no batch was planned for."""
    return {**StreamOffset(ends, ids=ids).to_json(), "lag": _nested(lags)}


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Returns the ranges that a batch from `start` to `end` reads, by topic, then by queue; a queue whose offset did
    not change has no range."""
    found = []
    for (topic, queue_id), stop in sorted(end.next.items()):
        first = end.began.get((topic, queue_id), start.next.get((topic, queue_id), stop))
        if first < stop:
            found.append(QueueRange(topic, queue_id, first, stop, end.ids.get(id_key((topic, queue_id)))))
    return found


def share(lags: Mapping[Queue, int], most: int) -> dict[Queue, int]:
    """Returns the number of messages that a batch of at most `most` takes from each queue: in proportion to its waiting
    messages, so that no queue falls further and further behind. The sum is exactly `most` if at least that many
    messages wait."""
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    taken = {queue: lag * most // total for queue, lag in lags.items()}
    left = most - sum(taken.values())
    # The queues with the largest remainders get the messages that rounding left over. Ties go by name, so that the
    # result is always the same.
    for queue in sorted(lags, key=lambda queue: (-(lags[queue] * most % total), queue))[:left]:
        taken[queue] += 1
    return taken


def _nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, int]]:
    told: dict[str, dict[str, int]] = {}
    for topic, queue_id in sorted(offsets):
        told.setdefault(topic, {})[str(queue_id)] = offsets[topic, queue_id]
    return told


def _flat(told: Mapping[str, Mapping[str, int]]) -> dict[Queue, int]:
    pairs: Iterable[tuple[str, str, int]] = ((t, q, told[t][q]) for t in told for q in told[t])
    return {(topic, int(queue)): int(offset) for topic, queue, offset in pairs}
