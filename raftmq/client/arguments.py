"""Checks of arguments that users pass. A wrong argument raises in the call that has it, before anything is sent.
Without the checks, most wrong arguments would fail later on the client's event loop, where no caller sees the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from raftmq_wire.names import check_name


def check_seconds(name: str, value: float, *, zero: bool = False) -> None:
    """Raises TypeError unless the value is a number, and ValueError unless it is above 0 (with `zero`, also 0)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}= is a number of seconds, not {value!r}")
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name}={value!r}: give {'0 or more' if zero else 'more than 0'} seconds")


def check_count(name: str, value: int, *, least: int = 0) -> None:
    """Raises TypeError unless the value is an int, and ValueError if it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}= is an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name}={value!r}: give at least {least}")


def check_text(name: str, value: str | None) -> None:
    """Raises TypeError unless the value is a str or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}= is a str, not {value!r}")


def check_named(kind: str, name: str) -> None:
    """Raises TypeError unless the name is a str, and ValueError unless it is a valid name; `kind` is "topic" or
    "group"."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} is a str, not {name!r}")
    check_name(kind, name)


def names_of(kind: str, names: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the names as a tuple without duplicates; a single str becomes a tuple of one. Raises TypeError if `names`
    is neither a str nor iterable."""
    if isinstance(names, str):
        return (names,)
    try:
        return tuple(dict.fromkeys(names))
    except TypeError:
        raise TypeError(f"the {kind}s are a str, or several of them, not {names!r}") from None
