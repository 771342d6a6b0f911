"""Makes a backup by replay: it begins with the rows of an earlier entry, and applies the entries after it up to a
target.

The same state machine as on the nodes applies the entries, so rows, consumer offsets and messages fit together. A
DIGEST entry contains the sums of the cluster's rows. They are compared with the sums of the rows made here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgpack
import msgspec

from cluster.backup import files, verify
from cluster.backup import manifest as manifests
from cluster.backup.files import checksum
from cluster.backup.manifest import LOG, MANIFEST, STATE, FileRecord, Manifest, SegmentRecord
from cluster.runtime.events import rfc3339
from raftlog.errors import InvariantViolationError
from raftlog.frame import check_follows, tail_after
from raftlog.storage.files.layout import segment_name
from raftlog.storage.segments.segment import encode_header
from raftlog.types import FLAG_ROLL, Entry, EntryType, LogTail
from raftmq_wire.checksums import crc32c
from statemachine.broker_state import BrokerState
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.rows.running_digest import VERSION

WORK = "work"
"""Name of a folder in the backup's folder. It has the database while entries are applied to it."""
RUN_ENTRIES = 512
"""The most entries that are applied as one batch."""


class RestoreTarget(NamedTuple):
    """The last entry that a restore applies: that with the given index, or the last one whose log time is at most
    `time_ms`. If both are None, all entries are applied."""

    index: int | None = None  # type: ignore[assignment]  # hides tuple.index
    time_ms: int | None = None

    def passed_by(self, entry: Entry) -> bool:
        """Returns True if the entry comes after the target, so it must not be applied."""
        return self.is_below(entry.index, entry.timestamp_ms)

    def is_below(self, index: int, timestamp_ms: int) -> bool:
        """Returns True if an entry with this index and log time comes after the target."""
        return (self.index is not None and index > self.index) or (
            self.time_ms is not None and timestamp_ms > self.time_ms
        )

    @property
    def option(self) -> str:
        """The option of `raftmq restore` for this target; "" if all entries are restored."""
        if self.index is not None:
            return f"--to-index {self.index}"
        return "" if self.time_ms is None else f"--to-time {rfc3339(self.time_ms)}"

    def like(self, index: int, timestamp_ms: int) -> RestoreTarget:
        """Returns the target for the entry with this index and log time: by time if this target is a time, else by
        index."""
        return RestoreTarget(time_ms=timestamp_ms) if self.time_ms is not None else RestoreTarget(index)

    def __str__(self) -> str:
        return f"index {self.index}" if self.index is not None else f"time {rfc3339(self.time_ms or 0)}"


class BackupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the cluster that are copied into the backup's manifest."""

    cluster_uuid: str
    cluster_name: str
    broker_name: str
    group_id: int
    segment_size: int
    origin: list[tuple[str, int]]
    genesis: str
    node: int
    versions: dict[str, str]


