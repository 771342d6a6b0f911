"""Learnt limits: what a topic usually gets in an hour, stored as rows of the replicated state (docs/adr/0117).

Learnt limits come as one file, which is too large for one command. Loading a file is an *import*. Its number is
computed from the digest of the file. Each topic of the file is a row under that number, so the rows of two files never
mix. The *head* is one row that names the import in force and the number of its topics. It is written last, and refused
unless all of these topics have rows: an incomplete import is never in force. Rows of other imports are removed in
bounded steps.

The state machine itself never uses a limit. A leader does (`cluster.replication.learnt_use`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import msgpack
from msgspec import Meta

from raftmq_wire.learnt_file import DAY, TOPICS_MAX, VALUE_MAX, WEEK, Digest, hour_of
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import U63, U64, Command, CommandResult, InvalidCommandError, Text, converted, done
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import QUOTAS_LEVEL
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import check_topic_name

ROWS_MAX: Final = 2 * TOPICS_MAX
"""The most topic rows of all imports together, whether they are in force or not."""
TOPICS_PER_COMMAND: Final = 64
SWEPT_MAX: Final = 256
"""The most rows that one command removes."""


class LearntMode(StrEnum):
    """The use that a leader makes of learnt limits when a topic exceeds them."""

    SHADOW = "shadow"
    """The leader only counts what is over the limits."""
    ON = "on"
    """The leader also counts, and in an overload it restricts those topics first that are over their limits."""


ImportId = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Hours = Annotated[Sequence[Annotated[int, Meta(ge=0, le=VALUE_MAX)]], Meta(min_length=DAY, max_length=WEEK)]
"""Limits per second, one for each hour of the day (24) or of the week (168); 0: no limit."""
TopicName = Annotated[str, Meta(max_length=255)]


def import_of(digest: str) -> int:
    """Returns the number of the import of a file with this SHA-256, in hexadecimal digits."""
    return int(digest[:16], 16) >> 1 or 1


class LearntHead(NamedTuple):
    """The head of an import. The import is in force once all its topics have rows."""

    digest: str
    """The SHA-256 of the import's file, in hexadecimal digits."""
    topics: int
    mode: LearntMode
    made_ms: int
    """Wall clock at which the file was made."""
    first_ms: int
    last_ms: int
    """`first_ms` and `last_ms`: store times of the first and the last message from which the limits were learnt."""
    ends_ms: int
    """Log time from which on the import is no longer used."""
    changed_ms: int
    """Log time at which the import was put in force."""
    changed_by: str

    def row(self) -> HeadRow:
        """Returns the fields of the row."""
        return self[:]


HeadRow = tuple[Digest, Annotated[int, Meta(ge=1, le=TOPICS_MAX)], LearntMode, U64, U64, U64, U64, U64, Text]


class LearntLimits(NamedTuple):
    """The head and the rows of the import in force."""

    head: LearntHead
    rows: Mapping[str, bytes]
    """Topic -> its packed row: the limits in messages and in bytes, by hour."""

    def of(self, topic: str, log_ms: int) -> tuple[int, int]:
        """Returns the (messages, bytes) a second that the topic usually stays below in the hour of `log_ms`; 0: no
        limit."""
        row = self.rows.get(topic)
        if row is None:
            return 0, 0
        messages, size = msgpack.unpackb(row)
        return messages[hour_of(log_ms, len(messages))], size[hour_of(log_ms, len(size))]


class PutLearnt(Command, tag="put_learnt", frozen=True):
    """Adds topics to an import that is not in force yet."""

    LEVEL: ClassVar[int] = QUOTAS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    number: ImportId
    topics: Annotated[Sequence[tuple[TopicName, Hours, Hours]], Meta(min_length=1, max_length=TOPICS_PER_COMMAND)]
    """(topic, messages a second by hour, bytes a second by hour) of each topic."""


class SetLearnt(Command, tag="set_learnt", frozen=True):
    """Puts another import in force, all of whose topics must have rows. If `head` is None, no import is in force any
    more."""

    LEVEL: ClassVar[int] = QUOTAS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    head: HeadRow | None


