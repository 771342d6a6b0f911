"""Removals: rows that are removed slice by slice, because there may be millions of them (docs/adr/0082).

A command that removes much, such as the deletion of a topic, only *begins a removal*: it writes a row of `meta` that
says what to remove. From that entry on readers no longer see these rows. The leader then proposes slices, which are
applied one after the other; each walks over a bounded number of rows. Removals are carried out in the order in which
they began, each in steps, one step per range of rows. The progress of the first one is a row, too. A new leader, a
restarted node or a restored one therefore continues where the rows say.

A slice names no removal. One that comes late, or twice, does the next piece of the work, or finds none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from statemachine.rows import keys
from statemachine.rows.kv import CQ, DEDUP, KV, LOCKS, META, OFFSETS, RESETS
from statemachine.rows.stage import Stage


class RemovalKind(IntEnum):
    """The kind of rows that a removal removes. Values are in rows: never renumber."""

    TOPIC = 1
    """Everything under the id of a deleted topic."""
    GROUP = 2
    """A deleted group's rows in each queue."""
    EXPIRE = 3
    """Rows that were not used since some log time."""
    WRITE = 4
    """Attempts at a staged write that did not win. Their messages are removed like those of any discarded attempt."""


SESSIONS, UNIQUE = "sessions", "unique"
"""Steps over rows of the family `dedup`."""
ATTEMPTS = "attempts"
"""The step over attempts at staged writes, rows "a" of the family `trans`."""

STEPS: Mapping[RemovalKind, tuple[str, ...]] = {
    RemovalKind.TOPIC: (CQ, DEDUP, OFFSETS, LOCKS, RESETS),
    RemovalKind.GROUP: (LOCKS, RESETS, OFFSETS),
    RemovalKind.EXPIRE: (SESSIONS, UNIQUE, LOCKS),
    RemovalKind.WRITE: (ATTEMPTS,),
}
"""The steps of each kind, in their order. Most have the name of the family whose rows they walk over. Numbers of steps
are in rows: never reorder."""


class Removal(NamedTuple):
    """The rows to remove."""

    kind: RemovalKind
    what: Any
    """A topic's id, a group's name, a log time in milliseconds, or a list with the fields of `Losers`."""
    offsets: bool = True
    """True if a group's committed offsets are removed too."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The removal's steps, in order."""
        steps = STEPS[self.kind]
        return steps if self.offsets else steps[:-1]


class Losers(NamedTuple):
    """Attempts at the writes of a name up to this write, as far as they were opened before it was committed."""

    name: str
    write: int
    below: int
    """An upper bound: the numbers of the attempts are below it."""


class Place(NamedTuple):
    """The place that the first removal has reached: the step has nothing more to do below the key `at`."""

    step: int
    at: bytes


class Done(NamedTuple):
    """The result of one step of a slice."""

    rows: int
    """The number of rows that the step walked over."""
    at: bytes | None
    """The key at which the next slice continues; None if the step is finished."""


BEGIN = Place(0, keys.FIRST)


