"""Follows what a machine's lanes do, so that it knows what the machine's disk should contain, and compares that with
the disk after each restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jepsen_like.sim.machines.machine import Machine
from raftlog.errors import CorruptLogError, DamagedLogError
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, Entry, LogTail


class DurableLog:
    """The entries that one node's append lane wrote and synced. The invariants read them as they read a node's log
    (`StoredLog`, the core's view of its stored log).

    It begins with the GENESIS entry or, if a snapshot replaced the log, with the entries that the snapshot brought.
    Trimmed entries stay in it.
    """

    def __init__(self, genesis: Entry) -> None:
        self.entries = [genesis]
        self.previous = EMPTY_TAIL

    @property
    def first_index(self) -> int:
        """Index of the first known entry."""
        return self.entries[0].index

    @property
    def tail(self) -> LogTail:
        """Index and term of the last known entry. The other fields are those of an empty log."""
        last = self.entries[-1]
        return EMPTY_TAIL._replace(index=last.index, term=last.term)

    def read_entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Returns the entries from `low` to before `high`, whatever their size."""
        return self.entries[low - self.first_index : high - self.first_index]

    def term_ranges(self) -> list[tuple[int, int]]:
        """Returns an empty list: the invariants never ask this reader for term ranges."""
        return []

    def at(self, index: int) -> Entry | None:
        """Returns the entry of this index, None if it is not known."""
        place = index - self.first_index
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def write(self, entries: Sequence[Entry]) -> bool:
        """Adds the entries as the log does, replacing conflicting ones; returns True if entries were cut off."""
        for number, entry in enumerate(entries):
            if entry.index == self.tail.index + 1:
                self.entries.extend(entries[number:])
                return False
            known = self.at(entry.index)
            if known is not None and known.header_crc != entry.header_crc:
                del self.entries[entry.index - self.first_index :]
                self.entries.extend(entries[number:])
                return True
        return False

    def forget_conflict(self, entries: Sequence[Entry]) -> None:
        """Drops the known entries from the first one on that differs from `entries`: a write of `entries` began and was
        cut short, so what is on the disk there is unknown."""
        for entry in entries:
            known = self.at(entry.index)
            if known is not None and known.header_crc != entry.header_crc:
                del self.entries[entry.index - self.first_index :]
                return

    # --- after a restart ---------------------------------------------------------------------------------------------

    def missing(self, machine: Machine, log: SegmentedLog) -> Iterator[str]:
        """Yields a line for each entry that should be on the disk and is not. Trimmed entries, and entries in which a
        bit has flipped, are skipped. Reads the bytes from the simulated disk: a read by the node would let the node
        find damage sooner than it would by itself."""
        for entry in self.entries:
            if entry.index in machine.rotten or entry.index < log.first_index:
                continue
            if entry.index > log.tail.index or machine.bytes_of(entry, log) != entry.header + entry.payload:
                yield f"node {machine.node_id} had entry {entry.id} on disk, and after a restart it has not"

    def learn(self, machine: Machine, log: SegmentedLog) -> Iterator[str]:
        """Adds to the known entries those that are on the disk although no drain (batch of lane work) reported them.
        Yields a line if some of them cannot be read.
        """
        first, end = self.tail.index + 1, log.tail.index + 1
        if first < end:
            found = _read(log, first, end)
            self.write(found)
            if len(found) < end - first:
                yield f"node {machine.node_id} holds up to index {end - 1}, and {first + len(found)} is damaged"

    def replaced(self, machine: Machine, log: SegmentedLog, committed: Callable[[Entry], bool]) -> Iterator[str]:
        """Takes over the log that a snapshot has put in place. Yields a line for each entry that is missing although it
        is `committed`."""
        for entry in self.entries:
            if entry.index >= log.first_index and committed(entry):
                held = entry.index <= log.tail.index and machine.bytes_of(entry, log) == entry.header + entry.payload
                if not held and entry.index not in machine.rotten:
                    yield f"node {machine.node_id} gave up entry {entry.id} for a snapshot, and it is committed"
        found = _read(log, log.first_index, log.tail.index + 1)
        if found:
            self.entries, self.previous = found, log.previous


def _read(log: SegmentedLog, first: int, end: int) -> list[Entry]:
    try:
        return log.read_entries(first, end, 1 << 60)
    except (DamagedLogError, CorruptLogError):
        return []
