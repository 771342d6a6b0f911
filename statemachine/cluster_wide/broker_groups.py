"""Groups of brokers: the numbers and names of the Raft groups of a cluster, and the number of aliases of each.

(The word group alone means a consumer group in this package.) A cluster without rows of this family has one group,
whose name the configuration says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, Self

import msgpack
from msgspec import Meta

from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import U64, Command, CommandResult, InvalidCommandError, converted, done, not_found
from statemachine.family import Families, Family, LaterRows, applies
from statemachine.levels import DRAINS_LEVEL, GROUPS_LEVEL
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,127}")
ALIASES_MAX: Final = 99
"""The most aliases of a group. The answer with a topic's route has a row for each alias."""

Aliases = Annotated[int, Meta(ge=1, le=ALIASES_MAX)]


_FIELDS_OF_ACTIVE = 2
"""The number of fields in the row of an active group."""


class GroupState(IntEnum):
    """The state of a group of brokers for clients. Values are in rows: never renumber."""

    ACTIVE = 0
    DRAINING = 1
    """The group takes no new messages. Consumers read it until no message is left (docs/adr/0113)."""
    RETIRED = 2
    """The group has ended for ever. Its number and its name are never used again."""


class BrokerGroup(NamedTuple):
    """A group of brokers: its name, its aliases and its state."""

    name: str
    aliases: int
    """The number of aliases of each group: `name-1` to `name-aliases`. All groups of a cluster have the same number."""
    state: GroupState = GroupState.ACTIVE
    since_ms: int = 0
    """Log time of the first group at which a group that is not active got its state; 0 for an active one."""

    @property
    def is_active(self) -> bool:
        """True if the group takes new messages."""
        return self.state is GroupState.ACTIVE

    @property
    def is_retired(self) -> bool:
        """True if the group has retired: it has ended for ever."""
        return self.state is GroupState.RETIRED

    def row(self) -> list[str | int]:
        """Returns the fields of the group's row. The row of an active group has the form of level 14, without state and
        time."""
        fields: list[str | int] = [self.name, self.aliases, int(self.state), self.since_ms]
        return fields[:_FIELDS_OF_ACTIVE] if self.is_active else fields


def parse_group(row: object) -> BrokerGroup:
    """Returns the group whose row has these fields. Raises InvalidCommandError if the fields are malformed."""
    fields = _converted(row)
    group = BrokerGroup(checked_name(fields[0]), *fields[1:])
    if group.is_active and len(fields) > _FIELDS_OF_ACTIVE:
        raise InvalidCommandError(f"the row of an active group has {_FIELDS_OF_ACTIVE} fields")
    return group


