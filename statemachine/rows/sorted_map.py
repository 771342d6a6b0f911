"""A sorted map that one thread changes while others read and iterate (docs/adr/0085).

A key is looked up as in a dict. In addition, the keys are kept in order in immutable pieces. A change replaces one
piece and the tuple of all pieces, which takes some 5 us with 100,000 keys, where a copy of the map would take
milliseconds. An iteration goes through the pieces that existed when it began: it does not see keys that are added
later, it skips keys that are removed, and it returns values as of the moment in which it reads them.

Only the thread that owns the map calls `put` and `remove`; readers see a plain mapping. No value is None.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from operator import itemgetter
from typing import Any, TypeVar

from raftlog.work import ITEM_UNITS, charge

PIECE_MAX = 512
"""The most keys of one piece; a longer one is divided."""

Key = TypeVar("Key", bound=Any)
"""The type of a map's keys. Keys have an order, and their hash is computed in C (str, int, tuples of these), so that a
look-up in the dict is one step of the interpreter and sees no half-done change."""
Value = TypeVar("Value")

_first = itemgetter(0)


class SortedMap(dict[Key, Value]):
    """A sorted map that one thread changes while others read it. `put` and `remove` are for that thread; any thread may
    use everything else."""

    __slots__ = ("_pieces",)

    def __init__(self, rows: Mapping[Key, Value] | Iterable[tuple[Key, Value]] = ()) -> None:
        super().__init__(rows)
        keys = sorted(dict.keys(self))
        half = PIECE_MAX // 2
        self._pieces = tuple([tuple(keys[at : at + half]) for at in range(0, len(keys), half)])
        """The pieces of keys, ascending; none is empty."""

    def put(self, key: Key, value: Value) -> None:
        """Adds a key or replaces its value."""
        known = key in self
        # before the key gets its place in the order: a reader that finds the key in a piece finds the value
        self[key] = value
        if not known:
            charge(ITEM_UNITS)
            self._insert(key)

    def remove(self, key: Key) -> None:
        """Removes a key, which must be in the map."""
        charge(ITEM_UNITS)
        pieces = self._pieces
        at = bisect_right(pieces, key, key=_first) - 1
        piece = pieces[at]
        place = bisect_left(piece, key)
        left = (*piece[:place], *piece[place + 1 :])
        end = at + 1
        if end < len(pieces) and len(left) + len(pieces[end]) <= PIECE_MAX // 2:
            left, end = left + pieces[end], end + 1
        self._pieces = (*pieces[:at], *((left,) if left else ()), *pieces[end:])
        del self[key]

    def keys_from(self, after: Key | None, count: int) -> list[Key]:
        """Returns up to `count` keys above `after`, ascending; if `after` is None, from the first key on. Takes one
        step per key."""
        pieces = self._pieces
        at = 0 if after is None else max(0, bisect_right(pieces, after, key=_first) - 1)
        found: list[Key] = []
        while at < len(pieces) and len(found) < count:
            piece = pieces[at]
            start = 0 if after is None or found else bisect_right(piece, after)
            found += piece[start : start + count - len(found)]
            at += 1
        charge(ITEM_UNITS * (1 + len(found)))  # charged by the keys found: a map may have fewer than `count`
        return found

    def rank(self, key: Key) -> int | None:
        """Returns the number of keys below `key`; None if the map does not have it. Takes one step per piece."""
        if key not in self:
            return None
        pieces = self._pieces
        charge(1 + (len(pieces) >> 4))
        at = max(0, bisect_right(pieces, key, key=_first) - 1)
        return sum([len(piece) for piece in pieces[:at]]) + bisect_left(pieces[at], key)

    def key_at(self, rank: int) -> Key:
        """Returns the key that has `rank` keys below it. Raises IndexError if the map has no more keys than that. Takes
        one step per piece."""
        pieces = self._pieces
        charge(1 + (len(pieces) >> 4))
        for piece in pieces:
            if rank < len(piece):
                return piece[rank]
            rank -= len(piece)
        raise IndexError(rank)

    def _insert(self, key: Key) -> None:
        pieces = self._pieces
        if not pieces:
            self._pieces = ((key,),)
            return
        at = max(0, bisect_right(pieces, key, key=_first) - 1)
        piece = pieces[at]
        place = bisect_left(piece, key)
        piece = (*piece[:place], key, *piece[place:])
        half = len(piece) // 2
        divided = (piece,) if len(piece) <= PIECE_MAX else (piece[:half], piece[half:])
        self._pieces = (*pieces[:at], *divided, *pieces[at + 1 :])

    # -- iteration, not by the dict's own iterators, which raise an error when the map changes

    def __iter__(self) -> Iterator[Key]:
        for piece in self._pieces:
            yield from piece

    def keys(self) -> KeysView[Key]:  # type: ignore[override]  # a view over __iter__, not the dict's
        """Returns a view of the keys, as a dict does."""
        return KeysView(self)

    def values(self) -> ValuesView[Value]:  # type: ignore[override]  # the same
        """Returns a view of the values, as a dict does; values of removed keys are skipped."""
        return _Values(self)

    def items(self) -> ItemsView[Key, Value]:  # type: ignore[override]  # the same
        """Returns a view of the items, as a dict does; removed keys are skipped."""
        return _Items(self)


class _Items(ItemsView[Key, Value]):
    def __init__(self, rows: SortedMap[Key, Value]) -> None:
        super().__init__(rows)
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        for key in self._rows:
            if (value := self._rows.get(key)) is not None:
                yield key, value


class _Values(ValuesView[Value]):
    def __init__(self, rows: SortedMap[Any, Value]) -> None:
        super().__init__(rows)
        self._rows = rows

    def __iter__(self) -> Iterator[Value]:
        for key in self._rows:
            if (value := self._rows.get(key)) is not None:
                yield value
