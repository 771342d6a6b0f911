"""DATA/VOTE_WITHHELD: this node has lost durable entries and does not know, or no longer has, the real end of its log.

While the file exists, the node neither votes nor campaigns, across restarts: its vote might elect a leader that lacks
an entry that this node acknowledged. It is removed once the log on disk reaches a committed entry of a term after the
loss: raftlog/core/eligibility.py says why no acknowledged entry is missing then.

    0 magic u32 "RMQV" | 4 crc u32 of bytes 8..end | 8 format u16 | 10 reserved u16 | 12 group_id u32
    16 msgpack map {reason: text, index: int, term: int, since_ms: int}

A damaged file counts as present. The file is written before any byte of the log is cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem, read_file, storage_error, write_file
from raftlog.storage.files.sealed_map import seal, unseal

MAGIC = 0x524D5156
FORMAT = 10


class VoteWithheld(NamedTuple):
    """The reason why the vote is withheld, and the end of the durable log as far as it is known (index -1: unknown)."""

    reason: str
    index: int  # type: ignore[assignment]
    term: int
    since_ms: int = 0
    """The time at which the vote was first withheld, in milliseconds, given by the caller; 0 if unknown."""


def encode(withheld: VoteWithheld, group_id: int) -> bytes:
    """Returns the bytes of DATA/VOTE_WITHHELD."""
    return seal(MAGIC, FORMAT, group_id, withheld._asdict())


def decode(data: bytes, group_id: int) -> VoteWithheld | None:
    """Reads the bytes of DATA/VOTE_WITHHELD; returns None if they are damaged or of another group. Raises
    CorruptLogError if this version does not read their format."""
    fields = unseal(data, MAGIC, FORMAT, group_id, layout.VOTE_WITHHELD)
    if fields is None:
        return None
    try:
        return VoteWithheld(str(fields["reason"]), int(fields["index"]), int(fields["term"]), int(fields["since_ms"]))
    except (ValueError, TypeError, KeyError):
        return None


def load(fs: FileSystem, directory: Path, group_id: int) -> VoteWithheld | None:
    """Returns the content of DATA/VOTE_WITHHELD; None if the vote is not withheld. For a damaged file, the index is -1.
    Raises StorageError."""
    path = directory / layout.VOTE_WITHHELD
    try:
        if not fs.exists(path):
            return None
        found = decode(read_file(fs, path), group_id)
    except OSError as error:
        raise storage_error(fs, "reading", path, error) from error
    return found or VoteWithheld(f"{path.name} is there, but damaged: why the vote is withheld is not known", -1, 0)


def withhold(fs: FileSystem, directory: Path, withheld: VoteWithheld, group_id: int) -> VoteWithheld:
    """Withholds the vote: returns the content of the file when it is on disk. If the vote is withheld already, the file
    gets both reasons, the larger (term, index) and the earlier time.

    Raises StorageError; the caller must then cut nothing.
    """
    known = load(fs, directory, group_id)
    if known is not None:
        term, index = max((known.term, known.index), (withheld.term, withheld.index))
        since_ms = known.since_ms or withheld.since_ms
        reasons = known.reason if withheld.reason in known.reason else f"{known.reason}\n{withheld.reason}"
        withheld = VoteWithheld(reasons[:4000], index, term, since_ms)
    path = directory / layout.VOTE_WITHHELD
    try:
        write_file(fs, path, encode(withheld, group_id))
    except OSError as error:
        raise storage_error(fs, "writing", path, error) from error
    return withheld


def release(fs: FileSystem, directory: Path) -> None:
    """Removes the file, which frees the vote; returns when the removal is durable. Does nothing if there is no file.
    Raises StorageError."""
    path = directory / layout.VOTE_WITHHELD
    try:
        if fs.exists(path):
            fs.unlink(path)
        fs.fsync_dir(directory)
    except OSError as error:
        raise storage_error(fs, "removing", path, error) from error
