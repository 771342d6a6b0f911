"""The log as the core sees it: the entries on disk, those being written, and the marks that move along the log.

    previous < first_index .. applied <= applying <= min(commit, persisted)     commit <= last
                   persisted <= handed <= last = tail.index

`previous` is the tail just before `first_index`: entries at or below it were committed, applied and then trimmed.
Ready has given out entries up to `applying` for apply, and up to `handed` for the disk. Entries above `persisted`
are only in the cache; older ones may have to be read through the StoredLog.

Acks from the disk and the ABA problem. Terms 1, 2 and 3 may write index 5 as (1,5), (2,5) and again (1,5) while the
disk is still working on the first. An ack names (1,5), but of which write? The log remembers every write that it gave
out, in order, and an ack settles the *first* one that holds the id. A write whose entries were truncated meanwhile
counts only up to the truncation. Disk writes complete in the order they were given out, so this is exact if each write
is acked, and errs on the safe side if acks are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from raftlog.core.state.entry_cache import EntryCache
from raftlog.core.state.terms import TermRanges
from raftlog.errors import FrameError, ImplausibleMessageError, InvariantViolationError
from raftlog.frame import follow, tail_after
from raftlog.types import FLAG_ROLL, Entry, EntryId, LogTail

READ_ENTRIES, READ_BYTES = 1024, 1 << 20
"""The most entries, and bytes of them, that one call reads from disk on the driver's thread. Each entry takes some
microseconds in addition to its bytes."""
_ROLLS_KEPT = 64


class StoredLog(Protocol):
    """The interface through which the core reads the stored log. Called on the driver's thread, only for persisted
    entries."""

    @property
    def first_index(self) -> int:
        """The lowest index still stored; 0 for an empty log."""

    @property
    def previous(self) -> LogTail:
        """The log's tail just before first_index, EMPTY_TAIL if that is 0. Read when the core starts and on
        `trimmed`."""

    @property
    def tail(self) -> LogTail:
        """The last *persisted* entry; EMPTY_TAIL if there is none. Read once, when the core starts."""

    def term_ranges(self) -> list[tuple[int, int]]:
        """Returns the terms as [(first index, term)], ascending, covering first_index..tail.index. Read at start and on
        `trimmed`."""

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the entries [low, high). Stops before the entry that would exceed `bytes_max`, but returns at least
        one."""


class _Write:
    """Entries that one Ready gave out to be written to disk."""

    __slots__ = ("entries", "first_index", "valid_to")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.first_index = entries[0].index
        self.valid_to = entries[-1].index
        """The highest index that this write, and those before it, put on disk and that the log still contains."""


