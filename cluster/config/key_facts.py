"""Defines facts that the type of a configuration key states besides its value's type and range
(`cluster.config.ranges`): if the key belongs to the cluster or to a host, if a change needs a restart, and the unit of
the value.

Each field of a section of `cluster.config.config.Config` has `of_cluster(...)` or `of_host(...)` in its type. All sets
of keys are computed from that, so there are no lists to keep up to date. A field without either stops every program
that reads the configuration.
"""

from __future__ import annotations

import typing
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec


class Unit(StrEnum):
    """The unit of a number, as a word for people."""

    MS = "milliseconds"
    HOURS = "hours"
    MINUTES = "minutes"
    TICKS = "ticks (raft.tick_ms)"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes per second"
    PERCENT = "percent"
    ENTRIES = "entries of the log"
    MESSAGES = "messages"
    SLOW_MICROSECONDS = "microseconds of a slow core"
    NONE = ""
    """A count, or a number that identifies something, such as a port."""


class KeyFacts(NamedTuple):
    """The facts about one key."""

    is_clusters: bool
    """True if the key is equal on every node and kept in the log; False if it belongs to one host."""
    reload: bool
    """True if a change takes effect without a restart."""
    unit: Unit | None
    """The unit of the value; None if the value is no number."""


def of_cluster(unit: Unit | None = None) -> KeyFacts:
    """Returns the facts of a key that belongs to the cluster. A change takes effect on every node at once."""
    return KeyFacts(is_clusters=True, reload=True, unit=unit)


def of_host(unit: Unit | None = None, *, reload: bool = False) -> KeyFacts:
    """Returns the facts of a key that belongs to one host. `reload`: True if a reload is enough for a new value
    (`cluster.runtime.service_lifecycle.Part`)."""
    return KeyFacts(is_clusters=False, reload=reload, unit=unit)


CLUSTER: Final = of_cluster()
"""The facts of a key without a unit (a switch, a name or a text) that belongs to the cluster."""
HOST: Final = of_host()
"""The facts of a key without a unit that belongs to one host; a change needs a restart."""


def plain(kind: Any) -> Any:
    """Returns the type of a key without its annotations: `bool` for Annotated[bool, ...]."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def meta_of(kind: Any) -> msgspec.Meta | None:
    """Returns the bounds in the type of a key; None if it has none."""
    return next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, msgspec.Meta)), None)


def facts_of(key: str, kind: Any) -> KeyFacts:
    """Returns the facts in `kind`, the type of the key. Raises TypeError unless there are facts exactly once, and a
    unit if and only if the value is a number."""
    found = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, KeyFacts)]
    if len(found) != 1:
        raise TypeError(f"{key}: the type of its field must say whose it is: Annotated[..., of_cluster() or of_host()]")
    if (found[0].unit is None) == (plain(kind) is int):
        raise TypeError(f"{key}: a number has a unit, which may be Unit.NONE, and other values have none")
    return found[0]


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns "section.name" -> field, with type and default, for all keys of a configuration
    (`cluster.config.config.Config`) in the order of the sections. Tables in a list count as a section."""
    found = {}
    for section in msgspec.structs.fields(kind):
        table = typing.get_args(section.type)[0] if typing.get_origin(section.type) is tuple else section.type
        for field in msgspec.structs.fields(table):
            found[f"{section.name}.{field.name}"] = field
    return found


@cache
def facts(kind: type[msgspec.Struct]) -> dict[str, KeyFacts]:
    """Returns "section.name" -> the facts of the key, for all keys of the configuration class `kind`. Raises TypeError
    as `facts_of` does."""
    return {key: facts_of(key, field.type) for key, field in fields_of(kind).items()}
