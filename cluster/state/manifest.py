"""Encodes and decodes the manifest of a checkpoint of the state: DATA/checkpoints/<name>/CHECKPOINT, a sealed file
(`raftlog.storage.files.sealed_map`) with the magic "RMQC":

    {index, term, header_crc, position, timestamp_ms: the last applied entry;   made_ms: wall clock, for people;
     sums: {family: u64}, empty if they were not known;   files: [[name, size, crc32c], ...] of everything beside it;
     peer: the node it was fetched from, 0 if it was made here;   note: how, for people, "" if made here;
     level: that of the cluster in its rows}

The name is `<index, 20 digits>-<term>-<8 hex digits>`; the digits are a CRC of the sums and of header_crc, so two
checkpoints of one name hold the same state.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgpack

from raftlog.errors import CorruptLogError
from raftlog.format_versions import BASELINE, why_above
from raftlog.storage.files.sealed_map import seal, unseal
from raftmq_wire.checksums import crc32c
from statemachine.broker_state import AppliedMark
from statemachine.levels import LEVEL

FILE = "CHECKPOINT"
MAGIC = 0x524D5143
FORMAT = 10
_NAME = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{8})")


class CheckpointFile(NamedTuple):
    """A file of a checkpoint."""

    name: str
    size: int
    crc32c: int


class CheckpointManifest(NamedTuple):
    """The contents of a checkpoint's manifest, as drawn in the module. `mark.end_position` is `position`."""

    mark: AppliedMark
    made_ms: int
    sums: dict[str, int]
    files: tuple[CheckpointFile, ...]
    peer: int = 0
    note: str = ""
    level: int = BASELINE

    @property
    def name(self) -> str:
        """The name of the checkpoint's directory."""
        digest = crc32c(msgpack.packb([self.mark.header_crc, sorted(self.sums.items())]))
        return f"{self.mark.index:020d}-{self.mark.term}-{digest:08x}"

    @property
    def size(self) -> int:
        """Bytes of all files, including those that are hard links to the state's."""
        return sum(file.size for file in self.files)


def is_name(name: str) -> bool:
    """Returns True if a directory of this name is a checkpoint."""
    return _NAME.fullmatch(name) is not None


def index_of(name: str) -> int:
    """Returns the applied index that a checkpoint's name contains."""
    return int(name[:20])


def encode(manifest: CheckpointManifest, group_id: int) -> bytes:
    """Returns the bytes of the manifest file."""
    mark = manifest.mark
    content = {
        "index": mark.index,
        "term": mark.term,
        "header_crc": mark.header_crc,
        "position": mark.end_position,
        "timestamp_ms": mark.timestamp_ms,
        "made_ms": manifest.made_ms,
        "sums": manifest.sums,
        "files": [list(file) for file in manifest.files],
        "peer": manifest.peer,
        "note": manifest.note,
        "level": manifest.level,
    }
    return seal(MAGIC, FORMAT, group_id, content)


def decode(data: bytes, group_id: int, path: Path) -> CheckpointManifest | None:
    """Decodes a manifest; returns None if it is damaged. Raises CorruptLogError for a newer format or level."""
    content = unseal(data, MAGIC, FORMAT, group_id, path)
    if content is None:
        return None
    try:
        mark = AppliedMark(
            content["term"], content["index"], content["position"], content["timestamp_ms"], content["header_crc"]
        )
        files = tuple(CheckpointFile(*file) for file in content["files"])
        peer, note, level = content.get("peer", 0), content.get("note", ""), int(content.get("level", BASELINE))
        found = CheckpointManifest(mark, content["made_ms"], dict(content["sums"]), files, peer, note, level)
    except (KeyError, TypeError, ValueError):
        return None
    if level > LEVEL:
        raise CorruptLogError("\n".join(why_above(path, level, LEVEL)))
    return found
