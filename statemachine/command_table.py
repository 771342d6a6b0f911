"""The table of all commands, collected from the families of rows, and the functions that read commands from entries."""

from __future__ import annotations

from typing import Final

from raftlog.types import EntryType
from statemachine.commands import CommandReader, Found
from statemachine.families import FAMILIES

_READER: Final = CommandReader([kind for family in FAMILIES for kind in family.COMMANDS])
COMMANDS: Final = _READER.kinds
"""The classes of all commands by their names."""
unpack: Final = _READER.unpack
unpack_change: Final = _READER.unpack_change


def in_entry(kind: int, payload: bytes) -> list[Found]:
    """Returns the commands of a COMMAND or CHANGE entry; [] for an entry of another type. Raises ValueError if the
    payload is malformed."""
    if kind == EntryType.CHANGE:
        return unpack_change(payload)[1]
    return unpack(payload) if kind == EntryType.COMMAND else []
