"""DATA/GENESIS: a copy of the frame at index 0, so that a node whose first entry is damaged still knows its cluster.

The frame proves itself (both CRCs). It is written when the directory is made; an opening writes a lost or damaged copy
again.
"""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import CorruptLogError, DamagedLogError, FrameError, OutOfRangeError, out_of_space
from raftlog.frame import HEADER_SIZE, FrameHeader, decode_entries
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file, write_file
from raftlog.storage.files.genesis import Genesis, decode
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry


def read_copy(fs: FileSystem, directory: Path, group_id: int | None = None) -> Entry:
    """Returns the entry in DATA/GENESIS. Raises FrameError if it is missing, damaged, or of another group."""
    path = directory / layout.GENESIS
    if not fs.exists(path):
        raise FrameError(f"{path} is missing")
    entries = list(decode_entries(read_file(fs, path), group_id))
    if len(entries) != 1:
        raise FrameError(f"{path} holds {len(entries)} frames")
    return entries[0]


def keep_copy(fs: FileSystem, segment: Path, group_id: int) -> None:
    """Ensures that DATA/GENESIS exists before the segment file that begins with GENESIS is removed.

    Raises CorruptLogError if neither the copy nor the frame in `segment` is intact, OSError if the copy is missing and
    cannot be written, for instance on a full disk.
    """
    directory = segment.parent.parent
    try:
        read_copy(fs, directory, group_id)
        return
    except FrameError:
        pass
    file = fs.open(segment)
    try:
        header = FrameHeader(file.pread(HEADER_SIZE, LOCAL_HEADER_SIZE), group_id)
        entry = header.entry(file.pread(header.frame_length, LOCAL_HEADER_SIZE)[HEADER_SIZE:])
    except FrameError as error:
        raise CorruptLogError(
            f"{segment} is not removed: GENESIS is damaged there, and its copy is lost. Put {layout.GENESIS} of any "
            f"other node of this cluster, which is the same, into {directory}."
        ) from error
    write_file(fs, directory / layout.GENESIS, entry.header + entry.payload)


def load_genesis(fs: FileSystem, directory: Path, log: LogReader, group_id: int) -> Genesis:
    """Returns the cluster's constants from GENESIS in the log, else from its copy; writes or repairs the copy, if there
    is space. Raises CorruptLogError if both are lost."""
    try:
        copy: Entry | None = read_copy(fs, directory, group_id)
    except FrameError:
        copy = None
    try:
        entry = log.read_entries(0, 1, 1)[0]
    except (DamagedLogError, OutOfRangeError) as error:
        if copy is None:
            raise CorruptLogError(
                f"GENESIS is damaged in {directory / layout.LOG} and in its copy: {error}. Put {layout.GENESIS} of any "
                f"other node of this cluster, which is the same, into {directory}."
            ) from error
        return decode(copy)
    if copy != entry:
        try:
            write_file(fs, directory / layout.GENESIS, entry.header + entry.payload)
        except OSError as error:
            if not out_of_space(error):
                raise
    return decode(entry)
