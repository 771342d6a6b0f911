"""Commands: the content of a COMMAND entry (one msgpack array) and of the effects of a MESSAGES entry.

A command is `[name, argument...]`. Each has a class, beside the family of rows that applies it (`family.py`); the class
says the name, the arguments and their types. `command_table.py` lists all of them and reads them from entries. The
leader decides when it proposes a command, and apply answers with a result. Only the result of a command that a client
sent may be an error. No result depends on a clock.

A CHANGE entry (from level 12 on) holds `[author, [command, ...]]`: commands that a person asked for. The author is a
text for people, of at most 200 characters.

No command removes rows without a bound (removals.py): delete_topic, delete_group and expire begin a removal, which
slices carry out (trim.py), and so does commit_write if many attempts lose. lock_queues does not remove the group's
expired locks; expire does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgpack
import msgspec
from msgspec import Meta
from msgspec.inspect import type_info
from msgspec.structs import astuple

from raftlog.format_versions import BASELINE
from raftlog.work import charge_text
from raftmq_wire.names import NAME

AUTHOR_LENGTH_MAX = 200
NO_OWNER = 0
"""The user id in rows that no authenticated user owns; equal to `statemachine.access.users.NOBODY`."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""A whole number from 0 on. msgpack has none above 2**64 - 1."""
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
NumberFrom1 = Annotated[int, Meta(ge=1)]
TEXT_LENGTH_MAX = 256
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
"""A text for people: an author, a reason, a label."""


