"""DATA/RUN: the process that uses this directory, how the last run ended, and up to which entry its rows are synced.

RocketMQ keeps the same in two files: `abort` (there while running, gone after an orderly stop) and `checkpoint` (times
of the last flush of log, queues and index). Two slots of 512 bytes at offsets 0 and 4096, written by turns, each
followed by an fdatasync; big-endian (docs/disk-format.md)::

     0 magic u32 "RMQR" | 4 crc u32 of bytes 8..511 | 8 format u16 | 10 state u8 | 11 reserved u8 | 12 group_id u32
    16 seq u64 | 24 pid u32 | 28 synced_header_crc u32 | 32 boot_id 16 | 48 started_ms u64
    56 synced_index i64 | 64 synced_term u64 | 72 log_flushed_ms u64 | 80 queues_flushed_ms u64
    88 index_flushed_ms u64 | 96 checkpoint_index i64 | 104 reserved, zero

Safety does not depend on it: a lost or torn RUN reads as an unclean stop without further information.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import out_of_space
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, FileSystem, storage_error
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, refuse_unknown, seal

MAGIC = 0x524D5152
FORMAT = 10
SLOT_SIZE = 512
SLOT_OFFSETS = (0, 4096)
_REST = struct.Struct(">HBxIQII16sQqQQQQq")


class RunState(IntEnum):
    """The state of a run of the node. Values are on disk: never renumber."""

    RUNNING = 1
    STOPPED = 2
    """The run ended with an orderly stop: everything was synced and closed."""


class Run(NamedTuple):
    """One run of a node, as recorded in RUN. Times in ms since the Unix epoch, 0 for never; indexes -1 for none."""

    state: RunState
    pid: int
    boot_id: bytes
    """The machine's boot id, 16 bytes. A different one means that the machine was restarted since."""
    started_ms: int
    synced_index: int = -1
    """Index of the last entry whose rows RocksDB is known to have on disk; the next two fields are that entry's term
    and its header's CRC."""
    synced_term: int = 0
    synced_header_crc: int = 0
    log_flushed_ms: int = 0
    queues_flushed_ms: int = 0
    index_flushed_ms: int = 0
    checkpoint_index: int = -1
    """Applied index of the newest checkpoint of the state."""


def encode_slot(run: Run, seq: int, group_id: int) -> bytes:
    """Returns the 512 bytes of slot `seq % 2`."""
    rest = _REST.pack(
        FORMAT,
        run.state,
        group_id,
        seq,
        run.pid,
        run.synced_header_crc,
        run.boot_id,
        run.started_ms,
        run.synced_index,
        run.synced_term,
        run.log_flushed_ms,
        run.queues_flushed_ms,
        run.index_flushed_ms,
        run.checkpoint_index,
    )
    return seal(MAGIC, rest.ljust(SLOT_SIZE - HEAD_SIZE, b"\0"))


def decode_slot(data: bytes, group_id: int) -> tuple[int, Run] | None:
    """Returns (seq, run) of a slot; None if it is damaged or of another group. Raises CorruptLogError if this version
    does not read its format."""
    if len(data) != SLOT_SIZE or not is_intact(MAGIC, data):
        return None
    (
        fmt,
        state,
        group,
        seq,
        pid,
        header_crc,
        boot_id,
        started_ms,
        index,
        term,
        log_ms,
        queues_ms,
        index_ms,
        checkpoint,
    ) = _REST.unpack_from(data, HEAD_SIZE)
    refuse_unknown("RUN", fmt, FORMAT)
    if group != group_id or state not in list(RunState):
        return None
    return seq, Run(
        RunState(state), pid, boot_id, started_ms, index, term, header_crc, log_ms, queues_ms, index_ms, checkpoint
    )


def _newest(file: File, group_id: int) -> tuple[int, Run] | None:
    slots = [decode_slot(file.pread(SLOT_SIZE, offset), group_id) for offset in SLOT_OFFSETS]
    return max((slot for slot in slots if slot is not None), default=None)


def load_run(fs: FileSystem, directory: Path, group_id: int) -> Run | None:
    """Reads RUN without opening it for writing. Returns None if it is missing or both slots are damaged."""
    path = directory / layout.RUN
    if not fs.exists(path):
        return None
    file = fs.open(path)
    newest = _newest(file, group_id)
    file.close()
    return newest[1] if newest else None


class RunFile:
    """The file DATA/RUN, open for writing. Used by one thread at a time."""

    __slots__ = ("_file", "_fs", "_group_id", "_seq", "previous")

    def __init__(self, fs: FileSystem, directory: Path, *, group_id: int) -> None:
        """Opens or makes the file; nothing is written yet. Raises StorageError."""
        path = directory / layout.RUN
        self._fs = fs
        self._group_id = group_id
        try:
            made = not fs.exists(path)
            self._file = fs.open(path, create=True)
            if made:
                fs.fsync_dir(directory)
            newest = _newest(self._file, group_id)
        except OSError as error:
            raise storage_error(fs, "opening", path, error) from error
        self._seq = newest[0] if newest else 0
        self.previous: Run | None = newest[1] if newest else None
        """The run before this one; None if it is unknown, which counts as an unclean stop."""

    def write(self, run: Run) -> None:
        """Writes `run` and returns when it is on disk; a crash before that leaves the previous content.

        Raises StorageError; OutOfSpaceError if there is no space for it now.
        """
        seq = self._seq + 1
        again = False
        try:
            try:
                self._file.pwritev([encode_slot(run, seq, self._group_id)], SLOT_OFFSETS[seq % 2])
            except OSError as error:
                again = out_of_space(error)
                raise
            # counted up only after the write: one that is repeated for lack of space must use the same slot again and
            # leave the intact one
            self._seq = seq
            self._file.fdatasync()
        except OSError as error:
            raise storage_error(self._fs, "writing", self._file.path, error, again=again) from error

    def close(self) -> None:
        """Closes the file; writes nothing."""
        self._file.close()


def stopped_in_order(run: Run | None) -> bool:
    """Returns True if the run ended with an orderly stop; False if it is unknown."""
    return run is not None and run.state == RunState.STOPPED
