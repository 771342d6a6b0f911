"""Checks a stopped node's RocksDB directories against all redundant information; changes nothing.

Each check finds another kind of damage:

* `TABLES` and checkpoint manifests hold a CRC of each whole table, so they also find damage in bytes that no reader
  looks at;
* rocksdb_log_reader.bad_records finds the place of a damaged record in WAL and MANIFEST;
* RocksDB itself, opened strictly over links to the files, reads every row of every family. It finds damage in tables
  that are newer than the list, at the WAL's end, and files that do not belong together;
* RUN's synced index and the running sums in the rows find whole rows that are gone without a trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from cluster.state import suspect_state, table_checksums
from cluster.state.checkpoints import Checkpoints, stored_sums
from cluster.state.table_checksums import file_crc
from raftlog.errors import RaftLogError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.verify.verify_directory import Finding, IrrelevantRange, Severity
from raftmq_wire.checksums import crc32c
from statemachine import payload
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import keys, running_digest
from statemachine.rows.kv import CQ, KV, TABLE_SUFFIX, KVCorruptError, KVError
from statemachine.rows.rocksdb_log_reader import bad_records

WAL_SUFFIX = ".log"
MANIFEST_PREFIX = "MANIFEST-"
_IRRELEVANT = {
    "LOCK": "holds nothing",
    "LOG": "RocksDB's diary, for people",
    "OPTIONS-": "RocksDB's settings, for people: a node opens with its own",
    "IDENTITY": "the database's id, which nothing compares",
    "rocksdict-config.json": "written anew at every opening",
}
"""Files of a RocksDB directory (or prefixes of their names) on which no opening depends, with the reason."""


class StateFacts(NamedTuple):
    """The facts that the check has found about the state, as the table of opening_cases.py needs them."""

    exists: bool
    damaged: str
    """The reason why the state cannot be read, "" if it can."""
    mark: AppliedMark


class StateCheck:
    """One check of DATA/state. `facts` is known when `findings` is exhausted."""

    def __init__(self, fs: FileSystem, directory: Path, group_id: int, synced: int = -1) -> None:
        """`synced` is the applied index that RUN knows to be on disk."""
        self._fs = fs
        self._directory = directory
        self._state = directory / layout.STATE
        self._group_id = group_id
        self._synced = synced
        self.facts = StateFacts(False, "", NOTHING_APPLIED)

    def findings(self, log: SegmentedLog | None = None) -> Iterator[Finding]:
        """Yields all damage found. With `log`, every row of a queue is also compared with the message to which it
        points."""
        if (why := suspect_state.why_suspect(self._fs, self._directory)) is not None:
            path = self._directory / suspect_state.SUSPECT
            yield Finding(path, 0, 0, "state", Severity.REPAIRABLE, f"the last run met damage in the state: {why}")
        if not self._fs.exists(self._state):
            return
        names = self._fs.listdir(self._state)
        yield from self._tables(names)
        yield from self._logs(names)
        if "CURRENT" not in names:
            if names:
                path = self._state / "CURRENT"
                text = "is missing: without it the rows cannot be found"
                yield Finding(path, 0, 0, "state", Severity.REPAIRABLE, text)
            return
        yield from self._rows(log)

    def _tables(self, names: list[str]) -> Iterator[Finding]:
        listed = table_checksums.load(self._fs, self._state, self._group_id)
        if listed is None:
            text = "the list of tables is damaged: what it would prove is checked block by block instead"
            yield Finding(self._state / table_checksums.FILE, 0, 0, "table list", Severity.NOTE, text)
            return
        for name in names:
            if name in listed and file_crc(self._fs, self._state / name) != listed[name]:
                text = "does not have the size and CRC that it was written with"
                yield Finding(self._state / name, 0, 0, "table", Severity.REPAIRABLE, text)

    def _logs(self, names: list[str]) -> Iterator[Finding]:
        for name in names:
            if not (name.endswith(WAL_SUFFIX) or name.startswith(MANIFEST_PREFIX)):
                continue
            for bad in bad_records(read_file(self._fs, self._state / name)):
                torn = bad.last and name.endswith(WAL_SUFFIX)
                kind = "state WAL" if name.endswith(WAL_SUFFIX) else "state manifest"
                why = bad.why + (": the rows from there on are replayed from the log" if torn else "")
                yield Finding(self._state / name, bad.offset, bad.size, kind, Severity.REPAIRABLE, why)

    def _rows(self, log: SegmentedLog | None) -> Iterator[Finding]:
        try:
            with CheckpointReader(self._state, strict=True) as reader:
                yield from self._read(reader, log)
            return
        except KVCorruptError as error:
            yield Finding(self._state, 0, 0, "state", Severity.REPAIRABLE, _last_line(error))
            self.facts = StateFacts(True, _last_line(error), NOTHING_APPLIED)
        except KVError as error:
            yield Finding(self._state, 0, 0, "state", Severity.FATAL, str(error))
            self.facts = StateFacts(True, str(error), NOTHING_APPLIED)
            return
        try:  # opens as a start does: a WAL that is cut short is accepted
            with CheckpointReader(self._state) as reader:
                self.facts = StateFacts(True, "", reader.mark)
        except KVError:
            return

    def _read(self, reader: CheckpointReader, log: SegmentedLog | None) -> Iterator[Finding]:
        mark = reader.mark
        self.facts = StateFacts(True, "", mark)
        if mark.index < self._synced:
            text = f"has applied up to {mark.index}, RUN knew {self._synced} to be on disk: rows were lost"
            yield Finding(self._state, 0, 0, "state", Severity.REPAIRABLE, text)
        counted = running_digest.count(cast("KV", reader))  # only `scan` is called on it
        for family, stored in stored_sums(reader).items():
            if counted[family] != stored:
                text = f"the rows of family {family} add up to {counted[family]:016x}, not to {stored:016x}"
                yield Finding(self._state, 0, 0, "state rows", Severity.REPAIRABLE, text)
        if log is not None:
            yield from self._messages(reader, log)

    def _messages(self, reader: CheckpointReader, log: SegmentedLog) -> Iterator[Finding]:
        first = 0
        queue = (0, 0)
        for key, chunk in reader.rows(CQ):
            if keys.cq_queue(key) != queue:
                queue, first = keys.cq_queue(key), 0
            if len(key) == keys.CQ_BOUNDS_KEY_SIZE:
                first = keys.unpack_bounds(chunk)[0]
                continue
            topic_id, queue_id, base = (*queue, keys.cq_base(key))
            for number, (position, size, crc, _, _) in enumerate(payload.ITEM.iter_unpack(chunk)):
                if base + number < first or position < log.first_position:
                    continue  # the message is trimmed, or still to be fetched from other nodes
                try:
                    if crc32c(log.read_at(position, size)) == crc:
                        continue
                    why = "fails the checksum of its row"
                except RaftLogError as error:
                    why = f"cannot be read: {error}"
                topic_id, queue_id, base = int.from_bytes(key[:4]), int.from_bytes(key[4:8]), keys.cq_base(key)
                where = f"topic {topic_id}, queue {queue_id}, offset {base + number}"
                text = f"the message at position {position} ({where}) {why}"
                yield Finding(self._directory / layout.LOG, 0, 0, "message", Severity.REPAIRABLE, text)


def checkpoint_findings(fs: FileSystem, directory: Path, group_id: int) -> Iterator[Finding]:
    """Yields the damage found in DATA/checkpoints by its manifests."""
    checkpoints = Checkpoints(fs, directory, group_id)
    for name in checkpoints.names():
        loaded = checkpoints.load(name)
        if loaded is None:
            text = "has no sound manifest: the checkpoint cannot be used"
            yield Finding(checkpoints.path / name, 0, 0, "checkpoint", Severity.NOTE, text)
            continue
        for path, why in checkpoints.problems(loaded):
            yield Finding(path, 0, 0, "checkpoint", Severity.NOTE, f"{why}: the checkpoint cannot be used")


def irrelevant_state_ranges(fs: FileSystem, directory: Path, group_id: int) -> Iterator[IrrelevantRange]:
    """Yields bytes of DATA/state, LOCK and trash/ whose change no check detects, with the reason why no detection is
    needed."""
    state = directory / layout.STATE
    names = fs.listdir(state) if fs.exists(state) else []
    for name in names:
        why = next((why for prefix, why in _IRRELEVANT.items() if name == prefix or _begins(name, prefix)), "")
        if why:
            yield IrrelevantRange(state / name, 0, file_crc(fs, state / name)[0], why)
    listed = table_checksums.load(fs, state, group_id) or {}
    unlisted = [name for name in names if name.endswith(TABLE_SUFFIX) and name not in listed]
    if unlisted:
        with CheckpointReader(state) as reader:
            used = set(reader.tables())
        for name in unlisted:
            if name not in used:
                why = "a table that is not in use: the next start removes it"
                yield IrrelevantRange(state / name, 0, file_crc(fs, state / name)[0], why)
    if fs.exists(directory / layout.LOCK):
        yield IrrelevantRange(directory / layout.LOCK, 0, file_crc(fs, directory / layout.LOCK)[0], "names a process")


def _begins(name: str, prefix: str) -> bool:
    return prefix in ("LOG", "OPTIONS-") and name.startswith(prefix)


def _last_line(error: Exception) -> str:
    return " ".join(str(error).split("\n"))