class Command(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """The base of all commands. The tag of a class is the command's name, and its fields are the arguments in their
    order. Both are in every log: never change them, their number or their types. A command with other arguments has
    another name, and a level above those of all releases.

    Fields have no default values, so that a command without all of its arguments is not valid. An argument of the type
    `object` is checked by the family, only where the state asks for it.
    """

    LEVEL: ClassVar[int] = BASELINE
    """The level that the cluster must have before a leader may propose the command."""
    OF_TRUTH: ClassVar[bool] = False
    """True if the command changes what all groups of brokers have in common (docs/adr/0108). Only the first group's log
    takes such a command; the result in others is `refused`."""


class Invalid(NamedTuple):
    """A command in an entry whose name is known and whose arguments its class does not accept. Its result is
    `invalid`."""

    name: str
    why: str


class Unknown(NamedTuple):
    """A command in an entry whose name this version does not know. It stops the node."""

    name: object


Found = Command | Invalid | Unknown
"""A command as it is found in an entry."""


def is_same(owner: int, user: int) -> bool:
    """Returns True if a row of `owner` may belong to `user`: both ids are equal, or one of them is NO_OWNER."""
    return owner == user or NO_OWNER in (owner, user)


def name_of(kind: type[Command]) -> str:
    """Returns the name of the commands of a class."""
    return str(kind.__struct_config__.tag)


def level_of(commands: Iterable[Command]) -> int:
    """Returns the level that the cluster must have before all of these commands may be proposed."""
    return max([command.LEVEL for command in commands], default=BASELINE)


class CommandResult(NamedTuple):
    """The result of one command, the same on every replica.

    `code` is "" or one of: exists (with `ok`: if_absent was set and one exists, which is `value`; without: the name is
    taken), reset (with `ok`: commits of queues that were reset are left out), not_found, conflict (the command was made
    from a state that has changed since), refused (the state does not allow the change, or the group of brokers does not
    take the command: `Command.OF_TRUTH`), invalid (`value` says why); committed, incomplete, full, prepared
    (staged_writes.py, prepared_writes.py).
    """

    ok: bool
    code: str
    value: Any


class InvalidCommandError(ValueError):
    """The arguments of a command are not valid. The command's result is then `invalid`; the exception never leaves
    apply."""


def done(value: Any = None) -> CommandResult:
    """Returns the result of a command that took effect."""
    return CommandResult(True, "", value)


def not_found(what: str) -> CommandResult:
    """Returns the result of a command about something that does not exist. Nothing changed."""
    return CommandResult(False, "not_found", what)


def invalid(why: str) -> CommandResult:
    """Returns the result of a command whose arguments are not valid. Nothing changed."""
    return CommandResult(False, "invalid", why)


# -- checks of values, for what the types of fields cannot express

T = TypeVar("T")
_AS_THEY_ARE = (bytes,)
"""The types that msgspec must not convert, so that it does not decode a str as the base64 form of bytes."""


def converted(value: object, kind: type[T]) -> T:
    """Converts `value`, as msgpack unpacked it, to the type `kind`. Raises InvalidCommandError if it does not fit."""
    try:
        return msgspec.convert(value, kind, builtin_types=_AS_THEY_ARE)
    except msgspec.ValidationError as error:
        raise InvalidCommandError(str(error)) from None


def checked_int(value: Any, what: str, low: int, high: int) -> int:
    """Returns `value` if it is an int in low..high; otherwise raises InvalidCommandError."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidCommandError(f"{what} must be a whole number in {low}..{high}, not {value!r}")
    return value


def checked_str(value: Any, what: str) -> str:
    """Returns `value` if it is a str; otherwise raises InvalidCommandError."""
    if type(value) is not str:
        raise InvalidCommandError(f"{what} must be a text, not {value!r}")
    return value


def checked_name(value: Any, what: str, length_max: int) -> str:
    """Returns `value` if it is a name of 1 to `length_max` letters, digits and % | _ -; otherwise raises
    InvalidCommandError."""
    name = checked_str(value, what)
    if not 0 < len(name) <= length_max:
        raise InvalidCommandError(f"a {what} has 1 to {length_max} characters, not {len(name)}")
    if not NAME.fullmatch(name):
        raise InvalidCommandError(f"{what} {name!r} may hold only letters, digits and % | _ -")
    return name


def checked_bool(value: Any, what: str) -> bool:
    """Returns `value` if it is a bool; otherwise raises InvalidCommandError."""
    if type(value) is not bool:
        raise InvalidCommandError(f"{what} must be true or false, not {value!r}")
    return value


def checked_str_map(value: Any, what: str) -> dict[str, str]:
    """Returns `value`, keys sorted, if it maps str to str; otherwise raises InvalidCommandError."""
    if type(value) is not dict or not all(type(k) is str and type(v) is str for k, v in value.items()):
        raise InvalidCommandError(f"{what} must map texts to texts, not {value!r}")
    return dict(sorted(value.items()))


def check_fields(config: Mapping[str, object], known: frozenset[str]) -> None:
    """Raises InvalidCommandError if the map has a key that is not in `known`."""
    unknown = [key for key in config if key not in known]
    if unknown:
        raise InvalidCommandError(f"config has unknown fields {unknown!r}; known are {', '.join(sorted(known))}")


# -- packing commands into bytes

_ARRAY_16 = 0xDC
"""The first byte of a msgpack array with a count of 16 bits. Arrays with a shorter count have a lower first byte, with
a longer count a higher one."""
_PLACE = re.compile(r"\$\[(\d+)\]")
"""A pattern that finds the number of an argument in an error text of msgspec; 0 is the command's name."""


def pack(commands: Sequence[Command]) -> bytes:
    """Packs commands as the payload of a COMMAND entry or the effects section of a MESSAGES entry.

    Raises ValueError, OverflowError or TypeError for values that msgpack cannot encode: integers beyond 64 bits, text
    that is not valid Unicode, too many levels.
    """
    # msgspec is not used here: it packs deeper nesting than `CommandReader` unpacks, and such an entry would stop every
    # node.
    rows = [(command.__struct_config__.tag, *astuple(command)) for command in commands]
    packed: bytes = msgpack.packb(rows, use_bin_type=True)
    return packed


def pack_bare(commands: Sequence[Command]) -> bytes:
    """Packs the commands back to back, without their count, as a part for `join`. Raises like `pack`."""
    return pack(commands)[len(_array_header(len(commands))) :]


def join(count: int, parts: Iterable[bytes]) -> bytes:
    """Joins parts made by `pack_bare` into what `pack` would return for all their `count` commands, without packing any
    of them again."""
    return b"".join((_array_header(count), *parts))


def extend(packed: bytes, commands: Sequence[Command]) -> bytes:
    """Returns what `pack` would return for the commands in `packed`, which `pack` made (or b"" for none), followed by
    `commands`. Raises like `pack`."""
    if not packed:
        return pack(commands)
    count, size = _count_in(packed)
    return join(count + len(commands), (packed[size:], pack_bare(commands)))


def _array_header(count: int) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(count)
    return header


def _count_in(packed: bytes) -> tuple[int, int]:
    """Returns the number of commands that `pack` has packed, and the size of the header of their array in bytes."""
    first = packed[0]
    if first < _ARRAY_16:
        return first & 0x0F, 1
    size = 3 if first == _ARRAY_16 else 5
    return int.from_bytes(packed[1:size], "big"), size


def pack_change(author: str, packed: bytes) -> bytes:
    """Returns the payload of a CHANGE entry. `packed`: the commands, as `pack` returns them."""
    return b"".join((_array_header(2), msgpack.packb(author[:AUTHOR_LENGTH_MAX]), packed))


# -- unpacking commands from bytes


class CommandReader:
    """Reads commands of the given classes from entries. Each is read on its own, so that an invalid command does not
    affect others."""

    def __init__(self, kinds: Iterable[type[Command]]) -> None:
        self.kinds: Mapping[str, type[Command]] = {name_of(kind): kind for kind in kinds}
        """The classes of the commands by their names."""
        self._readers = {name: (kind, _as_they_are(kind)) for name, kind in self.kinds.items()}

    def unpack(self, data: bytes) -> list[Found]:
        """Unpacks the commands in `data`, which `pack` made; [] for b"". Raises ValueError unless the bytes are an
        array of arrays."""
        return self._found_in(_unpacked(data)) if data else []

    def unpack_change(self, data: bytes) -> tuple[str, list[Found]]:
        """Returns the author and the commands of a CHANGE entry. Raises ValueError if the payload is malformed."""
        found = _unpacked(data)
        if not isinstance(found, list) or len(found) != 2:
            raise ValueError("not an author with commands")
        author, commands = found
        if type(author) is not str or len(author) > AUTHOR_LENGTH_MAX:
            raise ValueError("the author is no text of at most 200 characters")
        return author, self._found_in(commands)

    def _found_in(self, commands: object) -> list[Found]:
        if not isinstance(commands, list):
            raise ValueError("not an array of commands")
        readers = self._readers
        found: list[Found] = []
        for command in commands:
            if not isinstance(command, list) or not command:
                raise ValueError("not an array of commands")
            name = command[0]
            reader = readers.get(name) if isinstance(name, str) else None
            if reader is None:
                found.append(Unknown(name))
                continue
            kind, as_they_are = reader
            try:
                found.append(msgspec.convert(command, kind, builtin_types=as_they_are))
            except msgspec.ValidationError as error:
                found.append(Invalid(name, _why(kind, command, str(error))))
        return found


def _as_they_are(kind: type[Command]) -> tuple[type, ...] | None:
    """Returns the argument `builtin_types` for `msgspec.convert`. It is None for a class without fields of bytes,
    because the argument costs time."""
    return _AS_THEY_ARE if "BytesType" in str(type_info(kind)) else None


def _why(kind: type[Command], command: list[Any], said: str) -> str:
    """Returns the reason why the command is not valid: the text of msgspec, in which the argument's name replaces its
    number."""
    name, arguments = name_of(kind), kind.__struct_fields__
    if len(command) != 1 + len(arguments):
        return f"{name} takes {len(arguments)} arguments, not {len(command) - 1}"
    return f"{name}: {_PLACE.sub(lambda place: arguments[int(place[1]) - 1], said, count=1)}"


def _unpacked(data: bytes) -> object:
    charge_text(len(data))
    try:
        found: object = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except TypeError as error:  # raised for a map whose key is itself an array or a map
        raise ValueError(str(error)) from error
    return found
