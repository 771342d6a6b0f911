"""Keeps the file DATA/EARLY: the undecided entries whose sends were answered before the commit, and the number of such
entries that were lost.

After a restart, a node that was killed can report from the file how many of its early answers were lost. The file is
one page, overwritten before each early answer is sent, and never synced: it survives the end of the process, not of the
machine::

     0 magic u32 "RMQE" | 4 crc u32 of bytes 8..(31 + 24 * count) | 8 format u16 | 10 reserved u16 | 12 count u32
    16 lost_messages u64 | 24 lost_entries u64
    32 count times: term u64 | index u64 | messages u32 | reserved u32

A page that is torn or of another format counts as empty, with a line in the log.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import NamedTuple

from raftlog.storage.files.fs import File, FileSystem
from raftlog.storage.files.sealed_record import HEAD_SIZE, is_intact, seal
from raftlog.types import EntryId

logger = logging.getLogger(__name__)

NAME = "EARLY"
FORMAT = 10
MAGIC = 0x524D5145
RECORDS_MAX = 128
_REST = struct.Struct(">HHIQQ")
_RECORD = struct.Struct(">QQII")
_RECORDS_AT = HEAD_SIZE + _REST.size
PAGE = 4096


class LostAnswers(NamedTuple):
    """The early answers that were lost since the file was made: messages and entries."""

    messages: int
    entries: int


def encode(records: dict[EntryId, int], lost: LostAnswers) -> bytes:
    """Returns the page with these records (entry -> its messages that were answered early) and the totals of lost
    answers."""
    rest = _REST.pack(FORMAT, 0, len(records), *lost) + b"".join(
        [_RECORD.pack(term, index, messages, 0) for (term, index), messages in records.items()]
    )
    return seal(MAGIC, rest)


def decode(page: bytes) -> tuple[dict[EntryId, int], LostAnswers] | None:
    """Returns the records and totals of a page; None if it is damaged or of another format."""
    if len(page) < _RECORDS_AT:
        return None
    fmt, _, count, messages, entries = _REST.unpack_from(page, HEAD_SIZE)
    end = _RECORDS_AT + count * _RECORD.size
    if fmt != FORMAT or count > RECORDS_MAX or len(page) < end or not is_intact(MAGIC, page[:end]):
        return None
    rows = _RECORD.iter_unpack(page[_RECORDS_AT:end])
    return {EntryId(term, index): count for term, index, count, _ in rows}, LostAnswers(messages, entries)


class Ledger:
    """Records early answers in the file DATA/EARLY and in memory. Event loop only; a write costs a few microseconds and
    no sync."""

    def __init__(self, fs: FileSystem, directory: Path, room: int) -> None:
        """`room`: the most entries that may be answered early and undecided at a time. Never raises: if the file cannot
        be used, no send is answered early."""
        self._fs = fs
        self._path = directory / NAME
        self.resize(room)
        self._records: dict[EntryId, int] = {}
        self.lost = LostAnswers(0, 0)
        self.failure = ""
        """The reason why nothing can be recorded, so that no send is answered early; "" if recording works."""
        self._file: File | None = None
        if fs.exists(self._path):
            self._load()

    def resize(self, room: int) -> None:
        """Changes `room`. Entries that are already recorded stay, even if there are more than `room`."""
        self.room = min(room, RECORDS_MAX)
        """The most entries that may be answered early and undecided at a time."""

    def _load(self) -> None:
        try:
            file = self._fs.open(self._path)
            page = file.pread(PAGE, 0)
            file.close()
        except OSError as error:
            logger.warning("it is unknown which sends were answered early before this start: %s", error)
            return
        found = decode(page)
        if found is None:
            logger.warning("it is unknown which sends were answered early before this start: %s is damaged", self._path)
            return
        self._records, self.lost = found

    @property
    def undecided(self) -> dict[EntryId, int]:
        """Undecided entry -> number of its messages that were answered early."""
        return self._records

    def note(self, entry_id: EntryId, messages: int) -> bool:
        """Records that messages of an entry are to be answered early. Returns True once that is written; False if there
        is no room or no file: the sends must then wait for the commit."""
        known = self._records.get(entry_id)
        if known is None and len(self._records) >= self.room:
            return False
        self._records[entry_id] = (known or 0) + messages
        if self._write():
            return True
        if known is None:
            del self._records[entry_id]
        else:
            self._records[entry_id] = known
        return False

    def kept(self, entry_id: EntryId) -> None:
        """Removes an entry that was committed. The file is written only with the next record: after a restart before
        that, this node finds the entry in its log."""
        self._records.pop(entry_id, None)

    def lose(self, entry_id: EntryId) -> int:
        """Removes an entry that another entry replaced, and counts its early answers as lost. Returns their number; 0
        if the entry was not recorded."""
        messages = self._records.pop(entry_id, 0)
        if messages:
            self.lost = LostAnswers(self.lost.messages + messages, self.lost.entries + 1)
            self._write()
        return messages

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> bool:
        try:
            if self._file is None:
                self._file = self._fs.open(self._path, create=True)
            self._file.pwritev([encode(self._records, self.lost)], 0)
        except OSError as error:
            if not self.failure:
                logger.warning("sends are no longer answered early, because that cannot be recorded: %s", error)
            self.failure = str(error)
            return False
        self.failure = ""
        return True
