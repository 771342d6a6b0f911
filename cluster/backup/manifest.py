"""Defines manifest.json, which lists the contents of a backup with a CRC of every file. It is written last, so a folder
without it is no backup.

::

    TARGET/<time>-<cluster>-n<node>-i<index>/       one backup; <...>.partial while it is being made
        manifest.json                               the list of contents, as described below
        log/<base position>.seg                     segment files up to the cut; the last one ends at the cut
        state/                                      a RocksDB checkpoint of the applied state at the cut

The cut is the index of an applied entry. The backup has everything up to this entry, and nothing after it. Digests,
which use all of their 64 bits, are written as hexadecimal text, because some JSON readers would round them.
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
    """A file of `state/`. A backup is good only if all of its bytes match this record."""

    path: str
    """The path, relative to the backup's folder."""
    size: int
    crc32c: int


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment file of `log/`. Only its frames must match this record. The sync marks before them and the bytes behind
    them differ from disk to disk."""

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
    """Wall clock of the node in ms, when the backup was begun."""
    node: int
    cluster_uuid: str
    cluster_name: str
    broker_name: str
    group_id: int
    index: int
    """The cut: the index of the last applied entry in the backup. The next four fields are about the same entry."""
    term: int
    position: int
    """The position after that entry, which is the end of the log."""
    header_crc: int
    timestamp_ms: int
    segment_size: int
    origin: list[tuple[str, int]]
    """The ancestors from which the cluster was restored, oldest first: (cluster uuid, last shared index)."""
    digest: dict[str, str]
    """Family of rows -> sum of its rows at the cut, as 16 hexadecimal digits."""
    segments: list[SegmentRecord]
    state: list[FileRecord]
    bytes_total: int
    bytes_new: int
    """Number of bytes that were copied. The other files are hard links."""
    versions: dict[str, str]
    level: int = BASELINE
    """The level of the cluster at the cut: the version of the formats in its rows and its log."""
    genesis: str = ""
    """The frame at index 0 in hexadecimal digits. It is needed if the first of `segments` begins above index 0."""


_SEALED = SealedJson("backup", SCHEMA)


def hex_sums(sums: dict[str, int]) -> dict[str, str]:
    """Returns family -> its sum as 16 hexadecimal digits, for a manifest."""
    return {family: f"{total:016x}" for family, total in sums.items()}


def encode(manifest: Manifest) -> bytes:
    """Returns the bytes of manifest.json."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return _SEALED.seal(body) + b"\n"


def _elsewhere(backup: Path) -> str:
    """Returns the command that lists backups near the path `backup`, which is not a backup."""
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
    """Returns the manifest of a backup. Raises LocalError if there is none, or if it is damaged, has an unknown format,
    or is of a newer level."""
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
