"""The payload of a TRIM entry, and what is remembered of the last one.

A TRIM moves the beginning of the log, for every replica at the same entry: messages below `position` are no longer part
of the state, whether or not a replica still has the file. The leader decides it from its applied state, and apply never
rejects it: a position or offset below the current one changes nothing, and one beyond the end of a queue means the end.

msgpack map, keys in this order: {"format": 1, "position": u64, "first_index": u64, "reason": str, "queues":
[[topic_id, queue_id, min_offset], ...]}. `queues` lists queues that are trimmed further than `position` requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from raftlog.types import Entry
from statemachine import keys
from statemachine.kv import KV, META
from statemachine.stage import Stage

FORMAT = 1

QueueMin = tuple[int, int, int]
"""(topic_id, queue_id, min_offset)."""


class TrimError(ValueError):
    """The bytes are not a TRIM payload (the frame's CRC was good: a bug or a newer format)."""


class Trim(NamedTuple):
    """The content of a TRIM. `position` is where a segment begins, `first_index` its first entry."""

    position: int
    first_index: int
    reason: str
    """For people: why the leader trimmed."""
    queues: tuple[QueueMin, ...] = ()


class TrimMark(NamedTuple):
    """The beginning of the log, as the last TRIM that moved it set it."""

    position: int
    first_index: int
    index: int  # type: ignore[assignment]
    """Of the TRIM entry; -1 if there was none."""
    timestamp_ms: int
    """Its log time."""


NOT_TRIMMED = TrimMark(0, 0, -1, 0)


def encode(trim: Trim) -> bytes:
    """The payload."""
    packed: bytes = msgpack.packb(
        {
            "format": FORMAT,
            "position": trim.position,
            "first_index": trim.first_index,
            "reason": trim.reason,
            "queues": [list(queue) for queue in trim.queues],
        }
    )
    return packed


def decode(payload: bytes) -> Trim:
    """Decodes the payload. Raises TrimError."""
    try:
        fields = msgpack.unpackb(payload)
        if type(fields) is not dict or fields.get("format") != FORMAT:
            raise TrimError(f"not a TRIM of format {FORMAT}: was it written by a newer RaftMQ?")
        queues = tuple((_number(t), _number(q), _number(offset)) for t, q, offset in fields["queues"])
        return Trim(_number(fields["position"]), _number(fields["first_index"]), str(fields["reason"]), queues)
    except (KeyError, TypeError, ValueError) as error:
        raise TrimError(f"not the payload of a TRIM: {error}") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= keys.U64_MAX:
        raise TrimError(f"{value!r} is no position, index or offset")
    return value


class TrimState:
    """The row of the last TRIM. `mark` is replaced as a whole: any thread may read it."""

    def __init__(self, kv: KV) -> None:
        self.mark = self._staged = load_mark(kv)

    def set(self, stage: Stage, trim: Trim, entry: Entry) -> None:
        """The log begins at `trim.position` from `entry` on, unless it begins above already."""
        if trim.position > self._staged.position:
            self._staged = TrimMark(trim.position, trim.first_index, entry.index, entry.timestamp_ms)
            stage.put(META, keys.TRIM_KEY, keys.TRIM.pack(*self._staged))

    def publish(self) -> None:
        """Publishes the run's change; called when its batch is written."""
        self.mark = self._staged


def load_mark(kv: KV) -> TrimMark:
    """The mark as the store has it."""
    row = kv.get(META, keys.TRIM_KEY)
    return NOT_TRIMMED if row is None else TrimMark(*keys.TRIM.unpack(row))


def highest(queues: Sequence[QueueMin]) -> dict[tuple[int, int], int]:
    """(topic_id, queue_id) -> the highest offset named for it."""
    found: dict[tuple[int, int], int] = {}
    for topic_id, queue_id, offset in queues:
        found[topic_id, queue_id] = max(offset, found.get((topic_id, queue_id), 0))
    return found
