"""Families of rows: what the state machine consists of.

A family is one kind of rows with all that belongs to it: the commands that change them, the view of them in memory that
readers see, and the changes of the batch being applied. It registers its commands by the decorator `applies`;
`command_table.py` lists the families, and `broker_state.py` calls them in order, within one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import ClassVar, TypeVar

from statemachine.commands import Command, CommandResult
from statemachine.rows.write_batch import Stage

_Family = TypeVar("_Family", bound="Family")
_Command = TypeVar("_Command", bound=Command)
_Method = Callable[[_Family, Stage, _Command], CommandResult]

Handler = Callable[[Stage, Command], CommandResult]
"""A method that applies commands of one class: it adds their rows to the batch. It raises InvalidCommandError if an
argument is not valid, before anything has changed, and InvariantViolationError if the node must stop."""

_APPLIES = "applies"


class Family:
    """The base of all families. Only the apply thread calls its members."""

    COMMANDS: ClassVar[Mapping[type[Command], str]] = {}
    """The commands that the family applies: class -> name of the method, which `applies` marks."""
    changed: object = True
    """False, or empty, if the batch being applied has changed nothing that `publish` has to show. Many batches save the
    call then."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: member for name, member in vars(cls).items() if isinstance(member, FunctionType)}
        marks = {name: vars(member).get(_APPLIES) for name, member in own.items()}
        cls.COMMANDS = {**cls.COMMANDS, **{kind: name for name, kind in marks.items() if kind is not None}}

    def handlers(self) -> dict[type[Command], Handler]:
        """Returns the methods that apply the family's commands, by class of command."""
        return {kind: getattr(self, name) for kind, name in self.COMMANDS.items()}

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        raise NotImplementedError


def applies(kind: type[_Command]) -> Callable[[_Method[_Family, _Command]], _Method[_Family, _Command]]:
    """Registers the decorated method of a family for commands of a class."""

    def register(method: _Method[_Family, _Command]) -> _Method[_Family, _Command]:
        vars(method)[_APPLIES] = kind
        return method

    return register
