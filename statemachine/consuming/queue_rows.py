"""Rows by consumer group and queue, all of them in memory: the common part of consumer offsets, queue locks and resets.

The rows of a deleted group or a deleted topic are removed slice by slice (removals.py). Until a slice removes them, the
rows of a deleted topic are still in memory but hidden from readers, and the rows of a deleted group are in the store
only. A new group of the same name may write rows before the removal has passed their keys. Such a row is *spared*: a
row of `meta` tells the removal not to remove it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Generic, TypeVar

from statemachine.family import Family
from statemachine.removals import Done, Removals
from statemachine.rows import keys, meta_keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

LOOKS_PER_ROW = 16
"""The number of groups that one slice of a removal may look at in memory, for each row that it may remove."""


Value = TypeVar("Value")


class QueueMap(Mapping[Queue, Value]):
    """A read-only view of one group's values by queue. Making it costs no copy."""

    __slots__ = ("_gone", "_topics")

    def __init__(self, topics: Mapping[int, Mapping[int, Value]], gone: Container[int]) -> None:
        """`topics`: the group's values by topic id and queue id. `gone`: ids of topics whose rows are being removed,
        which the view hides."""
        self._topics = topics
        self._gone = gone

    def __getitem__(self, queue: Queue) -> Value:
        topic_id, queue_id = queue
        if topic_id in self._gone:
            raise KeyError(queue)
        return self._topics[topic_id][queue_id]

    def __iter__(self) -> Iterator[Queue]:
        for topic_id, queues in list(self._topics.items()):
            if topic_id not in self._gone:
                for queue_id in queues:
                    yield topic_id, queue_id

    def __len__(self) -> int:
        return sum([len(queues) for topic_id, queues in list(self._topics.items()) if topic_id not in self._gone])


class _Change(Generic[Value]):
    """The changes of the batch being applied to one group."""

    __slots__ = ("forgets", "topics")

    def __init__(self) -> None:
        self.forgets = False
        """True if the batch deleted the group, so that none of its values from before the batch count."""
        self.topics: dict[int, dict[int, Value]] = {}
        """All of the group's values, by queue id, of each topic that the batch touched."""


