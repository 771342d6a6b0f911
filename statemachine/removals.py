"""Removals: rows that are removed slice by slice, because there may be millions of them (docs/adr/0082).

A command that removes many rows, such as the deletion of a topic, only *begins a removal*: it writes a row of `meta`
that says which rows to remove. After that entry, readers no longer see these rows. The leader then proposes slices,
which are applied one after the other; each walks over a bounded number of rows. Removals are carried out in the order
in which they began, each in steps, one step per range of rows. The progress of the first removal is a row, too. A new
leader and a restarted or restored node therefore continue from there.

A slice does not name a removal: it always does the next piece of work. A late or repeated slice therefore does no harm,
and does nothing if no removal is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from statemachine.family import Family, Reads, family_of
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import CQ, DEDUP, KV, LOCKS, META, OFFSETS, RESETS
from statemachine.rows.write_batch import Stage


class RemovalKind(IntEnum):
    """The kind of rows that a removal removes. Values are in rows: never renumber."""

    TOPIC = 1
    """Removes all rows with the id of a deleted topic."""
    GROUP = 2
    """Removes all rows of a deleted group about queues: locks, resets and offsets."""
    EXPIRE = 3
    """Removes sessions, unique rows and locks that were not used since some log time."""
    WRITE = 4
    """Discards attempts at a staged write that lost, because others were committed. Their messages are removed like
    those of any discarded attempt."""


SESSIONS, UNIQUE = "sessions", "unique"
"""The names of the two steps over rows of the family `dedup`."""
ATTEMPTS = "attempts"
"""The name of the step over attempts at staged writes, rows "a" of the family `trans`."""

STEPS: Mapping[RemovalKind, tuple[str, ...]] = {
    RemovalKind.TOPIC: (CQ, DEDUP, OFFSETS, LOCKS, RESETS),
    RemovalKind.GROUP: (LOCKS, RESETS, OFFSETS),
    RemovalKind.EXPIRE: (SESSIONS, UNIQUE, LOCKS),
    RemovalKind.WRITE: (ATTEMPTS,),
}
"""The steps of each kind of removal, in their order. Most have the name of the family whose rows they walk over.
Numbers of steps are in rows: never reorder. A new step needs a new level of the cluster, because older nodes would end
the removal without it."""


class Removal(NamedTuple):
    """One removal: the kind of rows to remove, and which of them."""

    kind: RemovalKind
    what: Any
    """The subject of the removal: a topic's id, a group's name, a log time in milliseconds, or a list with the fields
    of `Losers`."""
    offsets: bool = True
    """True if the deleted group's committed offsets are removed too."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The removal's steps, in order."""
        steps = STEPS[self.kind]
        return steps if self.offsets else steps[:-1]


class Losers(NamedTuple):
    """The attempts that lose by the commit of a staged write: those at this write, or at earlier ones of the name, that
    were opened before the commit."""

    name: str
    write: int
    below: int
    """An upper bound of the attempts' numbers: all are below it."""


class RemovalPlace(NamedTuple):
    """The place that the first removal has reached: the number of its present step, and the key up to which that step
    is done."""

    step: int
    at: bytes


class Done(NamedTuple):
    """The outcome of one step within a slice."""

    rows: int
    """The number of rows that the step walked over."""
    at: bytes | None
    """The key at which the next slice continues; None if the step is finished."""


BEGIN = RemovalPlace(0, keys.FIRST)


