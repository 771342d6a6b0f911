"""Families of rows: what the state machine consists of.

A family is one kind of rows with all that belongs to it: the commands that change them, the view of them in memory that
readers see, and the changes of the batch being applied. A family's class says all that the state machine needs: `made`
constructs it, the decorators `applies` and `takes` mark the methods that apply its commands and entries, and it
overrides the other hooks as needed. `families.py` lists the families, and `broker_state.py` calls them in order, within
one batch.

The reads that a family offers to others are methods of a class of `Reads` in the family's module, or of the family
itself: `state[Settings]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from raftlog.types import FIRST_GROUP, Entry, EntryType
from statemachine.commands import Command, CommandResult
from statemachine.rows import keys
from statemachine.rows.kv import KV
from statemachine.rows.write_batch import Stage

_Family = TypeVar("_Family", bound="Family")
_Command = TypeVar("_Command", bound=Command)
_Method = Callable[[_Family, Stage, _Command], CommandResult]
_EntryMethod = Callable[[_Family, Stage, Entry], None]

Handler = Callable[[Stage, Command], CommandResult]
"""A method that applies commands of one class: it adds their rows to the batch. It raises InvalidCommandError if an
argument is not valid, before anything has changed, and InvariantViolationError if the node must stop."""
EntryHandler = Callable[[Stage, Entry], None]
"""A method that applies entries of one type. It raises InvariantViolationError or ValueError if the node must stop."""

_APPLIES, _TAKES = "applies", "takes"


class LaterRows(NamedTuple):
    """A kind of rows that may exist only from the level `level` of the cluster on."""

    level: int
    column: str
    prefix: bytes = b""
    """The prefix of the rows' keys; b"" for all keys of the column."""
    is_later: Callable[[bytes], bool] | None = None
    """Takes the value of a row whose key has the prefix. Returns True if the row is of this kind. None if all such rows
    are."""

    def found_in(self, kv: KV) -> bytes | None:
        """Returns the key of the first such row in the store; None if there is none."""
        is_later, rows = self.is_later, kv.scan(self.column, *keys.within(self.prefix))
        found = (key for key, row in rows if is_later is None or is_later(row))
        return next(found, None)


class Family:
    """The base of all families. Only the apply thread calls a member, unless the member's docstring says otherwise."""

    COMMANDS: ClassVar[Mapping[type[Command], str]] = {}
    """The commands that the family applies: class -> name of the method that the decorator `applies` marked."""
    ENTRIES: ClassVar[Mapping[int, str]] = {}
    """The entries that the family applies: type -> name of the method that the decorator `takes` marked."""
    ROWS: ClassVar[tuple[tuple[str, bytes], ...]] = ()
    """The keys that belong to the family: (column, prefix of keys); the prefix b"" means the whole column. No other
    family has keys with these prefixes."""
    LATER_ROWS: ClassVar[tuple[LaterRows, ...]] = ()
    """The rows of the family, or kinds of them, that came with a level above the baseline. The simulator reports one
    that it finds in a state below that level."""
    changed: object = True
    """False or empty if the batch being applied has changed nothing that `publish` has to show. `publish` is then not
    called, which saves many calls."""
    grown: Set[tuple[int, int]] = frozenset()
    """(topic_id, queue_id) of each queue that got messages or was reset by the last batch whose changes the family
    published. A family that has an attribute of this name wakes the consumers that wait for such queues."""

    def __init__(self, kv: KV) -> None:
        """Reads the family's rows."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: vars(member) for name, member in vars(cls).items() if isinstance(member, FunctionType)}
        cls.COMMANDS = {**cls.COMMANDS, **{marks[_APPLIES]: name for name, marks in own.items() if _APPLIES in marks}}
        cls.ENTRIES = {**cls.ENTRIES, **{marks[_TAKES]: name for name, marks in own.items() if _TAKES in marks}}

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes the family of a state. A family that needs other families takes them from `families`; these must not
        need it in turn."""
        return cls(families.kv)

    def handlers(self) -> dict[type[Command], Handler]:
        """Returns the methods that apply the family's commands, by class of command."""
        return {kind: getattr(self, name) for kind, name in self.COMMANDS.items()}

    def entry_handlers(self) -> dict[int, EntryHandler]:
        """Returns the methods that apply entries, by type."""
        return {kind: getattr(self, name) for kind, name in self.ENTRIES.items()}

    def begin_segment(self, stage: Stage, time_ms: int) -> None:
        """Called before the first entry of a segment of the log, which was stored at `time_ms`, is applied."""

    def joined(self, families: tuple[Family, ...]) -> None:
        """Called once, when all families of the state are made. `families` lists them in the order of `FAMILIES`."""

    def topic_deleted(self, stage: Stage, topic_id: int, queues: int) -> None:
        """Called when a topic, which had `queues` queues at last, is deleted, within the entry that does it. A family
        with few rows of a topic removes them here. A family that may have many hides them, and slices remove them
        (removals.py); a new step in `removals.STEPS` needs a new level of the cluster."""

    def end_run(self, stage: Stage) -> None:
        """Called when everything else of the batch is staged."""

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""

    def pinned_position(self, begin: int, end: int) -> int | None:
        """Returns the lowest position in the log to which a row of the family refers, so that the log must be kept from
        there on; None if there is none. It may return a lower one. Any thread may call it.

        `begin`: the position at which the log begins. `end`: the position up to which it was applied at some moment
        before the call.
        """
        return None