class SweepLearnt(Command, tag="sweep_learnt", frozen=True):
    """Removes rows of imports that are not in force."""

    LEVEL: ClassVar[int] = QUOTAS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    rows: Annotated[int, Meta(ge=1, le=SWEPT_MAX)]
    """The most rows that the command removes."""


ImportName = tuple[int, bytes]
"""The name of a row in the journal: (number of the import, topic)."""
HEAD: Final[ImportName] = (0, b"")
"""The name of the head's row."""


class Learnt(Family):
    """The learnt limits. `in_force` and `has_rows` are replaced and never changed, so any thread may read them."""

    ROWS = ((META, meta_keys.LEARNT_PREFIX),)
    LATER_ROWS = (LaterRows(QUOTAS_LEVEL, META, meta_keys.LEARNT_PREFIX),)

    def __init__(self, kv: KV, journal: TruthJournal) -> None:
        self._kv, self._journal = kv, journal
        self._rows: dict[ImportName, bytes] = {}
        self._head: LearntHead | None = None
        for key, row in kv.scan(META, *meta_keys.LEARNT):
            name = meta_keys.learnt_name(key)
            if name == HEAD:
                self._head = _head(msgpack.unpackb(row))
            else:
                self._rows[name] = row
        self.changed: bool = True
        self.in_force: LearntLimits | None = None
        self.has_rows = False
        """True if any row of learnt limits exists, also one of an import that is not in force."""
        self.coming = 0
        """The number of rows of imports that are not in force."""
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TruthJournal])

    @property
    def is_there(self) -> bool:
        """True if any row of learnt limits exists, with the changes of the batch being applied (apply thread only)."""
        return bool(self._rows) or self._head is not None

    @property
    def names(self) -> list[ImportName]:
        """The names of all rows, ascending, with the changes of the batch being applied (apply thread only)."""
        return sorted([*self._rows, HEAD] if self._head is not None else self._rows)

    def rows_of(self, digest: str) -> list[tuple[str, bytes]]:
        """Returns (topic, row) of the topics of an import, ascending, as stored now. Any thread may call it."""
        number = import_of(digest)
        found = self._kv.scan(META, meta_keys.learnt_key(number, b""), meta_keys.learnt_key(number + 1, b""))
        return [(meta_keys.learnt_name(key)[1].decode(), row) for key, row in found]

    @applies(PutLearnt)
    def put(self, stage: Stage, command: PutLearnt) -> CommandResult:
        """Adds topics to an import, all of the command's or none. The result is `conflict` if a row exists with other
        limits, or if the import is in force and would get further rows; `refused` above ROWS_MAX. Otherwise its value
        is the number of the import's rows."""
        wanted = {}
        for topic, messages, size in command.topics:
            name = command.number, check_topic_name(topic).encode()
            wanted[name] = _packed(messages, size)
        fresh = {name: row for name, row in wanted.items() if self._rows.get(name) != row}
        if fresh and (fresh.keys() & self._rows.keys() or command.number == self._number):
            told = "another import has the number of this one, and other limits; nothing was changed"
            return CommandResult(False, "conflict", told)
        if len(self._rows) + len(fresh) > ROWS_MAX:
            told = f"all imports together have at most {ROWS_MAX} topics; nothing was changed"
            return CommandResult(False, "refused", told)
        for name, row in fresh.items():
            self._put(stage, name, row)
        return done(self._count(command.number))

    @applies(SetLearnt)
    def set(self, stage: Stage, command: SetLearnt) -> CommandResult:
        """Puts an import in force, or ends the present one. The result is `conflict` if topics of the import are
        missing. Otherwise its value is True if anything changed."""
        if command.head is None:
            was = self._head is not None
            self.copy(stage, HEAD, None)
            return done(was)
        head = _head(command.head)
        there = self._count(import_of(head.digest))
        if there != head.topics:
            told = f"{there} of the {head.topics} topics of this import are there; nothing was changed"
            return CommandResult(False, "conflict", told)
        if self._head is not None and head[:-2] == self._head[:-2]:
            return done(False)
        self.copy(stage, HEAD, head)
        return done(True)

    @applies(SweepLearnt)
    def sweep(self, stage: Stage, command: SweepLearnt) -> CommandResult:
        """Removes rows of imports that are not in force, at most `command.rows`. The result's value is the number of
        such rows that are left."""
        # Sorted, because the order in `_rows` differs after a restart, and every node must remove the same rows (seed
        # 983000003).
        going = sorted(name for name in self._rows if name[0] != self._number)
        for name in going[: command.rows]:
            self.copy(stage, name, None)
        return done(max(0, len(going) - command.rows))

    @property
    def _number(self) -> int:
        """The number of the import in force; 0 if there is none."""
        return 0 if self._head is None else import_of(self._head.digest)

    def _count(self, number: int) -> int:
        return sum(each == number for each, _ in self._rows)

    def _put(self, stage: Stage, name: ImportName, row: bytes) -> None:
        self._rows[name] = row
        self.changed = True
        stage.put(META, meta_keys.learnt_key(*name), row)
        self._journal.note(stage, TruthKind.LEARNT, name)

    def copy(self, stage: Stage, name: ImportName, row: LearntHead | bytes | None) -> None:
        """Stores a row that was copied from the first group, or removes the row of this name if `row` is None. `name`
        and `row` are as `parse_learnt` returns them; the head has the name HEAD."""
        if isinstance(row, bytes):
            self._put(stage, name, row)
            return
        if name == HEAD:
            known, self._head = self._head is not None, row
        else:
            known = self._rows.pop(name, None) is not None
        if row is not None:
            stage.put(META, meta_keys.learnt_key(*name), msgpack.packb(row.row()))
            self._journal.note(stage, TruthKind.LEARNT, name)
        elif known:
            stage.delete(META, meta_keys.learnt_key(*name))
            self._journal.end(stage, TruthKind.LEARNT, name)
        self.changed = True

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            self.changed = False
            self.has_rows = self.is_there
            number, head = self._number, self._head
            own = {name[1].decode(): row for name, row in self._rows.items() if name[0] == number}
            self.coming = len(self._rows) - len(own)
            # Another group of brokers may get the head before the last rows of its import. Until then no import is in
            # force there.
            self.in_force = LearntLimits(head, own) if head is not None and len(own) == head.topics else None


