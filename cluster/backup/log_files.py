"""Segment files of a backup, written frame by frame from bytes of the log that came from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from cluster.backup.manifest import SegmentRecord
from raftlog.checksums import crc32c
from raftlog.frame import check_follows, tail_after
from raftlog.storage.layout import segment_name
from raftlog.storage.segment import encode_header
from raftlog.types import FLAG_ROLL, Entry, LogTail


class LogFiles:
    """The files in one folder. A frame that is the first of a segment (FLAG_ROLL) begins a file, as on every node."""

    def __init__(self, folder: Path, group_id: int, tail: LogTail, records: list[SegmentRecord] | None = None) -> None:
        """`tail`: of the log so far; `records`: the files that are there, the last of which ends at `tail`."""
        self._folder = folder
        self._group_id = group_id
        self.tail = tail
        self.records = list(records or [])
        self._file: BinaryIO | None = None
        if self.records:
            self._file = (folder / segment_name(self.records[-1].base_position)).open("r+b")
            self._file.seek(0, os.SEEK_END)

    def append(self, entry: Entry) -> None:
        """The next frame. Raises FrameError if it does not follow; nothing is written then. Raises OSError."""
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
        """Removes files that end at or below the position; the last one stays."""
        while len(self.records) > 1 and self.records[0].end_position <= position:
            (self._folder / segment_name(self.records.pop(0).base_position)).unlink()

    def close(self) -> None:
        """All of it is on disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
