"""A simulated disk that loses writes which were not synced: writes wait in order, and a crash keeps a prefix of them,
and perhaps a part of the next one.

Its log may begin above GENESIS: `trim` removes entries at the beginning, `prepend` brings them back, `replace` installs
another log.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from raftlog.core.raw_node import Ready
from raftlog.errors import OutOfRangeError
from raftlog.frame import genesis_entry, tail_after
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, EntryType, HardState, LogTail

GENESIS = genesis_entry(b"genesis", timestamp_ms=1_000, group_id=1)


class SimDisk:
    """A disk: the data that survives a crash (`entries`, `hard_state`), and the writes in progress. It is the core's
    StoredLog of the surviving data."""

    __slots__ = ("entries", "hard_state", "previous", "queued", "tails", "withheld", "writing")

    def __init__(self) -> None:
        self.previous = EMPTY_TAIL
        """The log tail before `entries`, which are never empty."""
        self.entries: list[Entry] = [GENESIS]
        self.tails: list[LogTail] = [tail_after(EMPTY_TAIL, GENESIS)]
        self.hard_state = HardState(0, NOBODY, 0)
        self.queued: list[Ready] = []
        self.writing: list[Ready] = []
        """Writes that the fdatasync in progress covers."""
        self.withheld: int | None = None
        """The term in which synced entries were lost; None if none were, or if the member has caught up since."""

    # -- StoredLog

    @property
    def first_index(self) -> int:
        """The lowest index in this log."""
        return self.previous.index + 1

    @property
    def tail(self) -> LogTail:
        """The tail after the last synced entry."""
        return self.tails[-1]

    def term_ranges(self) -> list[tuple[int, int]]:
        """Returns (first index, term) for each run of entries with one term."""
        found: list[tuple[int, int]] = []
        for entry in self.entries:
            if not found or found[-1][1] != entry.term:
                found.append((entry.index, entry.term))
        return found

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the entries [low, high), but stops before the entry that would exceed `bytes_max`, unless it is the
        first. Raises OutOfRangeError if `low` was trimmed.
        """
        first = self.first_index
        if low < first:
            raise OutOfRangeError(f"entry {low} is trimmed, the log begins at {first}")
        found: list[Entry] = []
        total = 0
        for entry in self.entries[low - first : high - first]:
            total += 64 + len(entry.payload)
            if found and total > bytes_max:
                break
            found.append(entry)
        return found

    def entry(self, index: int) -> Entry:
        """Returns the entry at `index`, which must be in this log."""
        return self.entries[index - self.first_index]

    def tail_at(self, index: int) -> LogTail:
        """Returns the log tail after `index`, which must be in this log or directly before it."""
        at = index - self.first_index
        return self.tails[at] if at >= 0 else self.previous

    def holds(self, tail: LogTail) -> bool:
        """Returns True if the entry with this tail is in this log, or directly before its first entry. The entries
        before that one are then the same, too.
        """
        return self.previous.index <= tail.index <= self.tail.index and self.tail_at(tail.index) == tail

    def changes_above(self, index: int) -> Iterator[Entry]:
        """Yields the MEMBERSHIP entries above `index`."""
        return (entry for entry in self.entries if entry.type == EntryType.MEMBERSHIP and entry.index > index)

    # -- where it begins

    def trim(self, first_index: int) -> None:
        """Removes everything below `first_index`, which must be in this log."""
        gone = first_index - self.first_index
        if gone > 0:
            self.previous = self.tails[gone - 1]
            del self.entries[:gone], self.tails[:gone]

    def prepend(self, other: SimDisk) -> bool:
        """Adds to the beginning of this log the entries that only `other` has; returns False if there are none."""
        count = self.first_index - other.first_index
        if count <= 0 or not other.holds(self.previous):
            return False
        self.entries[:0], self.tails[:0] = other.entries[:count], other.tails[:count]
        self.previous = other.previous
        return True

    def replace(self, other: SimDisk, index: int) -> None:
        """Replaces this log by the entry `index` of `other`, as the installation of a snapshot does."""
        self.previous = other.tail_at(index - 1)
        self.entries, self.tails = [other.entry(index)], [other.tail_at(index)]
        term = max(self.hard_state.term, self.tail.term)
        vote = self.hard_state.vote if term == self.hard_state.term else NOBODY
        self.hard_state = HardState(term, vote, 0)

    # -- writing

    def put(self, ready: Ready) -> None:
        """Writes `ready` to the disk."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            self._put_entries(ready.entries)

    def _put_entries(self, entries: list[Entry]) -> None:
        at = entries[0].index - self.first_index
        del self.entries[at:], self.tails[at:]
        tail = self.tails[-1]
        for entry in entries:
            tail = tail_after(tail, entry)
            self.entries.append(entry)
            self.tails.append(tail)

    def lose_from(self, index: int) -> list[Entry]:
        """Removes the synced entries from `index` on, as damage that the member has noticed and recorded would; returns
        them.
        """
        at = index - self.first_index
        lost = self.entries[at:]
        self.withheld = self.hard_state.term
        del self.entries[at:], self.tails[at:]
        return lost

    def crash(self, rng: random.Random) -> bool:
        """Crashes with a power failure: a prefix of the writes in progress survives, and perhaps a part of the next
        one. Returns True if something was lost.
        """
        pending = self.writing + self.queued
        self.writing = []
        self.queued = []
        kept = rng.randint(0, len(pending))
        for ready in pending[:kept]:
            self.put(ready)
        if kept == len(pending):
            return False
        torn = pending[kept]
        if rng.random() < 0.5:
            # The hard state is synced before the entries: entries never come without it.
            if torn.hard_state is not None:
                self.hard_state = torn.hard_state
            part = torn.entries[: rng.randint(0, len(torn.entries))]
            if part:
                self._put_entries(part)
        return True

    @property
    def holds_unsynced_entries(self) -> bool:
        """True if entries are on their way from the core to the disk."""
        return any(ready.entries for ready in self.writing) or any(ready.entries for ready in self.queued)
