"""Groups of brokers: the numbers and names of the Raft groups of a cluster, and the number of aliases of each.

(The word group alone means a consumer group in this package.) A cluster without rows of this family has one group, and
its name is that of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Final, NamedTuple, Protocol, Self

import msgpack
from msgspec import Meta

from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import Command, CommandResult, InvalidCommandError, done
from statemachine.family import Families, Family, LaterRows, applies
from statemachine.levels import GROUPS_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,127}")
ALIASES_MAX: Final = 99
"""The most aliases of a group. A route has a row for each."""

Aliases = Annotated[int, Meta(ge=1, le=ALIASES_MAX)]


class BrokerGroup(NamedTuple):
    """A group of brokers."""

    name: str
    aliases: int
    """The number of aliases of each group: `name-1` to `name-aliases`. The same in all groups of a cluster."""


class Scans(Protocol):
    """The rows of a state, of a running node or of a copy."""

    def scan(self, family: str, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Yields the rows with start <= key < end, ascending."""


def read_groups(rows: Scans) -> dict[int, BrokerGroup]:
    """Returns the groups that a state has rows of, by number; none as long as the cluster has one."""
    return {
        keys.broker_group_number(key): BrokerGroup(*msgpack.unpackb(row))
        for key, row in rows.scan(META, *keys.BROKER_GROUPS)
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


class BrokerGroups(Family):
    """The groups of brokers. `by_number` is replaced and never changed, so any thread may read it."""

    ROWS = ((META, keys.BROKER_GROUP_PREFIX),)
    LATER_ROWS = (LaterRows(GROUPS_LEVEL, META, keys.BROKER_GROUP_PREFIX),)

    def __init__(self, kv: KV, journal: TruthJournal, group: int = FIRST_GROUP) -> None:
        """`group`: the number of the group whose state it is."""
        self._journal = journal
        self._own = group
        self._groups = read_groups(kv)
        self.changed: bool = True
        self.by_number: Mapping[int, BrokerGroup] = {}
        """The groups by number; empty as long as the cluster has one."""
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes the family of a state."""
        return cls(families.kv, families[TruthJournal], families.group)

    @property
    def own(self) -> int:
        """The number of the group whose state it is."""
        return self._own

    def exists(self, number: int) -> bool:
        """Returns True if there is such a group, with the changes of the batch being applied (apply thread only)."""
        return number == FIRST_GROUP or number in self._groups

    @applies(AddBrokerGroup)
    def add(self, stage: Stage, command: AddBrokerGroup) -> CommandResult:
        """Adds a group. The second one begins the journal of the truth; the result's value is the BrokerGroup. The
        group counts as added once the journal is ready (`TruthJournal.is_ready`)."""
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

    def copy(self, stage: Stage, number: int, group: BrokerGroup) -> None:
        """Puts a group as it is."""
        self._groups[number] = group
        self.changed = True
        stage.put(META, keys.broker_group_key(number), msgpack.packb(list(group)))
        self._journal.note(stage, TruthKind.BROKER_GROUP, number)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.by_number, self.changed = dict(self._groups), False


def usual_name(first: str, number: int) -> str:
    """Returns the name of a further group for which none is given. `first`: the name of the first group."""
    return f"{first}-g{number:02}"


def checked_name(name: str) -> str:
    """Returns `name` if a group of brokers may have it. Raises InvalidCommandError."""
    if not NAME.fullmatch(name):
        raise InvalidCommandError(f"a group of brokers has a name of letters, digits and . _ -, not {name!r:.100}")
    return name


def _check_apart(name: str, other: str) -> None:
    """Raises InvalidCommandError if the names are equal, or one reads as an alias of the other."""
    if name == other:
        raise InvalidCommandError(f"there is a group {name} already")
    for one, two in ((name, other), (other, name)):
        if one.startswith(two + "-") and one[len(two) + 1 :].isdigit():
            raise InvalidCommandError(f"{one} would read as an alias of {two}")
