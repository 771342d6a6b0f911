"""Changes bytes in a node's files while the node does not notice, and finds out what became of them."""

from __future__ import annotations

import itertools
import os
import random
from enum import Enum
from operator import ne
from pathlib import Path
from typing import NamedTuple

from raftlog.storage.files import layout
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from statemachine.rows.kv import TABLE_SUFFIX

BEHIND_END = 256 << 10
"""Bytes at the end of the log that are not changed: a node may still hold them in memory and never read them."""


CHUNK = 64 << 10
"""Bytes that are compared at once; only chunks that differ are compared byte by byte."""


class FlippedFile(Enum):
    """The kind of file that a changed byte is in."""

    SEALED = "sealed segment"
    ACTIVE = "active segment"
    INDEX = "index of a segment"
    TABLE = "table of the state"


class Flip(NamedTuple):
    """One byte that was changed."""

    node: int
    kind: FlippedFile
    path: Path
    offset: int
    before: int
    after: int
    position: int
    """The byte's position in the log; -1 if it is outside the log."""

    @property
    def is_there(self) -> bool:
        """True if the file still has the changed byte; False for a file that was replaced or set aside."""
        try:
            return read_byte(self.path, self.offset) == self.after
        except OSError:
            return False

    def __str__(self) -> str:
        """Returns which byte of which file and node was changed, in words."""
        return f"byte {self.offset:,} of {self.path.name} ({self.kind.value}) on node {self.node}"


def read_byte(path: Path, offset: int) -> int:
    """Returns the byte at `offset`. Raises OSError, also if the file has no such byte."""
    with path.open("rb") as file:
        data = os.pread(file.fileno(), 1, offset)
    if not data:
        raise OSError(f"{path} ends before byte {offset}")
    return data[0]


def flip(node: int, data: Path, kind: FlippedFile, rng: random.Random, end_position: int) -> Flip | None:
    """Changes one byte of a file of this kind, of the node whose directory is `data`. Returns None if there is no such
    file now, or no byte in it that may be changed.

    `end_position` is the position that the node's log is known to reach: only bytes of frames are changed in the log.
    """
    for _ in range(20):
        found = _choose(data, kind, rng, end_position)
        if found is None:
            return None
        path, offset, position = found
        try:
            with path.open("r+b") as file:
                before = os.pread(file.fileno(), 1, offset)
                if before:
                    after = before[0] ^ rng.randrange(1, 256)
                    os.pwrite(file.fileno(), bytes([after]), offset)
                    return Flip(node, kind, path, offset, before[0], after, position)
        except OSError:
            continue  # the table was merged into another one meanwhile
    return None


def _choose(data: Path, kind: FlippedFile, rng: random.Random, end_position: int) -> tuple[Path, int, int] | None:
    """Chooses a byte; returns (file, offset in it, log position or -1), or None if there is none to choose. Takes the
    active segment if there is no sealed one.
    """
    if kind is FlippedFile.TABLE or kind is FlippedFile.INDEX:
        folder, suffix = (
            (layout.STATE, TABLE_SUFFIX) if kind is FlippedFile.TABLE else (layout.LOG, layout.INDEX_SUFFIX)
        )
        files = sorted(path for path in (data / folder).iterdir() if path.suffix == suffix and path.stat().st_size)
        if not files:
            return None
        path = rng.choice(files)
        return path, rng.randrange(path.stat().st_size), -1
    bases = _segments(data)
    spans = [(base, following) for base, following in itertools.pairwise(bases) if following > base]
    if kind is FlippedFile.ACTIVE or not spans:
        spans = [(bases[-1], end_position - BEHIND_END)]
    base, end = rng.choice(spans)
    if end <= base:
        return None
    position = rng.randrange(base, end)
    return data / layout.LOG / layout.segment_name(base), LOCAL_HEADER_SIZE + position - base, position


def different_bytes(first: Path, second: Path) -> int:
    """Returns the number of bytes in which the logs of two stopped nodes differ, over the segments that both have. Does
    not compare local headers, nor the rest of a file that is longer than the other node's. Raises OSError.
    """
    different = 0
    for name in map(layout.segment_name, sorted(set(_segments(first)) & set(_segments(second)))):
        one, other = ((data / layout.LOG / name).read_bytes() for data in (first, second))
        length = min(len(one), len(other))
        for at in range(LOCAL_HEADER_SIZE, length, CHUNK):
            here = slice(at, min(at + CHUNK, length))
            if one[here] != other[here]:
                different += sum(map(ne, one[here], other[here]))
    return different


def _segments(data: Path) -> list[int]:
    """Returns the base positions of a node's segments, ascending."""
    return layout.segment_bases([path.name for path in (data / layout.LOG).iterdir()])