class Families:
    """The families of one state. Each is made when it is first asked for; later calls may come from any thread."""

    def __init__(self, kv: KV, known_level: int, group: int = FIRST_GROUP) -> None:
        self.kv = kv
        self.group = group
        """The number of the group of brokers whose state it is."""
        self.known_level = known_level
        """The highest level of a cluster that this version knows."""
        self._made: dict[type[Family], Family] = {}

    def __getitem__(self, kind: type[_Family]) -> _Family:
        found = self._made.get(kind)
        if found is None:
            found = self._made[kind] = kind.made(self)
        return cast(_Family, found)


class Reads:
    """The reads of a state, callable on any thread. A family whose reads callers need by name has a subclass with them,
    and `families.StateReads` inherits from all of these subclasses."""

    FAMILIES: ClassVar[Mapping[str, type[Family]]] = {}
    """The attributes that `family_of` declares: name -> class of the family."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: member.kind for name, member in vars(cls).items() if isinstance(member, _FamilyOf)}
        for name in own:
            delattr(cls, name)  # every state object gets the family as an attribute of its own
        above = [base.FAMILIES for base in cls.__bases__ if issubclass(base, Reads)]
        cls.FAMILIES = {name: kind for families in (*above, own) for name, kind in families.items()}

    def __init__(self, families: Families) -> None:
        self._families = families
        self._kv = families.kv
        for name, kind in self.FAMILIES.items():
            setattr(self, name, families[kind])

    def __getitem__(self, kind: type[_Family]) -> _Family:
        """Returns the state's family of the class `kind`. The docstring of the class says which members any thread may
        use."""
        return self._families[kind]


class _FamilyOf(NamedTuple):
    kind: type[Family]


def family_of(kind: type[_Family]) -> _Family:
    """Declares an attribute of a subclass of `Reads`. Its value is the state's family of the class `kind`."""
    return cast(_Family, _FamilyOf(kind))


def overridden(families: tuple[Family, ...], hook: Callable[..., Any]) -> list[Any]:
    """Returns the bound methods of the families whose classes override `hook`, a method of Family."""
    name = hook.__name__
    return [getattr(family, name) for family in families if getattr(type(family), name) is not hook]


def applies(kind: type[_Command]) -> Callable[[_Method[_Family, _Command]], _Method[_Family, _Command]]:
    """Registers the decorated method of a family as the one that applies commands of the class `kind`."""

    def register(method: _Method[_Family, _Command]) -> _Method[_Family, _Command]:
        vars(method)[_APPLIES] = kind
        return method

    return register


def takes(kind: EntryType) -> Callable[[_EntryMethod[_Family]], _EntryMethod[_Family]]:
    """Registers the decorated method of a family as the one that applies entries of the type `kind`."""

    def register(method: _EntryMethod[_Family]) -> _EntryMethod[_Family]:
        vars(method)[_TAKES] = kind
        return method

    return register