def _head(row: Any) -> LearntHead:
    head = LearntHead(*row)
    return head._replace(mode=LearntMode(head.mode))


def _packed(messages: Sequence[int], size: Sequence[int]) -> bytes:
    if len(messages) not in (DAY, WEEK) or len(size) != len(messages):
        raise InvalidCommandError(f"a topic has {DAY} or {WEEK} numbers of messages, and as many of bytes")
    packed: bytes = msgpack.packb([list(messages), list(size)])
    return packed


def parse_learnt(name: object, row: object) -> tuple[ImportName, LearntHead | bytes | None]:
    """Checks the name and the row of learnt limits that were copied from the first group of brokers, and returns both
    in the form that `Learnt.copy` takes. Raises InvalidCommandError if one of them is malformed."""
    number, topic = _converted(name, tuple[U63, bytes])
    if (number, topic) == HEAD:
        return HEAD, None if row is None else _head(_converted(row, HeadRow))
    try:
        check_topic_name(topic.decode())
    except UnicodeDecodeError as error:
        raise InvalidCommandError(f"{topic!r:.100} is no name of a topic") from error
    if row is None:
        return (number, topic), None
    return (number, topic), _packed(*_converted(row, tuple[Hours, Hours]))


def _converted(value: object, kind: Any) -> Any:
    return converted(value, kind)


class LearntReads(Reads):
    """Read access to what a state holds about learnt limits."""

    learnt = family_of(Learnt)
    """The learnt limits of the cluster."""


def names_above(learnt: Learnt, after: object) -> Iterator[ImportName]:
    """Yields the names of rows above the name `after`, ascending; all names if `after` is None (apply thread only)."""
    for name in learnt.names:
        if after is None or name > after:  # type: ignore[operator]
            yield name
