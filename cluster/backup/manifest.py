"""Format of manifest.json, which lists the contents of a backup with a CRC of every file. It is written last: a folder
without it is no backup.

::

    TARGET/<time>-<cluster>-n<node>-i<index>/       one backup; <...>.partial while it is being made
        manifest.json                               below
        log/<base position>.seg                     segment files up to the cut; of the last one only the part below it
        state/                                      a RocksDB checkpoint of the applied state at the cut

The cut is an applied index: everything up to it is committed and in the backup, nothing above it is. Numbers that need
64 bits (digests) are hexadecimal text, so that any JSON reader keeps them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cluster.config.sealed_json import SealedJson
from raftlog.format_versions import BASELINE, why_above, why_unknown
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.json_text import MALFORMED
from statemachine.levels import LEVEL

SCHEMA = 10
MANIFEST = "manifest.json"
LOG = "log"
STATE = "state"


class FileRecord(msgspec.Struct, frozen=True):
    """A file of `state/`. Every byte of it must match."""

    path: str
    """The path, relative to the backup's folder."""
    size: int
    crc32c: int


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment file. Only its frames must match: the sync marks in front and the bytes behind are local to a disk."""

    base_position: int
    end_position: int
    """Position after the file's last frame."""
    last_index: int
    last_header_crc: int
    """Header CRC of the last frame. If it is equal in two logs at one index, the logs are equal up to there."""
    crc32c: int
    """CRC-32C of all frames in the file."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a backup in its manifest.json."""

    name: str
    made_ms: int
    """The node's wall clock when the backup was begun."""
    node: int
    cluster_uuid: str
    cluster_name: str
    broker_name: str
    group_id: int
    index: int
    """The cut: the applied index. The next four fields are as of the cut too."""
    term: int
    position: int
    """End of the log: the position after entry `index`."""
    header_crc: int
    timestamp_ms: int
    segment_size: int
    origin: list[tuple[str, int]]
    """The cluster's ancestors, oldest first: (cluster uuid, last index)."""
    digest: dict[str, str]
    """Family -> sum of its rows at the cut, 16 hexadecimal digits."""
    segments: list[SegmentRecord]
    state: list[FileRecord]
    bytes_total: int
    bytes_new: int
    """Bytes that were copied; the rest are hard links."""
    versions: dict[str, str]
    level: int = BASELINE
    """The level (version of formats) of the cluster in its rows and its log."""
    genesis: str = ""
    """The frame at index 0 in hexadecimal digits. Needed if the first of `segments` begins above it."""


_SEALED = SealedJson("backup", SCHEMA)


def hex_sums(sums: dict[str, int]) -> dict[str, str]:
    """Formats digest sums for a manifest."""
    return {family: f"{total:016x}" for family, total in sums.items()}


def encode(manifest: Manifest) -> bytes:
    """Returns the bytes of manifest.json."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return _SEALED.seal(body) + b"\n"


def _elsewhere(backup: Path) -> str:
    """Returns the command that finds a backup near a path that is none."""
    folder = backup if backup.is_dir() else backup.parent
    if folder == Path("/") or not any(each.joinpath(MANIFEST).exists() for each in _folders_in(folder)):
        return "raftmq backup list DIR    (a backup is a folder DIR/NAME, or URL/NAME of a store)"
    return f"raftmq backup list {folder}"


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir()]
    except OSError:
        return []


def load(backup: Path) -> Manifest:
    """Reads a backup's manifest. Raises LocalError if there is none, or if it is damaged, of another format, or of a
    newer level."""
    path = backup / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LocalError(
            f"{backup} is no backup",
            f"there is no {MANIFEST} in it" if backup.is_dir() else "there is no such directory",
            _elsewhere(backup),
            ExitCode.REFUSED,
        ) from None
    except OSError as error:
        raise LocalError(f"{path} cannot be read", str(error), f"ls -l {backup}", ExitCode.REFUSED) from error
    try:
        body = _SEALED.open(data, lambda schema: LocalError(*why_unknown(backup, schema, SCHEMA), ExitCode.REFUSED))
        manifest = msgspec.json.decode(body, type=Manifest)
    except MALFORMED as error:
        raise LocalError(
            f"{path} is damaged",
            f"{error}; without it the rest of the backup cannot be checked",
            f"use another backup: raftmq backup list {backup.parent}",
            ExitCode.REFUSED,
        ) from None
    if manifest.level > LEVEL:
        raise LocalError(*why_above(backup, manifest.level, LEVEL), ExitCode.REFUSED)
    return manifest
