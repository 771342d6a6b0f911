"""The state that the parts of one open log share: its segments, its tail, its damage, and the locks that guard them.

The reader, the writer, the cutter, the trimmer and the repairer (log_reader.py and so on) each have the one LogState of
their log. SegmentedLog puts them together.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from raftlog.errors import FrameError, OutOfRangeError
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, FileSystem
from raftlog.storage.segments.damage import DamageMap
from raftlog.storage.segments.sealed_index import load_index
from raftlog.storage.segments.segment import Segment
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import LogTail

_OPEN_FILES = 128
"""The most sealed segment files that are kept open for reading."""
_LOADED_INDEXES = 16
"""The most sidecars (index files of sealed segments) that are kept in memory."""


class LogState:
    """The state of one open log.

    Invariants. `segments` ascends and is never empty; its last one is active, the others are sealed. Each segment ends
    where the next one begins, and `header.previous` of the next one is the tail after it. `tail` is the last entry that
    is written and synced: what lies above it does not exist for readers.

    Threads. `segments` and `tail` are each replaced as a whole, so a reader takes each once and needs no lock. It takes
    `tail` first: a roll publishes `segments` first, so a tail taken earlier lies in the segments taken later. Only the
    appending thread sets `tail` and `failure`.

    Bytes below the tail change in two cases, both under `cutting`: a conflict cuts them, or a repair puts a peer's copy
    in place. A reader that meets a bad CRC or a missing file therefore waits for `cutting` and looks again before it
    calls the log damaged.

    Locks. A thread that takes more than one takes them in this order: `filing`, `cutting`, `publishing`, the lock of
    `damage`. Code that replaces `segments` reads the old and publishes the new ones under one hold of `publishing`.
    """

    __slots__ = (
        "cutting",
        "damage",
        "directory",
        "failure",
        "filing",
        "fs",
        "group_id",
        "load_sealed",
        "log",
        "open_sealed",
        "publishing",
        "segments",
        "tail",
    )

    def __init__(
        self, fs: FileSystem, directory: Path, group_id: int, segments: Sequence[Segment], tail: LogTail
    ) -> None:
        """`directory` is the data directory (DATA)."""
        self.fs = fs
        self.directory = directory
        self.log = directory / layout.LOG
        self.group_id = group_id
        self.segments = tuple(segments)
        self.tail = tail
        self.damage = DamageMap()
        """The frames below the tail that cannot be read intact. A read that touches them raises DamagedLogError; every
        other read is served."""
        self.damage.begin_at(self.previous)
        self.failure: str | None = None
        """The reason why the log refuses all writes; None while it accepts them."""
        self.filing = threading.Lock()
        """A lock held while files in front of the log's first entry are added or removed."""
        self.cutting = threading.Lock()
        """A lock held while bytes below the tail change, because a conflict is cut or a repair is put in place; and
        while a reader looks for damage."""
        self.publishing = threading.Lock()
        """A lock held while `segments` is replaced: by a roll, a cut, a repair, a trim, or a file that is put in front.
        """
        # The caches are keyed by the Segment object. A segment that is made again under the same name after a cut is
        # another object, and thus another key.
        self.open_sealed = lru_cache(_OPEN_FILES)(self._open_sealed)
        self.load_sealed = lru_cache(_LOADED_INDEXES)(self._load_sealed)

    @property
    def first_index(self) -> int:
        """Index of the oldest entry in this log."""
        return self.segments[0].header.base_index

    @property
    def first_position(self) -> int:
        """Position of the oldest entry in this log."""
        return self.segments[0].base

    @property
    def previous(self) -> LogTail:
        """The tail just before the oldest entry in this log; `EMPTY_TAIL` before GENESIS."""
        return self.segments[0].header.previous

    def segment_of(self, index: int) -> Segment:
        """Returns the segment that contains the entry. Raises OutOfRangeError if it was trimmed."""
        segments = self.segments
        number = bisect_right(segments, index, key=base_index_of) - 1
        if number < 0:
            raise OutOfRangeError(f"entry {index} was trimmed: the log begins with entry {self.first_index}")
        return segments[number]

    def segment_index(self, segment: Segment) -> SegmentIndex:
        """Returns the segment's index. Its entries in a damaged range whose `located` is False must not be used.

        May find damage, which it records. Raises OutOfRangeError if the segment was trimmed, and FrameError if it is no
        longer a part of the log.
        """
        return segment.index or self.load_sealed(segment)

    def segment_index_known(self, segment: Segment) -> bool:
        """Returns True if the position of each of the segment's entries is known. Otherwise no index of this segment
        may be trusted later."""
        return all(damaged.located or damaged.end_position <= segment.base for damaged in self.damage.ranges)

    def trimmed(self, position: int) -> OutOfRangeError:
        """Returns the error for a read below the first entry."""
        return OutOfRangeError(f"position {position} was trimmed: the log begins at position {self.first_position}")

    def forget_sealed(self) -> None:
        """Closes sealed files, because an open file keeps its disk space, and drops loaded indexes, which may be
        outdated."""
        self.load_sealed.cache_clear()
        self.open_sealed.cache_clear()

    def _open_sealed(self, segment: Segment) -> File:
        return self.fs.open(segment.path)

    def _load_sealed(self, segment: Segment) -> SegmentIndex:
        segments = self.segments
        if segment not in segments[:-1]:
            if segment.base < segments[0].base:
                raise self.trimmed(segment.base)
            raise FrameError(f"{segment.path.name} is no sealed segment any more")
        following = segments[segments.index(segment) + 1]
        loaded = load_index(self.fs, segment, following.header.previous, self.group_id)
        for damaged in loaded.damaged:
            self.damage.add(damaged)
        return loaded.segment_index


def base_index_of(segment: Segment) -> int:
    """Returns the index of the segment's first entry, as a key for bisect."""
    return segment.header.base_index


def base_position_of(segment: Segment) -> int:
    """Returns the position of the segment's first entry, as a key for bisect."""
    return segment.header.base_position
