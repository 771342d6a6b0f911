"""The hard state (term and vote) on disk: one file, two CRC'd slots a page apart, both written and synced at every
save.

Slot (64 bytes, big-endian, at offsets 0 and 4096)::

     0 magic u32 "RMQH" | 4 crc u32 of bytes 8..63 | 8 format u16 | 10 reserved u16 | 12 group_id u32
    16 version u64 | 24 term u64 | 32 vote u64 | 40 commit_index u64 | 48 reserved 16

Why both: if the slots were used in turn, corruption of the newest would fall back to an *older vote*, and the node
could vote twice in a term. With both equal, one corrupt slot loses nothing. A save overwrites the older slot first, so
that a torn write leaves the newer one intact.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError, InvariantViolationError, OutOfSpaceError, StorageError, out_of_space
from raftlog.storage.files.fs import File, FileSystem, storage_error, write_file
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, refuse_unknown, seal
from raftlog.types import NOBODY, HardState, NodeId

MAGIC = 0x524D5148
FORMAT = 10
SLOT_OFFSETS = (0, 4096)
SLOT_SIZE = 64
_REST = struct.Struct(">HHIQQQQ16x")


class _Slot(NamedTuple):
    version: int
    state: HardState


def encode_slot(version: int, state: HardState, group_id: int) -> bytes:
    """Returns the 64 bytes of a slot."""
    rest = _REST.pack(FORMAT, 0, group_id, version, state.term, state.vote, max(state.commit_index, 0))
    return seal(MAGIC, rest)


def decode_slot(data: bytes, group_id: int) -> _Slot | None:
    """Returns the content of a slot; None if it is damaged or of another group. Raises CorruptLogError if this version
    does not read its format."""
    if len(data) != SLOT_SIZE or not is_intact(MAGIC, data):
        return None
    fmt, _, group, version, term, vote, commit_index = _REST.unpack_from(data, HEAD_SIZE)
    if group != group_id:
        return None
    refuse_unknown("hard state", fmt, FORMAT)
    return _Slot(version, HardState(term, NodeId(vote), commit_index))


class HardStateStore:
    """The file DATA/hard_state, open for reading and writing. Used by one thread. After a StorageError other than
    OutOfSpaceError nothing is written any more: to save another term or vote raises StorageError."""

    __slots__ = ("_failed", "_file", "_fs", "_group_id", "_newest", "_state", "_version", "healed")

    def __init__(self, fs: FileSystem, file: File, group_id: int) -> None:
        self._fs = fs
        self._file = file
        self._group_id = group_id
        self._failed = False
        self.healed = False
        """True if opening found one slot damaged or older than the other."""
        slots = [decode_slot(file.pread(SLOT_SIZE, offset), group_id) for offset in SLOT_OFFSETS]
        good = [number for number in (0, 1) if slots[number] is not None]
        if not good:
            raise CorruptLogError(
                f"both slots of {file.path} are damaged: this node no longer knows its term and vote, so it must not "
                "vote again under its old uuid. Replace the node: move the data directory away and rejoin empty."
            )
        versions = [slot.version if slot else -1 for slot in slots]
        self._newest = 0 if versions[0] >= versions[1] else 1
        newest = slots[self._newest]
        assert newest is not None
        self._version, self._state = newest
        self.healed = versions[0] != versions[1]
        # Both slots are written again even if they are equal. After a killed process or a failed sync, the content that
        # was read may be in the page cache only. `save` would not write the same vote again, so it might never reach
        # the disk.
        self._write()

    @classmethod
    def create(cls, fs: FileSystem, path: Path, group_id: int) -> HardStateStore:
        """Makes the file with the hard state of a node that never voted: term 0."""
        slot = encode_slot(1, HardState(0, NOBODY, 0), group_id)
        write_file(fs, path, slot.ljust(SLOT_OFFSETS[1], b"\0") + slot.ljust(4096, b"\0"))
        return cls.open(fs, path, group_id)

    @classmethod
    def open(cls, fs: FileSystem, path: Path, group_id: int) -> HardStateStore:
        """Opens the file: loads the newest good slot and writes it to both. Raises CorruptLogError if the file is
        missing or neither slot is good, StorageError if the disk fails."""
        if not fs.exists(path):
            raise CorruptLogError(
                f"{path} is missing: this node no longer knows its term and vote, so it must not vote again under its "
                "old uuid. Replace the node: move the data directory away and rejoin empty."
            )
        try:
            return cls(fs, fs.open(path), group_id)
        except OSError as error:
            raise storage_error(fs, "opening", path, error) from error

    def load(self) -> HardState:
        """Returns the hard state that was saved last."""
        return self._state

    def save(self, hard_state: HardState) -> None:
        """Saves `hard_state`: returns when it is in both slots on disk (two fdatasyncs).

        A change of `commit_index` alone, which is only a hint, is kept in memory and written with the next save or by
        `close`. Raises StorageError, OutOfSpaceError if the same save may be made again, and InvariantViolationError
        for a term that falls or a vote that changes within a term.
        """
        old, new = self._state, hard_state
        if new.term < old.term or (new.term == old.term and old.vote not in (NOBODY, new.vote)):
            raise InvariantViolationError(f"hard state would go from {old} to {new}: a vote is cast once per term")
        self._state = new
        if new.term == old.term and new.vote == old.vote:
            return
        try:
            self._write()
        except OutOfSpaceError:
            self._state = old  # otherwise a retry of the same save would find no change to write
            raise

    def close(self) -> None:
        """Writes the newest `commit_index` and closes the file. After a failure it only closes the file."""
        if not self._failed:
            self._write()
        self._failed = True
        self._file.close()

    def _write(self) -> None:
        self._version += 1
        # The older slot is written first. Until its sync returns, the newer slot still has the last saved term and
        # vote.
        self._write_slot(1 - self._newest)
        self._newest = 1 - self._newest
        self._write_slot(1 - self._newest)

    def _write_slot(self, number: int) -> None:
        if self._failed:
            raise StorageError(f"{self._file.path} is closed or failed before; the node stops taking part")
        again = False
        try:
            try:
                self._file.pwritev([encode_slot(self._version, self._state, self._group_id)], SLOT_OFFSETS[number])
            except OSError as error:
                again = out_of_space(error)
                raise
            self._file.fdatasync()
        except OSError as error:
            self._failed = not again
            raise storage_error(self._fs, "saving term and vote in", self._file.path, error, again=again) from error
