"""The cache of the newest entries of the log, bounded in bytes."""

from __future__ import annotations

from raftlog.types import Entry

_OVERHEAD = 512
"""The bytes of memory that an Entry takes besides its payload: the tuple, its integers and the header (measured:
450-500)."""


class EntryCache:
    """The newest entries of the log in memory: a run without gaps that ends at the log's tail.

    It is a plain list: eviction drops an eighth of the limit at once, so that shifting the rest costs little per entry.
    """

    __slots__ = ("bytes", "bytes_max", "entries", "first_index")

    def __init__(self, next_index: int, bytes_max: int) -> None:
        self.first_index = next_index
        """Index of the oldest cached entry; the next index if none is cached."""
        self.bytes = 0
        """The approximate memory of the cached entries, in bytes."""
        self.entries: list[Entry] = []
        """The cached entries, ascending. Only the cache changes it."""
        self.bytes_max = bytes_max
        """The bytes above which `evict` drops entries."""

    def append(self, entry: Entry) -> None:
        """Adds the entry after the last one."""
        self.entries.append(entry)
        self.bytes += _OVERHEAD + len(entry.payload)

    def evict(self, persisted_index: int) -> None:
        """Drops the oldest entries if the cache exceeds its limit; never one that is not on disk yet."""
        if self.bytes <= self.bytes_max:
            return
        target = self.bytes_max - self.bytes_max // 8
        count = 0
        for entry in self.entries:
            if self.bytes <= target or entry.index > persisted_index:
                break
            self.bytes -= _OVERHEAD + len(entry.payload)
            count += 1
        del self.entries[:count]
        self.first_index += count

    def truncate_from(self, index: int) -> None:
        """Forgets the entries at `index` and above. A cache that is empty then starts at `index`."""
        at = max(index - self.first_index, 0)
        self.bytes -= sum(_OVERHEAD + len(entry.payload) for entry in self.entries[at:])
        del self.entries[at:]
        self.first_index = min(self.first_index, index)

    def get(self, index: int) -> Entry | None:
        """Returns the entry at `index`; None if it is not cached."""
        at = index - self.first_index
        return self.entries[at] if 0 <= at < len(self.entries) else None

    def slice_bytes(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the entries [low, high), all of which must be cached. Stops before the entry that would exceed
        `bytes_max`, but returns at least one."""
        entries = self.entries
        start = low - self.first_index
        end = high - self.first_index
        total = 0
        for at in range(start, end):
            total += 64 + len(entries[at].payload)
            if total > bytes_max:
                end = max(at, start + 1)
                break
        return entries[start:end]
