"""Verifies a backup: every byte of every file, the links between the log's frames, and the sums of the state's rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from cluster.backup import manifest as manifests
from cluster.backup.files import checksum
from cluster.backup.manifest import LOG, MANIFEST, STATE, FileRecord, Manifest, SegmentRecord
from cluster.backup.segments import walk
from raftlog.errors import FrameError, RaftLogError
from raftlog.frame import decode_entries
from raftlog.storage.files.layout import segment_name
from raftlog.types import EMPTY_TAIL, Entry, LogTail
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.rows import running_digest
from statemachine.rows.kv import KVCorruptError

if TYPE_CHECKING:
    from statemachine.rows.kv import KV


class Verified(NamedTuple):
    """The result of verifying a backup. The backup is good if `problems` is empty."""

    manifest: Manifest
    problems: list[str]
    """One sentence for each problem, with the name of the file."""
    bytes_read: int


def verify(backup: Path) -> Verified:
    """Verifies every byte of a backup, and returns its problems. Raises LocalError if there is no backup, if its
    manifest cannot be read, or if a newer release made it."""
    manifest = manifests.load(backup)
    problems = [*_unexpected(backup, manifest), *_genesis_problems(backup, manifest)]
    problems += _log_problems(backup, manifest)
    problems += [problem for record in manifest.state if (problem := _file_problem(backup, record))]
    if not problems:
        problems += _state_problems(backup, manifest)
    return Verified(manifest, problems, manifest.bytes_total)


def read_log(backup: Path, ends: list[tuple[int, int]], group_id: int) -> tuple[LogTail, list[SegmentRecord]]:
    """Reads and checks the segment files with these (base position, end position). Returns (the last frame, a record of
    each file). Raises CorruptLogError, OSError."""
    tail = EMPTY_TAIL if ends[0][0] == 0 else None
    records = []
    for base, end in ends:
        tail, record = walk(backup / LOG / segment_name(base), tail, end, group_id)
        records.append(record)
    assert tail is not None
    return tail, records


def read_state(backup: Path) -> tuple[LogTail, dict[str, str], int]:
    """Returns (the last applied entry as a log tail, family -> sum of its rows in hexadecimal digits, the cluster's
    level). Raises KVError.

    A node keeps sums of its rows while it applies entries (`statemachine.rows.running_digest`). If the rows do not add
    up to these sums, they are not those that the node applied, and KVCorruptError is raised.
    """
    with CheckpointReader(backup / STATE) as reader:
        mark, kv = reader.mark, cast("KV", reader)  # the functions below only call `get` and `scan`
        kept = running_digest.load(kv, mark.index)
        for family, total in running_digest.count(kv).items() if kept is not None else ():
            if kept is not None and kept[family] != total:
                raise KVCorruptError(
                    f"{backup / STATE}: the rows of family {family} are not those that the node counted when it "
                    "applied them"
                )
        tail = LogTail(mark.term, mark.index, mark.end_position, mark.header_crc, 0, mark.timestamp_ms)
        return tail, manifests.hex_sums(reader.digest()), reader.level


def same_place(one: LogTail, other: LogTail) -> bool:
    """Returns True if both tails have the same term, index, position and header CRC."""
    return one[:4] == other[:4]


def _unexpected(backup: Path, manifest: Manifest) -> list[str]:
    known = {MANIFEST, *(record.path for record in manifest.state)}
    known |= {f"{LOG}/{segment_name(record.base_position)}" for record in manifest.segments}
    found = {str(path.relative_to(backup)) for path in backup.rglob("*") if not path.is_dir()}
    return [f"{backup / name} is missing" for name in sorted(known - found)] + [
        f"{backup / name} is not in the manifest" for name in sorted(found - known)
    ]


def _log_problems(backup: Path, manifest: Manifest) -> list[str]:
    ends = [(record.base_position, record.end_position) for record in manifest.segments]
    try:
        tail, records = read_log(backup, ends, manifest.group_id)
    except (RaftLogError, OSError) as error:
        return [str(error)]
    problems = [
        f"{backup / LOG / segment_name(record.base_position)} holds another log than the manifest describes"
        for record, told in zip(records, manifest.segments, strict=True)
        if record != told
    ]
    if (tail.index, tail.term, tail.end_position) != (manifest.index, manifest.term, manifest.position):
        problems.append(f"{backup / LOG} ends at index {tail.index}, the manifest says {manifest.index}")
    return problems


def genesis_of(manifest: Manifest) -> Entry | None:
    """Returns the entry at index 0 from the manifest; None if the manifest does not contain it. Raises FrameError."""
    return next(decode_entries(bytes.fromhex(manifest.genesis), manifest.group_id), None)


def _genesis_problems(backup: Path, manifest: Manifest) -> list[str]:
    try:
        known = genesis_of(manifest)
    except (FrameError, ValueError) as error:
        return [f"{backup / MANIFEST} has no readable GENESIS: {error}"]
    if known is None and manifest.segments[0].base_position > 0:
        return [f"{backup / MANIFEST} has no GENESIS, and the log begins above it"]
    return []


def _file_problem(backup: Path, record: FileRecord) -> str:
    try:
        size, crc = checksum(backup / record.path)
    except OSError as error:
        return f"{backup / record.path} cannot be read: {error.strerror or error}"
    if (size, crc) == (record.size, record.crc32c):
        return ""
    return (
        f"{backup / record.path} is damaged: {size} bytes with crc32c {crc:08x}, the manifest says "
        f"{record.size} with {record.crc32c:08x}"
    )


def _state_problems(backup: Path, manifest: Manifest) -> list[str]:
    try:
        mark, digest, level = read_state(backup)
    except (RaftLogError, OSError) as error:
        return [str(error)]
    problems = []
    if level != manifest.level:
        problems.append(f"{backup / STATE} has level {level}, the manifest says {manifest.level}")
    if (mark.index, mark.term, mark.header_crc) != (manifest.index, manifest.term, manifest.header_crc):
        problems.append(f"{backup / STATE} was applied up to index {mark.index}, the manifest says {manifest.index}")
    for family, total in digest.items():
        told = manifest.digest.get(family, "0" * 16)  # the release that made the backup may not have had this family
        if total != told:
            problems.append(f"{backup / STATE}: the rows of family {family} sum to {total}, the manifest says {told}")
    return problems


def as_json(name: str, verified: Verified) -> dict[str, object]:
    """Returns the result as a dict for `--json`."""
    told = msgspec.to_builtins(verified.manifest)
    return {
        "name": name,
        "good": not verified.problems,
        "problems": verified.problems,
        "bytes_read": verified.bytes_read,
        **{key: told[key] for key in ("made_ms", "node", "cluster_uuid", "index", "term", "digest")},
    }