class RaftLog:
    """The log as the core sees it: its tail, its marks, its cache and its term ranges. Reads older entries through
    `reader`."""

    __slots__ = (
        "_rolls",
        "_writes",
        "applied_index",
        "applying_index",
        "cache",
        "commit_index",
        "handed_index",
        "persisted_index",
        "previous",
        "reader",
        "tail",
        "terms",
    )

    def __init__(self, reader: StoredLog, *, commit_index: int, applied_index: int, cache_bytes_max: int) -> None:
        tail = reader.tail
        if applied_index > tail.index:
            raise InvariantViolationError(
                f"the state machine has applied index {applied_index}, the log on disk ends at {tail.index}: "
                "apply never passes what the own disk holds, so entries were lost"
            )
        previous = reader.previous
        if applied_index < previous.index:
            raise InvariantViolationError(
                f"the state machine has applied index {applied_index}, the log on disk begins at "
                f"{previous.index + 1}: what lies between was trimmed, and has to come from a checkpoint"
            )
        self.reader = reader
        self.previous = previous
        """The last entry that was trimmed; EMPTY_TAIL if none was. Moves only in `trimmed`."""
        self.tail = tail
        """The last entry, persisted or not. The next entry is stamped after it."""
        self.persisted_index = tail.index
        """Index of the last entry that is on disk: fdatasync returned for it. Only truncation moves it back."""
        self.handed_index = tail.index
        self.commit_index = max(min(commit_index, tail.index), applied_index)
        """Index of the last entry that this node knows to be committed: on the disks of a majority. It never moves
        back, and may be above `persisted_index`."""
        self.applied_index = applied_index
        self.applying_index = applied_index
        self.cache = EntryCache(tail.index + 1, cache_bytes_max)
        self.terms = TermRanges(reader.term_ranges())
        self._writes: deque[_Write] = deque()
        self._rolls: deque[int] = deque([tail.segment_base], _ROLLS_KEPT)

    # -- reading

    @property
    def first_index(self) -> int:
        """The lowest index in the log."""
        return self.previous.index + 1

    def term_at(self, index: int) -> int | None:
        """Returns the term of the entry at `index`; None above the tail and below `previous`. Index -1, before GENESIS,
        has term 0."""
        if index == self.tail.index:
            return self.tail.term
        if index > self.tail.index:
            return None
        previous = self.previous
        if index <= previous.index:
            return previous.term if index == previous.index else None
        return self.terms.at(index)

    def matches(self, entry_id: EntryId) -> bool:
        """Returns True if the log contains this entry. Index -1 is in every log."""
        tail = self.tail
        if entry_id.index == tail.index:
            return entry_id.term == tail.term
        return self.term_at(entry_id.index) == entry_id.term

    def is_up_to_date(self, last: EntryId) -> bool:
        """Returns True if a log that ends at `last` is at least as up to date as this one (Raft paper 5.4.1)."""
        return (last.term, last.index) >= (self.tail.term, self.tail.index)

    def last_not_above(self, index: int, term: int) -> EntryId:
        """Returns the id of the last entry with index <= `index` and term <= `term`: the conflict hint, which leader
        and follower compute.

        Returns the id of `previous` if the log has no such entry: entries below it are trimmed, and only a snapshot
        can cover them.
        """
        if index <= self.previous.index:
            return self.previous.id
        found_index, found_term = self.terms.last_not_above(min(index, self.tail.index), term)
        return EntryId(found_term, found_index) if found_index > self.previous.index else self.previous.id

    def read(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the first of the entries [low, high): at least one, and as many as fit into `bytes_max`.

        If `low` is older than the cache, reads from disk, at most READ_ENTRIES entries and READ_BYTES bytes, and stops
        where the cache begins. Raises DamagedLogError if they cannot be read intact, OutOfRangeError if they are no
        longer on disk.
        """
        cache = self.cache
        first_cached = cache.first_index
        if low >= first_cached:
            if high - low == 1:  # the usual case: one entry
                return [cache.entries[low - first_cached]]
            return cache.slice_bytes(low, high, bytes_max)
        high = min(high, first_cached, low + READ_ENTRIES)
        return self.reader.read_entries(low, high, min(bytes_max, READ_BYTES))

    def entry(self, index: int) -> Entry:
        """Returns the entry at `index`, which must be in the log."""
        return self.cache.get(index) or self.reader.read_entries(index, index + 1, 1)[0]

    # -- appending

    def append(self, entry: Entry, tail: LogTail | None = None) -> None:
        """Appends an entry that follows the log's tail: one that this node stamped as the leader, or whose chain was
        checked.

        `tail`: the tail after the entry, if the caller knows it.
        """
        if entry.flags & FLAG_ROLL:
            self._rolls.append(entry.position)
        self.tail = tail_after(self.tail, entry) if tail is None else tail
        self.terms.add(entry.index, entry.term)
        self.cache.append(entry)

    def append_received(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Appends entries that a follower received, after the check of the entry before them; returns those that are
        new.

        The first of the returned entries replaced everything that the log had at its index and above.

        "If an existing entry conflicts with a new one (same index but different terms), delete the existing entry and
        all that follow it; append any new entries not already in the log" (Raft paper, figure 2). Entries already there
        are left alone: a late, shorter message must not cut what a newer one brought.

        Raises ImplausibleMessageError if a committed entry conflicts, the chain of headers breaks, or an entry has the
        id but not the header of one in the cache; DamagedLogError if the entry before a conflict cannot be read. In
        each case nothing was changed.
        """
        for at, entry in enumerate(entries):
            if entry.index > self.tail.index:
                return self._append_chained(self.tail, entries[at:])
            if self.term_at(entry.index) != entry.term:
                self._check_conflict(entry.index)
                return self._append_chained(self._tail_at(entry.index - 1), entries[at:])
            held = self.cache.get(entry.index)
            if held is not None and held.header_crc != entry.header_crc:
                raise ImplausibleMessageError(
                    f"two entries with id {entry.id}: header_crc {held.header_crc:08x} here, "
                    f"{entry.header_crc:08x} at the leader"
                )
        return ()

    def _append_chained(self, tail: LogTail, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Appends `entries` after `tail`, and replaces the log's entries there. All entries are checked before the
        first is added. Raises ImplausibleMessageError if one does not follow the one before it."""
        tails: list[LogTail] = []
        try:
            for entry in entries:
                tail = follow(tail, entry)
                tails.append(tail)
        except FrameError as error:
            raise ImplausibleMessageError(f"the leader's entry breaks the chain: {error}") from error
        if entries[0].index <= self.tail.index:
            self._truncate_from(entries[0].index)
        for entry, tail in zip(entries, tails, strict=True):
            self.append(entry, tail)
        return entries

    def _check_conflict(self, index: int) -> None:
        if index <= self.commit_index:
            raise ImplausibleMessageError(
                f"the leader's log conflicts at index {index}, which is committed here (commit index "
                f"{self.commit_index})"
            )

    def _truncate_from(self, index: int) -> None:
        self._check_conflict(index)
        self.tail = tail = self._tail_at(index - 1)
        while self._rolls and self._rolls[-1] > tail.segment_base:
            self._rolls.pop()
        self.terms.truncate_from(index)
        self.cache.truncate_from(index)
        self.persisted_index = min(self.persisted_index, index - 1)
        self.handed_index = min(self.handed_index, index - 1)
        for write in self._writes:
            write.valid_to = min(write.valid_to, index - 1)

    def _tail_at(self, index: int) -> LogTail:
        if index == self.previous.index:
            return self.previous
        last = self.entry(index)
        # Rolls before this process started are not remembered. The base is then 0, which is too low. The only
        # consequence is that the next file begins earlier than it need.
        base = max((roll for roll in self._rolls if roll <= last.position), default=0)
        return LogTail(last.term, last.index, last.end_position, last.header_crc, base, last.timestamp_ms)

    def trimmed(self) -> None:
        """Takes over the reader's first index, which moved up, when entries were trimmed, or down, when older ones were
        restored."""
        first, self.previous = self.first_index, self.reader.previous
        if self.first_index < first:
            self.terms.prepend([pair for pair in self.reader.term_ranges() if pair[0] < first])
        self.terms.forget_below(self.first_index)

    # -- marks

    def hand_to_disk(self) -> list[Entry]:
        """Returns the entries to persist now. The first may replace an entry that the disk has at its index."""
        low, high = self.handed_index + 1, self.tail.index + 1
        if low == high:
            return []
        cache = self.cache
        entries = cache.entries[low - cache.first_index : high - cache.first_index]
        self._writes.append(_Write(entries))
        self.handed_index = self.tail.index
        return entries

    def persisted(self, entry_id: EntryId) -> bool:
        """Records that the write that ends at `entry_id`, and all writes before it, are on disk. Returns True if
        `persisted_index` moved."""
        writes = self._writes
        index, term = entry_id.index, entry_id.term
        for write in writes:
            at = index - write.first_index
            if 0 <= at < len(write.entries) and write.entries[at].term == term:
                break
        else:
            return False
        while writes[0] is not write:
            writes.popleft()
        if write.entries[-1].index == entry_id.index:
            writes.popleft()
        persisted = min(entry_id.index, write.valid_to)
        if persisted <= self.persisted_index:
            return False
        self.persisted_index = persisted
        if self.cache.bytes > self.cache.bytes_max:
            self.cache.evict(persisted)
        return True

    def commit_to(self, index: int) -> bool:
        """Raises the commit index. Returns True if it moved. Raises InvariantViolationError if `index` is beyond the
        tail."""
        if index <= self.commit_index:
            return False
        if index > self.tail.index:
            raise InvariantViolationError(
                f"commit index {index} is beyond the log, which ends at {self.tail.index}: "
                "entries that this node acknowledged are missing"
            )
        self.commit_index = index
        return True

    @property
    def applicable_index(self) -> int:
        """The highest index that may be applied: committed, and on this node's own disk."""
        return min(self.commit_index, self.persisted_index)

    def hand_to_apply(self, bytes_max: int) -> list[Entry]:
        """Returns the next committed entries to apply, [] if there are none. Each is returned once, in order. Their
        number is limited as in `read`, which also names the errors."""
        low, high = self.applying_index + 1, min(self.commit_index, self.persisted_index) + 1
        if low >= high:
            return []
        entries = self.read(low, high, bytes_max)
        self.applying_index = entries[-1].index
        return entries

    def applied(self, index: int) -> None:
        """Records that the state machine contains everything up to `index`. Repeated calls are harmless. Raises
        InvariantViolationError if `index` was not given out."""
        if index > self.applying_index:
            raise InvariantViolationError(f"applied index {index} was never given out (applying {self.applying_index})")
        self.applied_index = max(self.applied_index, index)
