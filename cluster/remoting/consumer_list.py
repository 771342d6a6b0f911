"""The list of a group's consumers (38) as JSON, built once for all who ask.

When a member joins, each member asks for the list of all: in a group of 2,000, 2,000 answers of 100 KiB. So the text is
kept until the members change. Those who ask while it is built go on with building where another one stopped.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cluster.runtime import metered_json
from raftlog.work import ITEM_UNITS, charge, charge_bytes

if TYPE_CHECKING:
    from cluster.broker.group_members import ConsumerGroup

PIECE = 256
"""Ids that one step encodes."""
_HEAD, _TAIL = b'{"consumerIdList":[', b"]}"


class _List:
    """Of one group."""

    __slots__ = ("body", "building", "version")

    def __init__(self) -> None:
        self.version = -1
        """The group's, of which `body` is."""
        self.body = b""
        self.building: Generator[None] | None = None


class ConsumerLists:
    """Of all groups."""

    def __init__(self) -> None:
        self._lists: WeakKeyDictionary[ConsumerGroup, _List] = WeakKeyDictionary()

    def body(self, group: ConsumerGroup) -> Generator[None, None, bytes]:
        """Steps that return the body of an answer: of the group as it was when they began, or later."""
        found = self._lists.get(group)
        if found is None:
            found = self._lists[group] = _List()
        wanted = group.version
        while found.version < wanted:
            if found.building is None:
                found.building = _build(found, group)
            if next(found.building, True):
                found.building = None
            yield
        return found.body


def _build(found: _List, group: ConsumerGroup) -> Generator[None]:
    version, ids, pieces = group.version, iter(group.members), [_HEAD]
    while piece := list(islice(ids, PIECE)):
        charge(ITEM_UNITS * len(piece))
        if len(pieces) > 1:
            pieces.append(b",")
            yield
        pieces.append(metered_json.encode(piece)[1:-1])
    pieces.append(_TAIL)
    charge_bytes(sum(map(len, pieces)))
    found.body = b"".join(pieces)
    found.version = version
