"""Rows by group and queue, all of them in memory: what consumer offsets, queue locks and resets have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from statemachine import keys
from statemachine.kv import KV
from statemachine.stage import Stage

Queue = tuple[int, int]
"""(topic_id, queue_id)."""

Value = TypeVar("Value")


class QueueRows(Generic[Value]):
    """A value for each queue of each group. A group's map is replaced, never changed, so any thread may read it at any
    time; what a run changes is shown when its batch is written."""

    def __init__(self, kv: KV, family: str, decode: Callable[[bytes], Value]) -> None:
        self._family = family
        self._published: dict[str, Mapping[Queue, Value]] = {}
        self._staged: dict[str, dict[Queue, Value]] = {}
        for key, row in kv.scan(family, keys.FIRST, keys.LAST):
            group, topic_id, queue_id = keys.parse_offset_key(key)
            self._staged.setdefault(group, {})[topic_id, queue_id] = decode(row)
        self.publish()

    def delete_group(self, stage: Stage, group: str) -> None:
        """Forgets every row of the group: one made again under that name inherits none."""
        self._staged[group] = {}
        stage.delete_range(self._family, *keys.offsets_range(group))

    def delete_topic(self, stage: Stage, topic_id: int) -> None:
        """Forgets every group's rows of the topic."""
        for group in sorted({*self._published, *self._staged}):
            self._drop(stage, group, {queue for queue in self._current(group) if queue[0] == topic_id})

    def publish(self) -> None:
        """Shows the run's changes to readers; called when its batch is written."""
        for group, values in self._staged.items():
            if values:
                self._published[group] = values
            else:
                self._published.pop(group, None)
        self._staged = {}

    def _put(self, stage: Stage, group: str, queue: Queue, value: Value, row: bytes) -> None:
        self._writable(group)[queue] = value
        stage.put(self._family, keys.offset_key(group, *queue), row)

    def _drop(self, stage: Stage, group: str, queues: Iterable[Queue]) -> None:
        for queue in sorted(queues):
            del self._writable(group)[queue]
            stage.delete(self._family, keys.offset_key(group, *queue))

    def _current(self, group: str) -> Mapping[Queue, Value]:
        """The group's values at this point of the run; not to be changed."""
        return self._staged.get(group, self._published.get(group, {}))

    def _writable(self, group: str) -> dict[Queue, Value]:
        values = self._staged.get(group)
        if values is None:
            values = self._staged[group] = dict(self._published.get(group, {}))
        return values
