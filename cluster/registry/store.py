"""Keeps the directory of one registry process: its lock, term and vote, journal and snapshot.

    DIR/LOCK         flock held for the life of the process
    DIR/hard_state   term and vote, as a node's (raftlog/storage/files/hard_state.py); the vote is a number of a process
    DIR/journal      the entries behind the snapshot (cluster/registry/journal.py)
    DIR/snapshot     all records as of an entry: a sealed map {cluster, previous, last, records}

A snapshot is stored before the journal that begins with it. So a start may find a journal that begins earlier than the
snapshot, and then replaces the journal. Any other mismatch is damage, and the process does not start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from cluster.registry.journal import FIRST_ENTRY, Entry, Journal
from cluster.registry.records import Records
from cluster.runtime.peer_frames import WireError
from raftlog.errors import CorruptLogError, IdentityError
from raftlog.storage.files.fs import FileSystem, read_file, storage_error, write_file
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.sealed_map import seal, unseal
from raftlog.types import NOBODY, HardState, NodeId

SNAPSHOT_MAGIC = 0x524D5153
SNAPSHOT_FORMAT = 10
_NO_GROUP = 0
"""The number of the group in the heads of these files. No group of brokers has it, so no file of a broker is taken for
one of these."""


class RecordSnapshot(NamedTuple):
    """All records as of the entry `last`. `previous` is the entry before it."""

    previous: Entry
    last: Entry
    records: bytes


def encode_snapshot(cluster: bytes, snapshot: RecordSnapshot) -> bytes:
    """Returns the bytes of a snapshot. Its file and the messages to followers have the same format."""
    content = {
        "cluster": cluster,
        "previous": list(snapshot.previous),
        "last": list(snapshot.last),
        "records": snapshot.records,
    }
    return seal(SNAPSHOT_MAGIC, SNAPSHOT_FORMAT, _NO_GROUP, content)


def decode_snapshot(cluster: bytes, data: bytes, origin: str) -> RecordSnapshot:
    """Returns the snapshot in these bytes. `origin` names their source in errors. Raises WireError if they are not a
    snapshot of this cluster, CorruptLogError if they have a newer format."""
    content = unseal(data, SNAPSHOT_MAGIC, SNAPSHOT_FORMAT, _NO_GROUP, origin)
    if content is None:
        raise WireError("it is damaged")
    if content.get("cluster") != cluster:
        raise WireError("it is of another cluster")
    previous, last = (_entry(content.get(name)) for name in ("previous", "last"))
    records = content.get("records")
    if type(records) is not bytes or last.index != previous.index + 1 or last.term < previous.term:
        raise WireError("its parts do not fit together")
    return RecordSnapshot(previous, last, records)


def _entry(fields: object) -> Entry:
    match fields:
        case [bytes() as command, int() as index, int() as term] if 0 < index < 1 << 63 and 0 <= term < 1 << 63:
            return Entry(command, index, term)
    raise WireError("it names no entry")


class Store:
    """The open directory of a registry process. Used by one thread."""

    def __init__(self, fs: FileSystem, directory: Path, cluster: bytes, node: int, records: Records) -> None:
        """Opens the directory, or creates it (blocking), and merges the snapshot into `records`. Raises CorruptLogError
        if files are damaged, IdentityError if the directory belongs to another process or is in use, StorageError for
        other failures."""
        self._fs = fs
        self._directory = directory
        self._cluster = cluster
        self._node = node
        self._records = records
        self._syncs = 0
        self._journal_path = directory / "journal"
        self._snapshot_path = directory / "snapshot"
        hard_state = directory / "hard_state"
        try:
            fs.mkdir(directory)
            self._lock = fs.lock(directory / "LOCK", str(os.getpid()))
            is_there = [fs.exists(path) for path in (self._journal_path, self._snapshot_path, hard_state)]
        except BlockingIOError:
            raise IdentityError(f"{directory} is in use by another process. Stop that one first.") from None
        except OSError as error:
            raise storage_error(fs, "opening", directory, error) from error
        if not any(is_there):
            self._begin(Journal.create(fs, self._journal_path, cluster, node, [FIRST_ENTRY]))
        elif is_there[0]:
            self._begin(Journal(fs, self._journal_path, cluster, node))
        else:
            raise self._missing(self._journal_path)
        if is_there[2]:
            self._votes = HardStateStore.open(fs, hard_state, _NO_GROUP)
        elif self.journal.entries == [FIRST_ENTRY] and not is_there[1]:
            self._votes = HardStateStore.create(fs, hard_state, _NO_GROUP)
        else:
            raise self._missing(hard_state)
        self.applied = FIRST_ENTRY.index
        """Index of the last entry that the records contained when the directory was opened."""
        self.snapshot: bytes | None = self._load_snapshot() if is_there[1] else None
        """The newest snapshot, as `encode_snapshot` made it; None if there is none."""
        if self.snapshot is None and self.journal.entries[0] != FIRST_ENTRY:
            raise self._missing(self._snapshot_path)
        promised = self._votes.load().commit_index
        if promised > self.journal.last.index:
            raise CorruptLogError(
                f"{self._journal_path} ends at {self.journal.last.index}, and entries up to {promised} were committed: "
                "it was cut, or put back from a copy. Move the directory away and start this process empty."
            )
        self.committed = max(promised, self.journal.committed, self.applied)
        """The commit index as far as this process knows."""

    def _begin(self, journal: Journal) -> None:
        self.journal = journal

    def _missing(self, path: Path) -> CorruptLogError:
        return CorruptLogError(
            f"{path} is missing beside the other files of this registry process, which no longer knows what it has "
            "confirmed. Move the directory away and start it empty: the other processes and the groups fill it again."
        )

    def _load_snapshot(self) -> bytes:
        path = self._snapshot_path
        try:
            data = read_file(self._fs, path)
            snapshot = decode_snapshot(self._cluster, data, str(path))
            self._records.merge(snapshot.records)
        except WireError as error:
            raise CorruptLogError(
                f"{path} cannot be used: {error}. Move the directory away and start this process empty."
            ) from error
        except OSError as error:
            raise storage_error(self._fs, "reading", path, error) from error
        first = self.journal.entries[0].index
        if first > snapshot.previous.index:
            raise CorruptLogError(
                f"{self._journal_path} begins at {first}, and {path} ends at {snapshot.last.index}: one of them is a "
                "copy. Move the directory away and start this process empty."
            )
        self.applied = snapshot.last.index
        # If the journal does not begin with the snapshot, the process ended after it had stored the snapshot and before
        # it replaced the journal.
        if first < snapshot.previous.index or not self.holds(snapshot.last):
            self._begin_with(snapshot)
        return data

    def _begin_with(self, snapshot: RecordSnapshot) -> None:
        """Replaces the journal by one that begins with the snapshot, and keeps the entries after it. If the journal has
        another entry at the snapshot's index, all entries after that one are invalid too, and are dropped."""
        kept: list[Entry] = []
        if self.holds(snapshot.last):
            kept = [entry for entry in self.journal.entries if entry.index > snapshot.last.index]
        self._replace([snapshot.previous, snapshot.last, *kept])

    def _replace(self, entries: list[Entry]) -> None:
        self._syncs += self.journal.syncs
        journal = Journal.create(self._fs, self._journal_path, self._cluster, self._node, entries)
        self.journal.close()
        self._begin(journal)

    # --- term and vote -----------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The newest term that this process knows."""
        return max(self._votes.load().term, self.journal.last.term)

    @property
    def vote(self) -> int:
        """The process for which this one has voted in `term`; NOBODY if it has not voted."""
        votes = self._votes.load()
        return votes.vote if votes.term == self.term else NOBODY

    def save_vote(self, term: int, vote: int) -> None:
        """Saves term and vote; returns when they are on disk. Raises StorageError."""
        self._votes.save(HardState(term, NodeId(vote), self.committed))

    def note_commit(self, index: int) -> None:
        """Records the commit index in memory; the next write to the disk includes it."""
        self.committed = index

    @property
    def syncs(self) -> int:
        """The number of fdatasyncs for appended entries since the start."""
        return self._syncs + self.journal.syncs

    # --- entries -----------------------------------------------------------------------------------------------------

    def holds(self, entry: Entry) -> bool:
        """Returns True if the journal has an entry with the same index and term, which by Raft's rules is the same
        entry."""
        found = self.journal.at(entry.index)
        return found is not None and found.term == entry.term

    def append(self, entries: list[Entry]) -> None:
        """Appends entries to the journal. Raises OutOfSpaceError if there is no room; the journal is then unchanged.
        Raises StorageError for other failures."""
        self.journal.append(entries, self.committed)

    def cut_from(self, index: int) -> None:
        """Removes the entries from that index on. Raises OutOfSpaceError if there is no room for the new file; the
        journal is then unchanged. Raises StorageError for other failures."""
        self._replace([entry for entry in self.journal.entries if entry.index < index])
        self.committed = min(self.committed, self.journal.last.index)

    def compact(self, applied: int) -> None:
        """Writes a snapshot of the records, and makes the journal begin at the entry with the index `applied`, the last
        one that the records contain. Raises OutOfSpaceError if there is no room; nothing is lost then. Raises
        StorageError for other failures."""
        previous, last = self.journal.at(applied - 1), self.journal.at(applied)
        if previous is not None and last is not None:
            self._keep(RecordSnapshot(previous, last, self._records.dump()))

    def install(self, data: bytes) -> RecordSnapshot | None:
        """Installs a snapshot that the leader sent, and returns it. Returns None, and does nothing, if this process
        already has everything in it. Raises WireError if the bytes are no snapshot, OutOfSpaceError if there is no
        room, StorageError for other failures."""
        snapshot = decode_snapshot(self._cluster, data, "the leader's snapshot")
        if self.holds(snapshot.last) or snapshot.last.index < self.journal.entries[0].index:
            return None
        self._records.merge(snapshot.records)
        self._keep(snapshot)
        self.committed = max(self.committed, snapshot.last.index)
        return snapshot

    def _keep(self, snapshot: RecordSnapshot) -> None:
        data = encode_snapshot(self._cluster, snapshot)
        try:
            write_file(self._fs, self._snapshot_path, data)
        except OSError as error:
            raise storage_error(self._fs, "writing", self._snapshot_path, error, again=True) from error
        self._begin_with(snapshot)
        self.snapshot = data

    def close(self) -> None:
        """Syncs the appended entries and closes all files."""
        try:
            self.journal.sync()
            self._votes.save(self._votes.load()._replace(commit_index=self.committed))
            self._votes.close()
        finally:
            self.journal.close()
            self._lock.close()