class Removals:
    """All pending removals. Any thread may use `topics`, `pending` and `loses`; everything else belongs to the apply
    lane."""

    def __init__(self, kv: KV) -> None:
        self._removals: OrderedDict[int, Removal] = OrderedDict()
        """The removals by number, in the order in which they are carried out."""
        self.groups: dict[str, list[int]] = {}
        """The numbers of the pending removals for each group's name, at this point of the run."""
        self._losers: dict[str, dict[int, Losers]] = {}
        """Name of staged writes -> number of the removal -> its losers, at this point of the run. Values are replaced
        as wholes. Another thread may see those of a run whose batch is being written."""
        self.topics: set[int] = set()
        """Ids of topics whose rows are being removed, which readers do not see. Changed in place."""
        self._gone: list[int] = []
        self._over: list[int] = []
        """Ids that the current run adds to `topics`, and ids that it removes."""
        self.expires = False
        """True if a removal of the kind EXPIRE is pending, at this point of the run."""
        for key, row in kv.scan(META, *keys.REMOVALS):
            self._add(keys.removal_number(key), _unpack(row))
        row_at = kv.get(META, keys.REMOVAL_AT_KEY) if self._removals else None
        self._place = BEGIN if row_at is None else Place(row_at[0], row_at[1:])
        self._changed = True
        self.pending = 0
        """The number of removals that are not finished."""
        self.publish()

    @property
    def first(self) -> Removal | None:
        """The removal on which the next slice works, at this point of the run."""
        return next(iter(self._removals.values()), None)

    @property
    def place(self) -> Place:
        """The place that the first removal has reached."""
        return self._place

    def begin(self, stage: Stage, removal: Removal) -> None:
        """Begins the removal, as the last one in the order."""
        number = next(reversed(self._removals), 0) + 1
        self._add(number, removal)
        stage.put(META, keys.removal_key(number), _pack(removal))
        self._changed = True

    def begin_write(self, stage: Stage, losers: Losers) -> None:
        """Begins the removal of these attempts, or adds them to a removal of the same name that no slice has reached
        yet. A name whose writes are committed one after the other therefore has at most two removals."""
        number, before = next(reversed(self._losers.get(losers.name, {}).items()), (0, None))
        begun = number == next(iter(self._removals), 0) and self._place != BEGIN
        if before is None or begun or before.write > losers.write:
            self.begin(stage, Removal(RemovalKind.WRITE, list(losers)))
            return
        removal = Removal(RemovalKind.WRITE, list(losers))
        self._add(number, removal)
        stage.put(META, keys.removal_key(number), _pack(removal))

    def loses(self, name: str, write: int, number: int) -> bool:
        """Returns True if this attempt at that write of the name will be discarded. It already counts as discarded."""
        losers = self._losers.get(name)
        return losers is not None and any(write <= each.write and number < each.below for each in losers.values())

    def go_on(self, stage: Stage, at: bytes | None) -> None:
        """Records the progress of the first removal: the key that its step has reached, or None at the end of the
        step."""
        number, removal = next(iter(self._removals.items()))
        step = self._place.step
        self._place = Place(step, at) if at is not None else Place(step + 1, keys.FIRST)
        self._changed = True
        if self._place.step < len(removal.steps):
            stage.put(META, keys.REMOVAL_AT_KEY, bytes([self._place.step]) + self._place.at)
            return
        self._place = BEGIN
        self._end(number, removal)
        stage.delete(META, keys.removal_key(number))
        stage.delete(META, keys.REMOVAL_AT_KEY)

    def is_last_of_group(self, group: str) -> bool:
        """Returns True if only one removal of the name is pending."""
        return len(self.groups[group]) == 1

    def ahead_of(self, family: str, group: str, key: bytes) -> int:
        """Returns the number of the newest removal of the group's name that has not passed this key yet; 0 if there is
        none."""
        return max([number for number in self.groups.get(group, ()) if self._is_ahead(number, family, key)], default=0)

    def hides(self, kv: KV, family: str, group: str, key: bytes) -> bool:
        """Returns True if the store's row of the group will be removed: it was written before the deletion that began
        the newest removal of the group."""
        number = self.ahead_of(family, group, key)
        if not number:
            return False
        spared = kv.get(META, keys.spared_key(family, key))
        return spared is None or keys.U64.unpack(spared)[0] < number

    def publish(self) -> None:
        """Shows the run's changes to readers; called when its batch is written."""
        if self._changed:
            self._changed = False
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


def _pack(removal: Removal) -> bytes:
    row: bytes = msgpack.packb([int(removal.kind), removal.what, removal.offsets])
    return row


def _unpack(row: bytes) -> Removal:
    kind, what, offsets = msgpack.unpackb(row)
    return Removal(RemovalKind(kind), what, offsets)
