"""A disk that forgets what was not synced: writes wait in order, a crash keeps a prefix, the last perhaps in part."""

from __future__ import annotations

import random

from raftlog.core.raw_node import Ready
from raftlog.frame import genesis_entry, tail_after
from raftlog.types import EMPTY_TAIL, NOBODY, Entry, HardState, LogTail

GENESIS = genesis_entry(b"genesis", timestamp_ms=1_000, group_id=1)


class SimDisk:
    """What survives (`entries`, `hard_state`) and what is under way. It is the core's LogReader of what survives."""

    __slots__ = ("entries", "hard_state", "queued", "tails", "withheld", "writing")

    def __init__(self) -> None:
        self.entries: list[Entry] = [GENESIS]
        self.tails: list[LogTail] = [tail_after(EMPTY_TAIL, GENESIS)]
        self.hard_state = HardState(0, NOBODY, 0)
        self.queued: list[Ready] = []
        self.writing: list[Ready] = []
        """Covered by the fdatasync under way."""
        self.withheld: int | None = None
        """The term in which synced entries were lost; None if none were, or the member has caught up since."""

    # -- LogReader

    @property
    def first_index(self) -> int:
        """Nothing is trimmed here."""
        return 0

    @property
    def previous(self) -> LogTail:
        """See `first_index`."""
        return EMPTY_TAIL

    @property
    def tail(self) -> LogTail:
        """The last synced entry."""
        return self.tails[-1]

    def term_ranges(self) -> list[tuple[int, int]]:
        """First index of each term."""
        found: list[tuple[int, int]] = []
        for entry in self.entries:
            if not found or found[-1][1] != entry.term:
                found.append((entry.index, entry.term))
        return found

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries [low, high), cut before the one that passes `bytes_max`, at least one."""
        found: list[Entry] = []
        total = 0
        for entry in self.entries[low:high]:
            total += 64 + len(entry.payload)
            if found and total > bytes_max:
                break
            found.append(entry)
        return found

    # -- writing

    def put(self, ready: Ready) -> None:
        """`ready` reaches the platter."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            self._put_entries(ready.entries)

    def _put_entries(self, entries: list[Entry]) -> None:
        index = entries[0].index
        del self.entries[index:], self.tails[index:]
        tail = self.tails[-1]
        for entry in entries:
            tail = tail_after(tail, entry)
            self.entries.append(entry)
            self.tails.append(tail)

    def lose_from(self, index: int) -> list[Entry]:
        """Synced entries from `index` on cannot be read any more, which is noted first; returns them."""
        lost = self.entries[index:]
        self.withheld = self.hard_state.term
        del self.entries[index:], self.tails[index:]
        return lost

    def crash(self, rng: random.Random) -> bool:
        """Power fails: a prefix of the writes under way is there, the next one in part. True if something was lost."""
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
        """Entries are between the core and the platter."""
        return any(ready.entries for ready in self.writing) or any(ready.entries for ready in self.queued)
