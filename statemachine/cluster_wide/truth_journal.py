"""The journal of the truth. The *truth* is the data that all groups of brokers have in common; the journal says which
of it changed (docs/adr/0108).

The truth consists of *names*, each of a kind: a topic, a consumer group, a user and so on. Each change of a name gets
the next *version* and a journal row with version and name. It replaces the name's earlier row, so there are as many
rows as names. When a name ends (is deleted), it gets a row for its end. That row stays if a new object of the same name
is made: a group that copies sees the end first, and does not mistake the new object for the old one. Rows of ends stay
until every group has confirmed them.

Only the first group of a cluster keeps a journal, from the entry on that adds a second group. Names that existed before
that entry get their rows in slices (truth.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import msgpack

from statemachine.commands import U63, Command, CommandResult, done
from statemachine.family import Family, LaterRows, applies
from statemachine.levels import GROUPS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

FORGOTTEN_MAX = 1_000
"""The most rows of ends that one command forgets."""

TruthName = str | int | tuple[int, int, str] | tuple[int, bytes]
"""A name of the truth. That of a user is its id, that of a rule (user id, policy, resource), that of a token (user id,
SHA-256), that of a group of brokers its number."""


class TruthKind(IntEnum):
    """The kinds of names. Values are in rows: never renumber. Slices go through them in this order."""

    TOPIC = 1
    GROUP = 2
    """The settings of a consumer group."""
    OFFSETS = 3
    """The committed offsets of a consumer group that was deleted. The journal records only their end."""
    USER = 4
    RULE = 5
    TOKEN = 6
    ACCESS = 7
    """The mode and the key of access control, under the name ""."""
    SETTING = 8
    """A key of the configuration."""
    BROKER_GROUP = 9
    QUOTA = 10
    """The quota of a subject. Slices reach this kind only if a row of this or the next kind exists: then every node
    knows the kind."""
    LEARNT = 11
    """The learnt limits of a topic, under the name (number of the import, topic); their head has the name (0, b"")."""


class TruthChange(NamedTuple):
    """A row of the journal: the newest change of a name, or its newest end."""

    version: int
    kind: TruthKind
    name: TruthName
    ended: bool


class SlicePlace(NamedTuple):
    """The place that slices have reached: all names of earlier kinds have rows, and of this kind those up to `after`.
    If `after` is None, the next slice begins with the first name of the kind."""

    kind: TruthKind
    after: TruthName | None


class ForgetEnds(Command, tag="forget_ends", frozen=True):
    """Removes rows of ends up to the version, which every group has confirmed: the oldest, at most FORGOTTEN_MAX."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    version: U63