class Removals(Family):
    """All pending removals. Any thread may use `topics`, `pending` and `loses`; everything else is for the apply thread
    only."""

    ROWS = ((META, meta_keys.REMOVAL_PREFIX), (META, meta_keys.REMOVAL_AT_KEY), (META, b"spared\0"))

    def __init__(self, kv: KV) -> None:
        self._removals: OrderedDict[int, Removal] = OrderedDict()
        """The pending removals by number, in the order in which they are carried out."""
        self.groups: dict[str, list[int]] = {}
        """Name of a deleted group -> numbers of its pending removals, with the changes of the batch being applied."""
        self._losers: dict[str, dict[int, Losers]] = {}
        """Name of staged writes -> number of each pending removal -> the attempts that it discards, with the changes of
        the batch being applied. Values are replaced as wholes. Another thread may see values of a batch that is still
        being written."""
        self.topics: set[int] = set()
        """Ids of deleted topics whose rows are being removed and are hidden from readers. The set is changed in place.
        """
        self._gone: list[int] = []
        self._over: list[int] = []
        """The topic ids that the batch being applied removes from `topics`. `_gone` has the topic ids that it adds."""
        self.expires = False
        """True if a removal of the kind EXPIRE is pending, with the changes of the batch being applied."""
        for key, row in kv.scan(META, *meta_keys.REMOVALS):
            self._add(meta_keys.removal_number(key), _unpack(row))
        row_at = kv.get(META, meta_keys.REMOVAL_AT_KEY) if self._removals else None
        self._place = BEGIN if row_at is None else RemovalPlace(row_at[0], row_at[1:])
        self.changed: bool = True
        self.pending = 0
        """The number of removals that are not finished, as readers see it."""
        self.publish()

    @property
    def first(self) -> Removal | None:
        """The removal on which the next slice works, with the changes of the batch being applied; None if there is
        none."""
        return next(iter(self._removals.values()), None)

    @property
    def place(self) -> RemovalPlace:
        """The place that the first removal has reached."""
        return self._place

    def begin(self, stage: Stage, removal: Removal) -> None:
        """Begins a removal, which comes after all pending ones."""
        number = next(reversed(self._removals), 0) + 1
        self._add(number, removal)
        stage.put(META, meta_keys.removal_key(number), _pack(removal))
        self.changed = True

    def begin_write(self, stage: Stage, losers: Losers) -> None:
        """Begins the removal of the attempts that lost, or adds them to a removal of the same name that no slice has
        reached yet. A name whose writes are committed one after the other therefore has at most two removals."""
        number, before = next(reversed(self._losers.get(losers.name, {}).items()), (0, None))
        begun = number == next(iter(self._removals), 0) and self._place != BEGIN
        if before is None or begun or before.write > losers.write:
            self.begin(stage, Removal(RemovalKind.WRITE, list(losers)))
            return
        removal = Removal(RemovalKind.WRITE, list(losers))
        self._add(number, removal)
        stage.put(META, meta_keys.removal_key(number), _pack(removal))

    def loses(self, name: str, write: int, number: int) -> bool:
        """Returns True if a pending removal discards this attempt (`number`) at the write `write` of the name. The
        attempt already counts as discarded."""
        losers = self._losers.get(name)
        return losers is not None and any(write <= each.write and number < each.below for each in losers.values())

    def go_on(self, stage: Stage, at: bytes | None) -> None:
        """Records the progress of the first removal: the key that its step has reached, or None if the step has
        ended."""
        number, removal = next(iter(self._removals.items()))
        step = self._place.step
        self._place = RemovalPlace(step, at) if at is not None else RemovalPlace(step + 1, keys.FIRST)
        self.changed = True
        if self._place.step < len(removal.steps):
            stage.put(META, meta_keys.REMOVAL_AT_KEY, bytes([self._place.step]) + self._place.at)
            return
        self._place = BEGIN
        self._end(number, removal)
        stage.delete(META, meta_keys.removal_key(number))
        stage.delete(META, meta_keys.REMOVAL_AT_KEY)

    def is_last_of_group(self, group: str) -> bool:
        """Returns True if only one removal of this group name is pending."""
        return len(self.groups[group]) == 1

    def ahead_of(self, family: str, group: str, key: bytes) -> int:
        """Returns the number of the newest removal of the group's name that has not walked past this key yet; 0 if
        there is none."""
        return max([number for number in self.groups.get(group, ()) if self._is_ahead(number, family, key)], default=0)

    def hides(self, kv: KV, family: str, group: str, key: bytes) -> bool:
        """Returns True if the group's row at `key` in the store is to be removed: it was written before the group's
        last deletion."""
        number = self.ahead_of(family, group, key)
        if not number:
            return False
        spared = kv.get(META, meta_keys.spared_key(family, key))
        return spared is None or keys.U64.unpack(spared)[0] < number

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            self.changed = False
            self.pending = len(self._removals)
            self.topics.update(self._gone)
            self.topics.difference_update(self._over)
            self._gone, self._over = [], []

    def _is_ahead(self, number: int, family: str, key: bytes) -> bool:
        steps = self._removals[number].steps
        if family not in steps:
            return False
        if number != next(iter(self._removals)):
            return True
        step, at = self._place
        return (steps.index(family), key) >= (step, at)

    def _add(self, number: int, removal: Removal) -> None:
        self._removals[number] = removal
        if removal.kind is RemovalKind.TOPIC:
            self._gone.append(removal.what)
        elif removal.kind is RemovalKind.GROUP:
            self.groups.setdefault(removal.what, []).append(number)
        elif removal.kind is RemovalKind.WRITE:
            losers = Losers(*removal.what)
            self._losers[losers.name] = {**self._losers.get(losers.name, {}), number: losers}
        else:
            self.expires = True

    def _end(self, number: int, removal: Removal) -> None:
        del self._removals[number]
        if removal.kind is RemovalKind.TOPIC:
            self._over.append(removal.what)
        elif removal.kind is RemovalKind.GROUP:
            self.groups[removal.what].remove(number)
            if not self.groups[removal.what]:
                del self.groups[removal.what]
        elif removal.kind is RemovalKind.WRITE:
            name = Losers(*removal.what).name
            left = {at: losers for at, losers in self._losers[name].items() if at != number}
            if left:
                self._losers[name] = left
            else:
                del self._losers[name]
        else:
            self.expires = False


class RemovalReads(Reads):
    """Read access to what a state holds about pending removals."""

    _removals = family_of(Removals)

    @property
    def removing(self) -> int:
        """The number of deleted topics, deleted groups and other removals that still have rows."""
        return self._removals.pending


def _pack(removal: Removal) -> bytes:
    row: bytes = msgpack.packb([int(removal.kind), removal.what, removal.offsets])
    return row


def _unpack(row: bytes) -> Removal:
    kind, what, offsets = msgpack.unpackb(row)
    return Removal(RemovalKind(kind), what, offsets)
