"""The items of one list as JSON, until the page is full."""

from __future__ import annotations

from typing import Final

import msgspec

from cluster.admin.call import Call
from cluster.admin.cost import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from cluster.admin.pieces import Pieces
from raftlog.work import charge, charge_text

ITEM_UNITS: Final = 20
"""Work of one item of a page, its text aside."""


class Page:
    """The items of one list, as JSON. A page that is full ends before the item that it has no room for."""

    def __init__(self, call: Call, items_max: int = PAGE_ITEMS_MAX, bytes_max: int = PAGE_BYTES_MAX) -> None:
        self._call = call
        self.items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self.size = 0
        self.parts: list[bytes] = []

    @property
    def left(self) -> int:
        """Bytes for which there is room."""
        return max(0, self._bytes_max - self.size)

    @property
    def full(self) -> bool:
        """Whether no item fits any more."""
        return self.items >= self.items_max or self.size >= self._bytes_max

    async def turn(self, units: int = 0) -> None:
        """Called before an item is made: waits for the caller's turn, and counts the item's work."""
        await self._call.breathe()
        charge(ITEM_UNITS + units)

    def add(self, view: msgspec.Struct) -> bool:
        """Whether the item is on the page; the first one always is. For items that are small."""
        return self.add_parts([msgspec.json.encode(view)])

    def add_parts(self, parts: list[bytes]) -> bool:
        """The same, of an item that is encoded already."""
        size = 1 + sum(map(len, parts))
        if self.items and (self.full or size > self.left):
            return False
        charge_text(size)
        if self.items:
            self.parts.append(b",")
        self.parts += parts
        self.items += 1
        self.size += size
        return True

    def answer(self, view: msgspec.Struct, field: str) -> Pieces:
        """The view with the items in its list `field`, which is empty."""
        before, after = around(view, field, b"[]")
        return Pieces([before, b"[", *self.parts, b"]", after])


def around(view: msgspec.Struct, field: str, value: bytes) -> tuple[bytes, bytes]:
    """The JSON of a view before and behind the value of a field. No text can look like the field: its quotes are
    escaped."""
    mark = b'"%s":' % field.encode()
    before, found, after = msgspec.json.encode(view).partition(mark + value)
    assert found, f"{type(view).__name__} has no field {field} with {value!r}"
    return before + mark, after