class TruthJournal(Family):
    """The journal. Families whose rows belong to the truth call `note`, `end` and `drop` on the apply thread. The three
    do nothing in a group that keeps no journal. Any thread may use `version`, `forgotten`, `oldest_end`, `is_kept`,
    `is_ready`, `changes`, `is_newest` and `followed_from`."""

    ROWS = ((META, meta_keys.JOURNAL_KEY), (META, meta_keys.TRUTH_PREFIX))
    LATER_ROWS = (
        LaterRows(GROUPS_LEVEL, META, meta_keys.JOURNAL_KEY),
        LaterRows(GROUPS_LEVEL, META, meta_keys.TRUTH_PREFIX),
    )

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        row = kv.get(META, meta_keys.JOURNAL_KEY)
        version, forgotten, at = (0, 0, None) if row is None else msgpack.unpackb(row, use_list=False)
        self._version: int = version
        self._forgotten: int = forgotten
        self._at = None if at is None else SlicePlace(TruthKind(at[0]), at[1])
        self._kept = row is not None
        self._rows: dict[tuple[TruthKind, TruthName], int] = {}
        """The version of the row of each name, with the changes of the batch being applied."""
        self._ends: dict[tuple[TruthKind, TruthName], int] = {}
        """The version of the newest end of each name, versions ascending, with the changes of the batch being
        applied."""
        for change in self._scan(0, keys.U64_MAX):
            (self._ends if change.ended else self._rows)[change.kind, change.name] = change.version
        self.changed: bool = True
        self.publish()

    # -- reads, any thread

    def changes(self, after: int) -> Iterator[TruthChange]:
        """Yields the changes with versions above `after`, ascending, up to `version` as of this call."""
        return self._scan(after + 1, self.version + 1)

    def is_newest(self, version: int) -> bool:
        """Returns True if no later change of the name has taken the place of this one. Data that the caller read of the
        name before this call are then as of that version."""
        return self._kv.get(META, meta_keys.truth_key(version)) is not None

    def followed_from(self, group: int) -> int:
        """Returns the lowest version, apart from 0, from which a group of brokers may continue its copy: that of the
        newest forgotten end. Returns 0 for a group that was added after that end was recorded: the group never got a
        name that had ended before, so it cannot have missed an end."""
        is_newer = self._rows.get((TruthKind.BROKER_GROUP, group), 0) > self.forgotten
        return 0 if is_newer else self.forgotten

    # -- called on the apply thread only

    @property
    def place(self) -> SlicePlace | None:
        """The place that slices have reached, with the changes of the batch being applied; None if nothing is left to
        do, or no journal is kept."""
        return self._at

    def begin(self, stage: Stage) -> None:
        """Begins the journal. It must not have begun."""
        self._kept = True
        self.go_on(stage, SlicePlace(TruthKind.TOPIC, None))

    def go_on(self, stage: Stage, at: SlicePlace | None) -> None:
        """Records the place that slices have reached; `at` is None once all names have rows."""
        self._at = at
        self._put_head(stage)

    def has(self, kind: TruthKind, name: TruthName) -> bool:
        """Returns True if the name has a row, with the changes of the batch being applied."""
        return (kind, name) in self._rows

    def note(self, stage: Stage, kind: TruthKind, name: TruthName) -> None:
        """Gives the next version to a name that was changed or created."""
        if self._kept:
            self._remove(stage, self._rows, kind, name)
            self._add(stage, self._rows, kind, name)

    def end(self, stage: Stage, kind: TruthKind, name: TruthName) -> None:
        """Records the end of a name under the next version."""
        if self._kept:
            self._remove(stage, self._rows, kind, name)
            self._remove(stage, self._ends, kind, name)
            self._add(stage, self._ends, kind, name)

    def drop(self, stage: Stage, kind: TruthKind, name: TruthName) -> None:
        """Removes the journal row of a name that ends together with another one (a user's rule, for example). Only the
        other one gets a row for its end."""
        if self._kept:
            self._remove(stage, self._rows, kind, name)

    @applies(ForgetEnds)
    def forget(self, stage: Stage, command: ForgetEnds) -> CommandResult:
        """Removes the rows of ends up to the command's version, the oldest first, at most FORGOTTEN_MAX. The result's
        value is True if more of them are left."""
        going: list[tuple[TruthKind, TruthName]] = []
        more = False
        for each, version in self._ends.items():
            if version > command.version:
                break
            if len(going) == FORGOTTEN_MAX:
                more = True
                break
            going.append(each)
        for kind, name in going:
            self._forgotten = self._ends[kind, name]
            self._remove(stage, self._ends, kind, name)
        if going:
            self._put_head(stage)
        return done(more)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.changed = False
        self.is_kept = self._kept
        """True if a journal is kept: changes of the truth get rows."""
        self.is_ready = self._kept and self._at is None
        """True if a journal is kept and all names have rows."""
        self.oldest_end = next(iter(self._ends.values()), 0)
        """The version of the oldest end whose row still exists; 0 if there is none."""
        self.forgotten = self._forgotten
        """The version of the newest end that was forgotten. A group whose copy has reached a version below it, other
        than 0, may have missed ends, and must not continue that copy (`followed_from`)."""
        self.version = self._version
        """The version of the newest change; 0 if there is none."""

    def _scan(self, start: int, end: int) -> Iterator[TruthChange]:
        for key, row in self._kv.scan(META, meta_keys.truth_key(start), meta_keys.truth_key(end)):
            kind, name, ended = msgpack.unpackb(row, use_list=False)
            yield TruthChange(meta_keys.truth_version(key), TruthKind(kind), name, ended)

    def _add(
        self, stage: Stage, rows: dict[tuple[TruthKind, TruthName], int], kind: TruthKind, name: TruthName
    ) -> None:
        self._version += 1
        rows[kind, name] = self._version
        stage.put_new(META, meta_keys.truth_key(self._version), msgpack.packb([kind, name, rows is self._ends]))
        self._put_head(stage)

    def _remove(
        self, stage: Stage, rows: dict[tuple[TruthKind, TruthName], int], kind: TruthKind, name: TruthName
    ) -> None:
        version = rows.pop((kind, name), None)
        if version is not None:
            stage.delete(META, meta_keys.truth_key(version))

    def _put_head(self, stage: Stage) -> None:
        at: Any = None if self._at is None else list(self._at)
        stage.put(META, meta_keys.JOURNAL_KEY, msgpack.packb([self._version, self._forgotten, at]))
        self.changed = True
