"""Defines the allowed range of each number in the configuration. With values in the range, the cluster goes on serving,
and its memory is bounded.

A key's type has three kinds of bounds. Values outside `Meta.ge` and `le` were never allowed: a file with one is not
loaded. Values outside the *range* are no longer accepted: a change to one is refused. A file or a log may still have
one from an earlier release; the node then uses the nearest value in the range, and reports a finding. Values outside
the *usual* range are allowed but dangerous: a change to one needs `force`, and it is reported as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from cluster.config.key_facts import meta_of, plain

C = TypeVar("C", bound=msgspec.Struct)
"""The type of a whole configuration (`cluster.config.config.Config`, whose types contain these ranges)."""
_RANGE = "range"


class Range(NamedTuple):
    """The allowed values of one key. Both ends belong to the range."""

    low: int
    high: int
    usual_low: int
    usual_high: int
    zero: bool
    """True if 0 is allowed, too. It means "none" or "never"."""
    why: str
    """The effect of values outside the usual range; "" if there are none."""

    def has(self, value: int) -> bool:
        """Returns True if the value is allowed."""
        return self.low <= value <= self.high or (self.zero and value == 0)

    def nearest(self, value: int) -> int:
        """Returns the allowed value that is nearest to this one. A number below the range becomes the lower end and not
        0, because 0 would mean "none"."""
        return value if self.has(value) else min(max(value, self.low), self.high)

    def is_usual(self, value: int) -> bool:
        """Returns True if a change to this value needs no `force`."""
        return self.usual_low <= value <= self.usual_high or (self.zero and value == 0)


class OutOfRange(NamedTuple):
    """A key whose value is outside its range, that value, and the value that is used instead (`held`)."""

    key: str
    value: int
    held: int


def within(
    low: int, high: int, *, usual: tuple[int, int] | None = None, zero: bool = False, why: str = ""
) -> dict[str, Range]:
    """Returns the dict for `msgspec.Meta(extra=...)` that declares the range `low` to `high` of a key. `usual` are the
    ends of the range that is not dangerous, `zero` allows 0, and `why` is the effect of values that are not usual."""
    usual_low, usual_high = usual or (low, high)
    return {_RANGE: Range(low, high, usual_low, usual_high, zero, why)}


def range_of(kind: Any) -> Range | None:
    """Returns the range in the type of a key; None if the key is no number."""
    if plain(kind) is not int:
        return None
    meta = meta_of(kind)
    assert meta is not None, kind
    found: Range | None = (meta.extra or {}).get(_RANGE)
    if found is not None:
        return found
    assert meta.ge is not None, kind
    assert meta.le is not None, kind
    low, high = int(meta.ge), int(meta.le)
    return Range(low, high, low, high, zero=False, why="")


@cache
def ranges_of(kind: type[Any]) -> dict[str, Range]:
    """Returns "section.name" -> range, for every number in the sections of a configuration. Tables in lists are left
    out."""
    found = {}
    for section in msgspec.structs.fields(kind):
        if not isinstance(section.type, type):
            continue
        for field in msgspec.structs.fields(section.type):
            if (known := range_of(field.type)) is not None:
                found[f"{section.name}.{field.name}"] = known
    return found


def outside(config: msgspec.Struct) -> Iterator[OutOfRange]:
    """Yields the keys whose values are outside their ranges."""
    for key, known in ranges_of(type(config)).items():
        value = attrgetter(key)(config)
        if not known.has(value):
            yield OutOfRange(key, value, known.nearest(value))


def hold(config: C) -> C:
    """Returns the configuration in which each value outside its range is replaced by the nearest allowed one. The
    ranges of related keys are chosen so that relations between values still hold afterwards."""
    for key, _, held in outside(config):
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: held})})
    return config


DANGEROUS_WORDS = {
    ("modes.flush_disk_type", "ASYNC_FLUSH"): "sends are acknowledged before a majority has them on disk",
    ("modes.broker_role", "ASYNC_MASTER"): "sends are acknowledged before another node has them",
    ("replication.degrade", "leader"): "sends are acknowledged before another node has them while the majority is slow",
}
"""(key, word) -> the effect of the word, for values that are words and that are allowed but dangerous."""


def dangers(config: msgspec.Struct) -> dict[str, str]:
    """Returns key -> the effect of its value, for each key with a value that is allowed but dangerous."""
    found = {key: why for (key, word), why in DANGEROUS_WORDS.items() if attrgetter(key)(config) == word}
    for key, known in ranges_of(type(config)).items():
        value = attrgetter(key)(config)
        if known.has(value) and not known.is_usual(value):
            found[key] = known.why
    return found
