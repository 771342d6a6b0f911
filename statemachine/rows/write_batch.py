"""The write batch of the entries being applied, while it is built. The batch can be read as if it had been written: a
command that reads rows sees the rows of earlier entries in the same batch. The result in the store therefore does not
depend on how entries are grouped into batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from statemachine.rows.kv import KV, Batch


class Stamp(NamedTuple):
    """The time and the author of a change."""

    now_ms: int
    """Log time of the entry with the change."""
    author: str
    """A person's name, or an address; "" if no person asked for the change."""


class Stage:
    """Rows that will be written over those of a KV in one batch. `rows[family][key]` is the new value, None for a
    removed row.

    When the batch is written, ranges are removed first and rows are set after that. `delete_range` therefore drops rows
    in its range that were put before.
    """

    __slots__ = ("_kv", "_ranges", "before", "rows", "stamp")

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._ranges: list[tuple[str, bytes, bytes]] = []
        self.rows: defaultdict[str, dict[bytes, bytes | None]] = defaultdict(dict)
        self.before: defaultdict[str, dict[bytes, bytes | None]] = defaultdict(dict)
        """Family -> key -> the value that the staged row has in the KV, if a caller knew it. It saves a read when the
        sums are computed (running_digest.py)."""
        self.stamp = Stamp(0, "")
        """Log time and author of the entry whose commands are being applied."""

    def begin(self, stamp: Stamp) -> None:
        """Begins the commands of an entry."""
        self.stamp = stamp

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Sets a row."""
        self.rows[family][key] = value

    def put_new(self, family: str, key: bytes, value: bytes) -> None:
        """Sets a row whose key does not exist in the KV yet."""
        self.rows[family][key] = value
        self.before[family].setdefault(key, None)

    def delete(self, family: str, key: bytes) -> None:
        """Removes a row."""
        self.rows[family][key] = None

    def replace(self, family: str, key: bytes, value: bytes, before: bytes) -> None:
        """Sets a row which the KV has with the value `before`, unless this stage has changed it."""
        self.rows[family][key] = value
        self.before[family].setdefault(key, before)

    def unput(self, family: str, key: bytes, value: bytes | None = None) -> None:
        """Removes a row whose key is put only once, ever. If that put is still in this stage, neither is written.
        `value`: the row's value in the KV, if the caller knows it."""
        rows = self.rows[family]
        if rows.pop(key, None) is None:
            rows[key] = None
            if value is not None:
                self.before[family].setdefault(key, value)

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Removes every row with start <= key < end."""
        rows = self.rows[family]
        for key in [key for key in rows if start <= key < end]:
            del rows[key]
        self._ranges.append((family, start, end))

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value, with the staged changes; None if there is no such row."""
        rows = self.rows[family]
        if key in rows:
            return rows[key]
        return None if self._in_removed_range(family, key) else self._kv.get(family, key)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows with start <= key < end, with the changes staged before this call, ascending. They are read
        when the caller asks for them, so there may be millions; writing during the iteration is allowed."""
        staged = {key: value for key, value in self.rows[family].items() if start <= key < end}
        ranges = [(low, high) for ranged, low, high in self._ranges if ranged == family]
        stored = (
            row
            for row in self._kv.scan(family, start, end)
            if row[0] not in staged and not any(low <= row[0] < high for low, high in ranges)
        )
        return merge(stored, sorted([(key, value) for key, value in staged.items() if value is not None]))

    def removed(self, kv: KV) -> Iterator[tuple[str, bytes, bytes]]:
        """Yields, as (family, key, value), the rows of `kv` that a removed range contains and that `rows` does not set
        or remove. Each row comes once, and is read when the caller asks for it."""
        at: tuple[str, bytes] = ("", b"")
        for family, start, end in sorted(self._ranges):
            first = max(start, at[1]) if at[0] == family else start
            if first >= end:
                continue
            rows = self.rows[family]
            for key, value in kv.scan(family, first, end):
                if key not in rows:
                    yield family, key, value
            at = family, end

    def batch(self) -> Batch:
        """Returns everything staged, as one batch."""
        batch = Batch()
        for family, start, end in self._ranges:
            batch.delete_range(family, start, end)
        ops = batch.ops
        for family, rows in self.rows.items():
            if rows:
                ops += [(family, key, value, None) for key, value in rows.items()]
        return batch

    def _in_removed_range(self, family: str, key: bytes) -> bool:
        return any(f == family and start <= key < end for f, start, end in self._ranges)