class Replay:
    """Makes one backup in `folder`. The folder `work` in it has the rows to begin with; without it, the rows are
    empty."""

    def __init__(
        self, folder: Path, facts: BackupFacts, tail: LogTail, records: list[SegmentRecord] | None = None
    ) -> None:
        """Opens the log and the database. `tail` is the last frame of the log that `folder` has already, and `records`
        describes its segment files. Raises KVError."""
        self._folder = folder
        self._facts = facts
        (folder / LOG).mkdir(exist_ok=True)
        self.log = LogFiles(folder / LOG, facts.group_id, tail, records)
        self._kv = RocksKV(str(folder / WORK))
        self.state = BrokerState(self._kv, group=facts.group_id)
        self._run: list[Entry] = []

    def take(self, entry: Entry) -> None:
        """Appends the next entry to the log. If the rows do not reflect it yet, it is applied too: in a batch of at
        most RUN_ENTRIES, the last of them by `finish`. Raises FrameError if the entry does not follow the last one,
        InvariantViolationError if the rows differ from those of the cluster, KVError, OSError."""
        self.log.append(entry)
        if entry.index > self.state.applied.index:
            self._run.append(entry)
            if len(self._run) >= RUN_ENTRIES:
                self._apply()
            if entry.type == EntryType.DIGEST:
                self._apply()
                self._compare(entry)

    def _apply(self) -> None:
        self.state.apply(self._run)
        self._run = []

    def _compare(self, entry: Entry) -> None:
        if not entry.payload:
            return
        version, index, told = msgpack.unpackb(entry.payload)  # the format of `cluster/repair/consistency.py`
        mine = self.state.sums.at(index)
        if version == VERSION and told and mine is not None and any(mine.get(each, 0) != told[each] for each in told):
            raise InvariantViolationError(f"the rows as of entry {index} are not those that the cluster had then")

    def finish(self, name: str, now_ms: int) -> Manifest:
        """Completes the backup `name`, which ends at the last entry taken. Returns its manifest. `now_ms`: the wall
        clock in ms, as the time at which the backup was made. Raises KVError, OSError."""
        self._apply()
        self.log.close()
        self.log.drop_below(self.state.trim_position)
        self._kv.checkpoint(str(self._folder / STATE))
        self.close()
        shutil.rmtree(self._folder / WORK)
        mark, sums, level = verify.read_state(self._folder)
        state = [FileRecord(f"{STATE}/{path.name}", *checksum(path)) for path in _files(self._folder / STATE)]
        facts, tail = self._facts, self.log.tail
        size = sum(record.end_position - record.base_position for record in self.log.records)
        manifest = Manifest(
            name=name,
            made_ms=now_ms,
            node=facts.node,
            cluster_uuid=facts.cluster_uuid,
            cluster_name=facts.cluster_name,
            broker_name=facts.broker_name,
            group_id=facts.group_id,
            index=tail.index,
            term=tail.term,
            position=tail.end_position,
            header_crc=tail.header_crc,
            timestamp_ms=mark.timestamp_ms,
            segment_size=facts.segment_size,
            origin=facts.origin,
            digest=sums,
            segments=self.log.records,
            state=state,
            bytes_total=size + sum(record.size for record in state),
            bytes_new=0,
            versions=facts.versions,
            level=level,
            genesis=facts.genesis,
        )
        (self._folder / MANIFEST).write_bytes(manifests.encode(manifest))
        files.sync_tree(self._folder)
        return manifest

    def close(self) -> None:
        """Closes the database and the log files. A second call does nothing."""
        self._kv.close()
        self.log.close()


def _files(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


class LogFiles:
    """Writes the segment files in one folder. As on every node, a frame with FLAG_ROLL begins a new file."""

    def __init__(self, folder: Path, group_id: int, tail: LogTail, records: list[SegmentRecord] | None = None) -> None:
        """Opens the last file, if there is one. `tail` is the last frame of the log so far. `records` describes the
        existing files, of which the last one ends at `tail`."""
        self._folder = folder
        self._group_id = group_id
        self.tail = tail
        self.records = list(records or [])
        self._file: BinaryIO | None = None
        if self.records:
            self._file = (folder / segment_name(self.records[-1].base_position)).open("r+b")
            self._file.seek(0, os.SEEK_END)

    def append(self, entry: Entry) -> None:
        """Appends a frame. Raises FrameError if it does not follow the last one; nothing is written then. Raises
        OSError."""
        check_follows(self.tail, entry)
        after = tail_after(self.tail, entry)
        if self._file is None or entry.flags & FLAG_ROLL:
            self.close()
            self._file = (self._folder / segment_name(entry.position)).open("xb")
            self._file.write(encode_header(self.tail, self._group_id))
            self.records.append(SegmentRecord(entry.position, 0, 0, 0, 0))
        self._file.write(entry.header)
        self._file.write(entry.payload)
        last = self.records[-1]
        crc = crc32c(entry.payload, crc32c(entry.header, last.crc32c))
        self.records[-1] = SegmentRecord(last.base_position, after.end_position, after.index, after.header_crc, crc)
        self.tail = after

    def drop_below(self, position: int) -> None:
        """Removes the files that end at or below the position. The last file is never removed."""
        while len(self.records) > 1 and self.records[0].end_position <= position:
            (self._folder / segment_name(self.records.pop(0).base_position)).unlink()

    def close(self) -> None:
        """Syncs the frames to the disk, and closes the file. A second call does nothing."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
