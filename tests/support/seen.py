"""What readers see of a state in memory, so that two states can be compared. It follows from the families and their
classes of reads: who adds a family adds nothing here.

Seen are the public attributes and properties of each family, the properties of the state, and what its reads answer to
all combinations of `ARGUMENTS`. A read with another argument is left out, so what it answers should stand in an
attribute, or the argument here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import isfunction, signature
from itertools import product
from typing import Any, Final

from statemachine.broker_state import BrokerState
from statemachine.families import FAMILIES

ARGUMENTS: Final[Mapping[str, Sequence[Any]]] = {
    "topic_id": range(1, 12),
    "queue_id": range(2),
    "queue_offset": (0, 5),
    "count_max": (2,),
    "timestamp_ms": (1_005_000,),
    "upper": (False, True),
    "group": ("g0", "g1", "g2"),
    "producer_id": [bytes([number]) * 16 for number in range(3)],
    "key_hash": range(4),
    "body_crc": (7,),
}
"""Values for the arguments of reads, by name. Those of drawn logs (tests/statemachine/conftest.py) are among them."""
NOT_SEEN: Final[Mapping[str, str]] = {
    "changed": "of the batch being applied",
    "grown": "of the last batch",
    "read_session": "is no read: it fills the cache",
    "session_at_hand": "depends on the cache",
}
"""Public members that are not compared, and why."""


def seen(state: BrokerState) -> dict[tuple[Any, ...], object]:
    """(class of the family or of the reads, member, arguments...) -> value, of everything that is read from memory."""
    found: dict[tuple[Any, ...], object] = {}
    for kind in FAMILIES:
        family = state[kind]
        for name in [*vars(family), *_members(kind, property)]:
            if not name.startswith("_") and name not in NOT_SEEN:
                found[kind, name] = _plain(getattr(family, name))
    for owner in type(state).__mro__[:-1]:
        for name in _members(owner, property):
            found[owner, name] = _plain(getattr(state, name))
        for name, read in _members(owner, object).items():
            names = [*signature(read).parameters][1:] if isfunction(read) else ["no read"]
            if ARGUMENTS.keys() >= set(names):
                for arguments in product(*(ARGUMENTS[each] for each in names)):
                    found[owner, name, *arguments] = _plain(getattr(state, name)(*arguments))
    return found


def _members(owner: type, kind: type) -> dict[str, Any]:
    """The public members that a class itself defines."""
    return {
        name: member
        for name, member in vars(owner).items()
        if isinstance(member, kind) and not name.startswith("_") and name not in NOT_SEEN
    }


def _plain(value: object) -> object:
    """The value in a form in which equal ones are equal."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, Iterator) else value
