"""The range of each number in the configuration: within it the cluster goes on serving, and its memory is bounded.

Three bounds stand beside a key's type. What the type itself refuses (`Meta.ge` and `le`) never was a value: a file with
it is not loaded. What lies outside the *range* is no longer accepted: a change that names it is refused. But a file or
a log may have it from an earlier release: the node goes by the nearest value of the range and tells it as a finding.
Outside the *usual* values a key is allowed and dangerous: a change needs `force`, and the value is a finding.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

C = TypeVar("C", bound=msgspec.Struct)
"""A whole configuration (`cluster.config.config.Config`, whose types stand beside these ranges)."""
_RANGE = "range"


class Range(NamedTuple):
    """The values that one key may have; both ends belong to the range."""

    low: int
    high: int
    usual_low: int
    usual_high: int
    zero: bool
    """0 is allowed as well: it stands for "none" or "never"."""
    why: str
    """The effect of an unusual value."""

    def has(self, value: int) -> bool:
        """Returns True if the value is allowed."""
        return self.low <= value <= self.high or (self.zero and value == 0)

    def nearest(self, value: int) -> int:
        """The allowed value that stands in for this one. A number below the range is no 0: that would mean "none"."""
        return value if self.has(value) else min(max(value, self.low), self.high)

    def is_usual(self, value: int) -> bool:
        """Returns True if the value needs no `force`."""
        return self.usual_low <= value <= self.usual_high or (self.zero and value == 0)


class Held(NamedTuple):
    """A key with a value outside its range, and the value that counts instead."""

    key: str
    value: int
    held: int


def within(
    low: int, high: int, *, usual: tuple[int, int] | None = None, zero: bool = False, why: str = ""
) -> dict[str, Range]:
    """Returns the value for `msgspec.Meta(extra=...)`: the range of a key, and the values in it that are not
    dangerous."""
    usual_low, usual_high = usual or (low, high)
    return {_RANGE: Range(low, high, usual_low, usual_high, zero, why)}


def range_of(kind: Any) -> Range | None:
    """The range in the type of a key; None if the key is no number."""
    arguments = typing.get_args(kind)
    if not arguments or arguments[0] is not int:
        return None
    meta = arguments[1]
    found: Range | None = (meta.extra or {}).get(_RANGE)
    if found is not None:
        return found
    assert meta.ge is not None, kind
    assert meta.le is not None, kind
    low, high = int(meta.ge), int(meta.le)
    return Range(low, high, low, high, zero=False, why="")


@cache
def ranges_of(kind: type[Any]) -> dict[str, Range]:
    """ "section.name" -> range, of every number in the sections of a configuration; not of tables in a list."""
    found = {}
    for section in msgspec.structs.fields(kind):
        if not isinstance(section.type, type):
            continue
        for field in msgspec.structs.fields(section.type):
            if (known := range_of(field.type)) is not None:
                found[f"{section.name}.{field.name}"] = known
    return found


def outside(config: msgspec.Struct) -> Iterator[Held]:
    """The keys whose values are not in their ranges."""
    for key, known in ranges_of(type(config)).items():
        value = attrgetter(key)(config)
        if not known.has(value):
            yield Held(key, value, known.nearest(value))


def hold(config: C) -> C:
    """The configuration with the nearest allowed value for each key that has none. The ranges of keys that depend on
    each other are chosen so that what held between them holds still."""
    for key, _, held in outside(config):
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: held})})
    return config


_DANGEROUS_WORDS = {
    ("modes.flush_disk_type", "ASYNC_FLUSH"): "sends are acknowledged before a majority has them on disk",
    ("modes.broker_role", "ASYNC_MASTER"): "sends are acknowledged before another node has them",
}


def dangers(config: msgspec.Struct) -> dict[str, str]:
    """Key -> what its value does, for each that is allowed and dangerous."""
    found = {key: why for (key, word), why in _DANGEROUS_WORDS.items() if attrgetter(key)(config) == word}
    for key, known in ranges_of(type(config)).items():
        value = attrgetter(key)(config)
        if known.has(value) and not known.is_usual(value):
            found[key] = known.why
    return found