class QueueRows(Family, Generic[Value]):
    """A value for each queue of each group. The map for a group's topic is replaced and never changed, so any thread
    may read it at any time. The changes of a batch of entries appear once it is written."""

    def __init__(self, kv: KV, family: str, decode: Callable[[bytes], Value], removals: Removals) -> None:
        self._kv = kv
        self._family = family
        self._removals = removals
        self._published: dict[str, dict[int, Mapping[int, Value]]] = {}
        self._names: list[str] = []
        """The names of the groups in `_published`, ascending."""
        self.changed: bool = True
        self._staged: dict[str, _Change[Value]] = {}
        self._freed: deque[dict[int, Mapping[int, Value]]] = deque()
        """The values of deleted groups, whose memory is freed little by little, because freeing much at once takes
        long."""
        for key, row in kv.scan(family, keys.FIRST, keys.LAST):
            group, topic_id, queue_id = keys.parse_offset_key(key)
            if not removals.hides(kv, family, group, key):
                self._change(group).topics.setdefault(topic_id, {})[queue_id] = decode(row)
        self.publish()

    def of_group(self, group: str) -> Mapping[Queue, Value]:
        """Returns all values of the group, by queue."""
        return QueueMap(self._published.get(group, {}), self._removals.topics)

    def by_topic(self, group: str) -> dict[int, Mapping[int, Value]]:
        """Returns the group's values: topic id -> queue id -> value. Takes one step per topic."""
        topics = list(self._published.get(group, {}).items())
        return {topic_id: queues for topic_id, queues in topics if topic_id not in self._removals.topics}

    @property
    def is_empty(self) -> bool:
        """True if there is no row of any group."""
        return not self._published

    def forget_group(self, group: str) -> None:
        """Hides all values of the group from readers. Its rows stay in the store until the removal of the group has
        deleted them, a bounded slice at a time."""
        self.changed = True
        change = self._staged[group] = _Change()
        change.forgets = True

    # -- slices of removals, each the only change in its batch

    def remove_topic(self, stage: Stage, topic_id: int, at: bytes, rows_max: int) -> Done:
        """Removes at most `rows_max` rows of the topic, from the group named `at` on. Returns how far it came."""
        names, used, looks = self._names, 0, rows_max * LOOKS_PER_ROW
        for place in range(bisect_left(names, at.decode()), len(names)):
            group = names[place]
            if used >= rows_max or not looks:
                return Done(rows_max, group.encode())
            looks -= 1
            queues = self._published[group].get(topic_id)
            if queues:
                gone = nsmallest(rows_max - used, queues)
                used += len(gone)
                self._drop(stage, group, [(topic_id, queue_id) for queue_id in gone])
                if len(gone) < len(queues):
                    return Done(used, group.encode())
        return Done(used, None)

    def remove_group(self, stage: Stage, group: str, at: bytes, rows_max: int, *, last: bool) -> Done:
        """Removes rows of a deleted group, except those that a new group of the same name has written since. Walks over
        at most `rows_max` rows, from the key `at` on, and returns how far it came. `last`: no other removal of the name
        is pending."""
        start, end = keys.offsets_range(group)
        of_now: Mapping[int, Mapping[int, Value]] = self._published.get(group, {})
        used = 0
        for key, row in self._kv.scan(self._family, max(start, at), end):
            if used == rows_max:
                return Done(used, key)
            used += 1
            _, topic_id, queue_id = keys.parse_offset_key(key)
            spared = meta_keys.spared_key(self._family, key)
            if queue_id not in of_now.get(topic_id, ()):
                stage.delete(self._family, key)
                stage.before[self._family][key] = row
                if self._kv.get(META, spared) is not None:  # the new group that wrote the row was deleted as well
                    stage.delete(META, spared)
            elif last:
                stage.delete(META, spared)
        return Done(used, None)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self._freed:
            self._free()
        for group, change in self._staged.items():
            self._publish_group(group, change)
        self._staged = {}
        self.changed = bool(self._freed)

    def _publish_group(self, group: str, change: _Change[Value]) -> None:
        old = self._published.get(group)
        topics = {} if old is None or change.forgets else old
        for topic_id, values in change.topics.items():
            if values:
                topics[topic_id] = values
            else:
                topics.pop(topic_id, None)
        if old is not None and topics is not old:
            self._freed.append(old)
        if topics:
            self._published[group] = topics
            if old is None:
                self._name(group)
        elif old is not None:
            del self._published[group]
            del self._names[bisect_left(self._names, group)]

    def _name(self, group: str) -> None:
        if self._names and group < self._names[-1]:
            insort(self._names, group)
        else:
            self._names.append(group)

    def _free(self) -> None:
        topics = self._freed[0]
        for _ in range(min(len(topics), 64)):
            topics.popitem()
        if not topics:
            self._freed.popleft()

    # -- internal methods

    def _put(self, stage: Stage, group: str, queue: Queue, value: Value, row: bytes) -> None:
        topic_id, queue_id = queue
        self._writable(group, topic_id)[queue_id] = value
        key = keys.offset_key(group, topic_id, queue_id)
        stage.put(self._family, key, row)
        if self._removals.groups and (number := self._removals.ahead_of(self._family, group, key)):
            stage.put(META, meta_keys.spared_key(self._family, key), keys.U64.pack(number))

    def _drop(self, stage: Stage, group: str, queues: Iterable[Queue]) -> None:
        for topic_id, queue_id in sorted(queues):
            self._writable(group, topic_id).pop(queue_id, None)
            key = keys.offset_key(group, topic_id, queue_id)
            stage.delete(self._family, key)
            if self._removals.groups and self._removals.ahead_of(self._family, group, key):
                stage.delete(META, meta_keys.spared_key(self._family, key))

    def _value(self, group: str, queue: Queue) -> Value | None:
        """Returns the queue's value in the group, with the changes of the batch being applied; None if there is
        none."""
        return self._current(group, queue[0]).get(queue[1])

    def _all(self, group: str) -> dict[Queue, Value]:
        """Returns all of the group's values by queue, with the changes of the batch being applied. Walks over all of
        them."""
        change = self._staged.get(group)
        topics: dict[int, Mapping[int, Value]] = {}
        if change is None or not change.forgets:
            topics.update(self._published.get(group, {}))
        if change is not None:
            topics.update(change.topics)
        return {(topic, queue): value for topic, queues in topics.items() for queue, value in queues.items()}

    def _current(self, group: str, topic_id: int) -> Mapping[int, Value]:
        """Returns the group's values of the topic by queue id, with the changes of the batch being applied. The caller
        must not change them."""
        change = self._staged.get(group)
        if change is not None:
            values = change.topics.get(topic_id)
            if values is not None:
                return values
            if change.forgets:
                return {}
        topics = self._published.get(group)
        return {} if topics is None else topics.get(topic_id, {})

    def _writable(self, group: str, topic_id: int) -> dict[int, Value]:
        change = self._change(group)
        values = change.topics.get(topic_id)
        if values is None:
            values = change.topics[topic_id] = dict(self._current(group, topic_id))
        return values

    def _change(self, group: str) -> _Change[Value]:
        change = self._staged.get(group)
        if change is None:
            self.changed = True
            change = self._staged[group] = _Change()
        return change
