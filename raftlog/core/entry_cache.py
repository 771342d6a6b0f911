"""The newest entries of the log, in memory, bounded in bytes."""

from __future__ import annotations

from raftlog.types import Entry

_COMPACT_AT = 512


class EntryCache:
    """A contiguous run of entries that ends at the tail of the log.

    A list with a moving head: appends, head eviction and slices all cost the entries they touch.
    """

    __slots__ = ("_bytes_max", "_entries", "_head", "bytes", "first_index")

    def __init__(self, next_index: int, bytes_max: int) -> None:
        self.first_index = next_index
        """Index of the oldest entry held; the next index to come when nothing is held."""
        self.bytes = 0
        self._entries: list[Entry] = []
        self._head = 0
        self._bytes_max = bytes_max

    def append(self, entry: Entry) -> None:
        """Adds the new tail."""
        self._entries.append(entry)
        self.bytes += 64 + len(entry.payload)

    def evict(self, persisted_index: int) -> None:
        """Drops the oldest entries while over the limit; never one that only memory holds."""
        while self.bytes > self._bytes_max and self.first_index <= persisted_index and self._head < len(self._entries):
            self.bytes -= self._entries[self._head].size
            self._head += 1
            self.first_index += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._entries):
            del self._entries[: self._head]
            self._head = 0

    def truncate_from(self, index: int) -> None:
        """Forgets `index` and everything above; an empty cache then starts at `index`."""
        at = self._head + max(index - self.first_index, 0)
        self.bytes -= sum(entry.size for entry in self._entries[at:])
        del self._entries[at:]
        self.first_index = min(self.first_index, index)

    def get(self, index: int) -> Entry | None:
        """The entry at `index` if it is held."""
        at = index - self.first_index
        if at < 0 or self._head + at >= len(self._entries):
            return None
        return self._entries[self._head + at]

    def slice(self, low: int, high: int) -> list[Entry]:
        """Entries [low, high), all held."""
        base = self._head - self.first_index
        return self._entries[base + low : base + high]

    def slice_bytes(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries [low, high), all held, cut before the one that passes `bytes_max`; at least one."""
        base = self._head - self.first_index
        entries = self._entries
        end = base + high
        total = 0
        for at in range(base + low, end):
            total += 64 + len(entries[at].payload)
            if total > bytes_max:
                end = max(at, base + low + 1)
                break
        return entries[base + low : end]