class Scans(Protocol):
    """Read access to the rows of a state: the store of a running node, or a copy."""

    def scan(self, family: str, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Yields the rows with start <= key < end, ascending."""


def read_groups(rows: Scans) -> dict[int, BrokerGroup]:
    """Reads the groups of a state, by number; {} as long as the cluster has only one group, which has no row."""
    return {
        meta_keys.broker_group_number(key): _unpack_row(row) for key, row in rows.scan(META, *meta_keys.BROKER_GROUPS)
    }


class AddBrokerGroup(Command, tag="add_broker_group", frozen=True):
    """Adds a group of brokers to the cluster."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    number: Annotated[int, Meta(ge=FIRST_GROUP + 1, le=GROUPS_MAX)]
    name: str
    first: tuple[str, Aliases] | None
    """With the second group of a cluster: the name of the first one, and the number of aliases of each group from then
    on. None with all later ones."""


class DrainBrokerGroup(Command, tag="drain_broker_group", frozen=True):
    """Begins to drain a group of brokers, or ends the drain, so that the group takes messages again."""

    LEVEL: ClassVar[int] = DRAINS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    number: Annotated[int, Meta(ge=FIRST_GROUP + 1, le=GROUPS_MAX)]
    draining: bool


class RetireBrokerGroup(Command, tag="retire_broker_group", frozen=True):
    """Retires a group of brokers, whose log is closed (closed_log.py)."""

    LEVEL: ClassVar[int] = DRAINS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    number: Annotated[int, Meta(ge=FIRST_GROUP + 1, le=GROUPS_MAX)]


class BrokerGroups(Family):
    """The groups of brokers. `by_number` is replaced and never changed, so any thread may read it."""

    ROWS = ((META, meta_keys.BROKER_GROUP_PREFIX),)
    LATER_ROWS = (
        LaterRows(GROUPS_LEVEL, META, meta_keys.BROKER_GROUP_PREFIX),
        LaterRows(DRAINS_LEVEL, META, meta_keys.BROKER_GROUP_PREFIX, lambda row: not _unpack_row(row).is_active),
    )

    def __init__(self, kv: KV, journal: TruthJournal, group: int = FIRST_GROUP) -> None:
        """`group`: the number of the group whose state it is."""
        self._journal = journal
        self._own = group
        self._groups = read_groups(kv)
        self.own_is_inactive: bool = is_inactive(self._groups, group)
        """True if the own group drains or has retired, with the changes of the batch being applied (apply thread
        only)."""
        self.changed: bool = True
        self.by_number: Mapping[int, BrokerGroup] = {}
        """The groups by number; empty as long as the cluster has only one group."""
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TruthJournal], families.group)

    @property
    def own(self) -> int:
        """The number of the group whose state it is."""
        return self._own

    def exists(self, number: int) -> bool:
        """Returns True if there is such a group and it has not retired, with the changes of the batch being applied
        (apply thread only)."""
        group = self._groups.get(number)
        return number == FIRST_GROUP if group is None else not group.is_retired

    @property
    def staged(self) -> Mapping[int, BrokerGroup]:
        """The groups by number, with the changes of the batch being applied (apply thread only)."""
        return self._groups

    @applies(AddBrokerGroup)
    def add(self, stage: Stage, command: AddBrokerGroup) -> CommandResult:
        """Adds a group. The second one begins the journal of the truth. The group counts as added once the journal is
        ready (`TruthJournal.is_ready`). The result is `exists` if the number is taken; otherwise its value is the
        BrokerGroup."""
        number, first = command.number, command.first
        if number in self._groups:
            return CommandResult(False, "exists", f"there is a group {number} already")
        if (first is None) != bool(self._groups):
            raise InvalidCommandError(
                "the first group's name and the aliases are given with the second group, and once"
            )
        names = {each.name for each in self._groups.values()} if first is None else {checked_name(first[0])}
        name = checked_name(command.name)
        for other in sorted(names):
            _check_apart(name, other)
        if first is not None:
            self._journal.begin(stage)
            self.copy(stage, FIRST_GROUP, BrokerGroup(*first))
        group = BrokerGroup(name, self._groups[FIRST_GROUP].aliases)
        self.copy(stage, number, group)
        return done(group)

    @applies(DrainBrokerGroup)
    def drain(self, stage: Stage, command: DrainBrokerGroup) -> CommandResult:
        """Begins or ends the drain of a group. If the group already drains, a further drain changes nothing and keeps
        the time. The result is `not_found` if there is no such group, and `refused` if it has retired; otherwise its
        value is the BrokerGroup."""
        group = self._groups.get(command.number)
        if group is None:
            return not_found(f"there is no group {command.number}")
        if group.is_retired:
            return CommandResult(False, "refused", f"group {command.number} has retired, for ever")
        if group.is_active is command.draining:
            group = BrokerGroup(group.name, group.aliases)
            if command.draining:
                group = group._replace(state=GroupState.DRAINING, since_ms=stage.stamp.now_ms)
            self.copy(stage, command.number, group)
        return done(group)

    @applies(RetireBrokerGroup)
    def retire(self, stage: Stage, command: RetireBrokerGroup) -> CommandResult:
        """Retires a group. It need not drain: the drain may have been cancelled after the group's log was closed. A
        group that has retired already is not changed. The result is `not_found` if there is no such group; otherwise
        its value is the BrokerGroup."""
        group = self._groups.get(command.number)
        if group is None:
            return not_found(f"there is no group {command.number}")
        if not group.is_retired:
            group = group._replace(state=GroupState.RETIRED, since_ms=stage.stamp.now_ms)
            self.copy(stage, command.number, group)
        return done(group)

    def copy(self, stage: Stage, number: int, group: BrokerGroup) -> None:
        """Stores a group that was copied from the first group of brokers."""
        self._groups[number] = group
        self.own_is_inactive = is_inactive(self._groups, self._own)
        self.changed = True
        stage.put(META, meta_keys.broker_group_key(number), msgpack.packb(group.row()))
        self._journal.note(stage, TruthKind.BROKER_GROUP, number)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.by_number, self.changed = dict(self._groups), False


def is_inactive(groups: Mapping[int, BrokerGroup], number: int) -> bool:
    """Returns True if the group drains or has retired. `groups`: `BrokerGroups.by_number`."""
    group = groups.get(number)
    return group is not None and not group.is_active


def is_retired(groups: Mapping[int, BrokerGroup], number: int) -> bool:
    """Returns True if the group has retired. `groups`: `BrokerGroups.by_number`."""
    group = groups.get(number)
    return group is not None and group.is_retired


def active_groups(groups: Mapping[int, BrokerGroup]) -> set[int]:
    """Returns the numbers of the groups that take new messages. `groups`: `BrokerGroups.by_number`."""
    return {number for number in (FIRST_GROUP, *groups) if not is_inactive(groups, number)}


def living_groups(groups: Mapping[int, BrokerGroup]) -> set[int]:
    """Returns the numbers of the groups that have not retired. `groups`: `BrokerGroups.by_number`."""
    return {number for number in (FIRST_GROUP, *groups) if not is_retired(groups, number)}


def usual_name(first: str, number: int) -> str:
    """Returns the default name of group `number`, for which no name is given. `first`: the name of the first group."""
    return f"{first}-g{number:02}"


def checked_name(name: str) -> str:
    """Returns `name` if a group of brokers may have it; otherwise raises InvalidCommandError."""
    if not NAME.fullmatch(name):
        raise InvalidCommandError(f"a group of brokers has a name of letters, digits and . _ -, not {name!r:.100}")
    return name


def _unpack_row(row: bytes) -> BrokerGroup:
    name, aliases, *rest = msgpack.unpackb(row)
    return BrokerGroup(name, aliases, GroupState(rest[0]), rest[1]) if rest else BrokerGroup(name, aliases)


def _converted(row: object) -> tuple[Any, ...]:
    """Returns the fields of a row, checked one by one. Raises InvalidCommandError if one is malformed."""
    longer = isinstance(row, (list, tuple)) and len(row) > _FIELDS_OF_ACTIVE
    kind: Any = tuple[str, Aliases, GroupState, U64] if longer else tuple[str, Aliases]
    fields: tuple[Any, ...] = converted(row, kind)
    return fields


def _check_apart(name: str, other: str) -> None:
    """Raises InvalidCommandError if the names of two groups are equal, or one has the form of an alias of the other."""
    if name == other:
        raise InvalidCommandError(f"there is a group {name} already")
    for one, two in ((name, other), (other, name)):
        if one.startswith(two + "-") and one[len(two) + 1 :].isdigit():
            raise InvalidCommandError(f"{one} would read as an alias of {two}")
