"""A version in every kind of file and frame, told in docs/disk-format.md; any other one is refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgpack
import msgspec
import pytest
from google_crc32c import value as crc32c

from cluster.backup import manifest as backup_manifest
from cluster.backup import metadata
from cluster.config import local_layout
from cluster.config.local_layout import CLUSTER_FILE, ClusterFile, read_cluster
from cluster.peer import wire
from cluster.peer.secret import MARK_HEAD
from cluster.placement import groups_file
from cluster.replication.acks import early_answer_file as ledger
from cluster.runtime.peer_frames import Kind, WireError
from cluster.state import manifest as checkpoint_manifest
from cluster.state import table_checksums
from cluster.tier import manifest_format, stored_files
from cluster.tier.object_names import manifest_name
from cluster.tier.store.errors import StoreError
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog import frame, membership
from raftlog.errors import InvariantViolationError, RaftLogError
from raftlog.format_versions import BASELINE
from raftlog.frame import FrameHeader, genesis_entry, make_entry
from raftlog.membership import Membership
from raftlog.storage.files import genesis, hard_state, identity, install_file, log_first, run_file, vote_withheld
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.files.install_file import Install
from raftlog.storage.files.run_file import Run, RunState
from raftlog.storage.files.sealed_map import seal, unseal
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.segments import segment, segment_index
from raftlog.storage.segments.segment_index import SegmentIndex
from raftlog.types import EMPTY_TAIL, NOBODY, EntryId, EntryType, HardState, LogTail, NodeId
from raftmq_wire.errors import LocalError
from statemachine import payload, trim
from statemachine.broker_state import AppliedMark, BrokerState
from statemachine.index_file import index_format
from statemachine.index_file.index_reader import drive, open_index
from statemachine.index_file.index_writer import IndexWriter
from statemachine.levels import LEVEL
from statemachine.rows import keys, meta_keys, rocksdb_store, running_digest
from statemachine.rows.kv import META, Batch
from statemachine.trim import Trim
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
GROUP = 9
VOTER = Voter(NodeId(1), UUID(int=1))
TAIL = LogTail(5, 41, 5000, 7, 4096, 1)


class Kept(NamedTuple):
    """A kind of file or frame: its version here, and reading one of another version."""

    version: int
    read_other: Callable[[Path, int], Any]
    newer: str = "a newer RaftMQ wrote it"
    earlier: str = r"a build before RaftMQ 0\.1\.0 wrote it"


def stamped(data: bytes, version: int, at: int = 8, size: int = 2, crc_at: int = 4, crc_from: int = 8) -> bytes:
    """The bytes with the version at `at` changed and the CRC made to fit."""
    changed = data[:at] + version.to_bytes(size) + data[at + size :]
    crc: bytes = crc32c(changed[crc_from:]).to_bytes(4)
    return changed[:crc_at] + crc + changed[crc_at + 4 :]


def other_identity(_: Path, version: int) -> Any:
    known = identity.encode(Identity(UUID(int=1), GROUP, NodeId(1), UUID(int=2), 0))
    return identity.decode(stamped(known, version), Path("/data/IDENTITY"))


def other_hard_state(_: Path, version: int) -> Any:
    return hard_state.decode_slot(stamped(hard_state.encode_slot(1, HardState(1, NOBODY, 0), GROUP), version), GROUP)


def other_run(_: Path, version: int) -> Any:
    run = Run(RunState.RUNNING, 1, bytes(16), 0, 0, 0, 0)
    return run_file.decode_slot(stamped(run_file.encode_slot(run, 1, GROUP), version), GROUP)


def other_vote_withheld(_: Path, version: int) -> Any:
    return vote_withheld.decode(stamped(vote_withheld.encode(VoteWithheld("why", 1, 1), GROUP), version), GROUP)


def other_install(_: Path, version: int) -> Any:
    known = install_file.encode(Install("5-4-90ab12cd", 1, 512, EntryId(4, 5), 1024, 7), GROUP)
    return install_file.decode(stamped(known, version), GROUP)


def other_first(_: Path, version: int) -> Any:
    return log_first.decode(stamped(log_first.encode(TAIL, GROUP), version), GROUP)


def other_segment(_: Path, version: int) -> Any:
    page = segment.encode_header(TAIL, GROUP)
    return segment.decode_header(stamped(page[:64], version) + page[64:], Path("/data/log/1.seg"), GROUP)


def other_sidecar(_: Path, version: int) -> Any:
    head, offsets = segment_index.encode_index(SegmentIndex(4096, 40), TAIL, GROUP)
    return segment_index.decode_index(stamped(head, version) + offsets, GROUP)


def other_frame(_: Path, version: int) -> Any:
    entry = genesis_entry(b"x", timestamp_ms=0, group_id=GROUP)
    return FrameHeader(stamped(entry.header, version, at=25, size=1))


def other_genesis(_: Path, version: int) -> Any:
    known = genesis.encode(Genesis(UUID(int=1), GROUP, 65536, 0, (VOTER,)))
    raised = msgpack.packb({**msgpack.unpackb(known), "format": version})
    return genesis.decode(genesis_entry(raised, timestamp_ms=0, group_id=GROUP))


def other_membership(_: Path, version: int) -> Any:
    known = membership.encode(Membership(UUID(int=1), (VOTER,)))
    raised = msgpack.packb({**msgpack.unpackb(known), "format": version})
    return membership.decode_payload(raised, 3)


def other_messages(_: Path, version: int) -> Any:
    known = payload.encode([b"x"], 1, [])
    return payload.decode(bytes([version]) + known[1:])


def other_trim(_: Path, version: int) -> Any:
    known = trim.encode(Trim(4096, 3, "why"))
    return trim.decode(msgpack.packb({**msgpack.unpackb(known), "format": version}))


def newer_command(_: Path) -> Any:
    state = BrokerState(MemoryKV())
    entry = make_entry(
        EMPTY_TAIL,
        term=1,
        entry_type=EntryType.COMMAND,
        payload=msgpack.packb([["of_a_later_day"]]),
        timestamp_ms=0,
        group_id=GROUP,
        segment_size=65536,
    )
    return state.apply([entry])


def other_rows(_: Path, version: int) -> Any:
    kv, batch = MemoryKV(), Batch()
    batch.put(META, meta_keys.FORMAT_KEY, keys.U32.pack(version))
    kv.write(batch)
    return BrokerState(kv)


def other_index_file(_: Path, version: int) -> Any:
    out = bytearray()
    IndexWriter(out.extend).finish(index_format.IndexMeta(UUID(int=1), 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0))
    covered = slice(len(out) - index_format.TRAILER_SIZE, len(out) - len(index_format.MAGIC) - 4)
    out[covered.stop - 1] = version
    out[covered.stop : covered.stop + 4] = crc32c(bytes(out[covered])).to_bytes(4)
    return drive(open_index(len(out)), lambda at, length: bytes(out[at : at + length]))


def other_manifest(_: Path, version: int) -> Any:
    return manifest_format.decode_head(b'{"schema": %d, "of": "another day"}' % version)


def other_checkpoint(_: Path, version: int) -> Any:
    known = seal(checkpoint_manifest.MAGIC, checkpoint_manifest.FORMAT, GROUP, {"a": 1})
    return checkpoint_manifest.decode(stamped(known, version), GROUP, Path("/data/checkpoints/x/CHECKPOINT"))


def other_tables(_: Path, version: int) -> Any:
    known = seal(table_checksums.MAGIC, table_checksums.FORMAT, GROUP, {"a": 1})
    return unseal(
        stamped(known, version), table_checksums.MAGIC, table_checksums.FORMAT, GROUP, Path("/data/state/TABLES")
    )


def other_backup(folder: Path, version: int) -> Any:
    (folder / "manifest.json").write_text(f'{{"schema": {version}, "backup": {{"of": "another day"}}}}')
    return backup_manifest.load(folder)


def other_stored_files(_: Path, version: int) -> Any:
    return stored_files.decode(b'{"schema": %d, "of": "another day"}' % version, dict)


def other_export(_: Path, version: int) -> Any:
    return metadata.read(b'{"kind": "raftmq metadata", "schema": %d, "of": "another day"}' % version, "m.json")


def other_cluster_file(folder: Path, version: int) -> Any:
    (folder / CLUSTER_FILE).write_bytes(msgspec.json.encode(ClusterFile([], schema=version)))
    return read_cluster(folder)


def other_peer(_: Path, version: int) -> Any:
    data = bytearray(wire.pack(Kind.HELLO, []))
    data[5] = version
    return wire.unpack(bytes(data), 4, len(data))


KINDS = {
    "IDENTITY": Kept(identity.FORMAT, other_identity),
    "hard state": Kept(hard_state.FORMAT, other_hard_state),
    "RUN": Kept(run_file.FORMAT, other_run),
    "VOTE_WITHHELD": Kept(vote_withheld.FORMAT, other_vote_withheld),
    "INSTALL": Kept(install_file.FORMAT, other_install),
    "FIRST": Kept(log_first.FORMAT, other_first),
    "segment file": Kept(segment.FORMAT, other_segment),
    "index sidecar": Kept(segment_index.FORMAT, other_sidecar, "of another format", "of another format"),
    "frame": Kept(frame.VERSION, other_frame),
    "GENESIS": Kept(genesis.FORMAT, other_genesis),
    "MESSAGES": Kept(payload.VERSION, other_messages),
    "TRIM": Kept(trim.FORMAT, other_trim),
    "MEMBERSHIP": Kept(membership.FORMAT, other_membership),
    "index file": Kept(index_format.VERSION, other_index_file),
    "manifest of the tier": Kept(manifest_format.SCHEMA, other_manifest),
    "rows": Kept(keys.FORMAT, other_rows),
    "checkpoint": Kept(checkpoint_manifest.FORMAT, other_checkpoint),
    "tables": Kept(table_checksums.FORMAT, other_tables),
    "backup": Kept(backup_manifest.SCHEMA, other_backup),
    "stored files": Kept(stored_files.SCHEMA, other_stored_files),
    "metadata export": Kept(metadata.SCHEMA, other_export),
    "cluster.json": Kept(local_layout.CLUSTER_SCHEMA, other_cluster_file),
    "peer frame": Kept(
        wire.VERSION,
        other_peer,
        "that of a newer RaftMQ; this node speaks 10",
        "a build before RaftMQ 0.1.0; this node",
    ),
}
OTHERS = {
    "COMMAND": "",
    "running sums": str(running_digest.VERSION),
    "table files": str(rocksdb_store.TABLE_FORMAT),
    "EARLY": str(ledger.FORMAT),
    "GROUPS": str(groups_file.FORMAT),
    "SECRET": "",
    "SECRET_REQUIRED": MARK_HEAD.split()[-1].decode(),
}
"""Told in the table, tested apart."""
ELSEWHERE = {
    "raftmq/local/status.py": "what a node answers",
    "cluster/registry/journal.py": "refused in tests/cluster/registry/test_store.py",
    "raftmq_wire/kernel/__init__.py": "what the compiled module is built for: the twin is used instead",
}
"""Modules with a version of something that is not kept."""


REFUSALS = (RaftLogError, LocalError, StoreError, WireError, ValueError)


@each_row("kind", KINDS)
def test_a_newer_version_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    with pytest.raises(REFUSALS, match=KINDS[kind].newer):
        KINDS[kind].read_other(tmp_path, KINDS[kind].version + 1)


@each_row("version", range(1, BASELINE))
@each_row("kind", KINDS)
def test_a_version_before_the_baseline_is_refused_in_words(kind: str, version: int, tmp_path: Path) -> None:
    with pytest.raises(REFUSALS, match=KINDS[kind].earlier):
        KINDS[kind].read_other(tmp_path, version)


def test_a_command_of_a_newer_version_stops_the_node(tmp_path: Path) -> None:
    with pytest.raises(InvariantViolationError, match="unknown command 'of_a_later_day': was it written by a newer"):
        newer_command(tmp_path)


def test_running_sums_of_a_newer_version_are_counted_again(tmp_path: Path) -> None:
    kv, batch = MemoryKV(), Batch()
    row = running_digest.pack(7, running_digest.count(kv))
    for value, known in ((row, True), (bytes([running_digest.VERSION + 1]) + row[1:], False)):
        batch.put(META, meta_keys.SUMS_KEY, value)
        kv.write(batch)
        assert (running_digest.load(kv, 7) is not None) is known


def test_early_answers_noted_by_a_newer_version_are_not_known() -> None:
    page = ledger.encode({EntryId(1, 2): 3}, ledger.LostAnswers(0, 0))
    assert ledger.decode(page) is not None
    rest = (ledger.FORMAT + 1).to_bytes(2) + page[10:]
    assert ledger.decode(page[:4] + crc32c(rest).to_bytes(4) + rest) is None


def test_every_kind_is_in_the_table_with_its_version() -> None:
    page = (ROOT / "docs" / "disk-format.md").read_text()
    section = page.partition("## Versions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| *(\d*) *\| [^|]+ \|$", section, re.MULTILINE)
    told = {kind: version for kind, version in rows if kind != "kind"}
    assert set(told) == set(KINDS) | set(OTHERS)
    assert {kind: told[kind] for kind in OTHERS} == OTHERS
    assert {kind: int(version) for kind, version in told.items() if kind in KINDS} == {
        kind: kept.version for kind, kept in KINDS.items()
    }


def test_no_version_is_forgotten() -> None:
    """Every module that has one is in the table above."""
    here = Path(__file__).read_text()
    pattern = re.compile(r"^(?:[A-Z]+_)?(?:FORMAT|VERSION|SCHEMA) = \d", re.MULTILINE)
    for package in ("raftmq_wire", "raftlog", "statemachine", "cluster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if pattern.search(path.read_text()):
                name = path.relative_to(ROOT).as_posix()
                module = path.stem if path.stem not in ("manifest",) else f"{path.parent.name}"
                assert name in ELSEWHERE or module in here, f"{name} has a version that no test refuses"


# --- levels of a cluster (docs/adr/0094) -------------------------------------------------------------


def level_of_rows(_: Path, level: int) -> Any:
    kv, batch = MemoryKV(), Batch()
    batch.put(META, meta_keys.LEVEL_KEY, keys.U32.pack(level))
    kv.write(batch)
    return BrokerState(kv, known_level=LEVEL)


def level_of_checkpoint(_: Path, level: int) -> Any:
    mark = AppliedMark(1, 5, 4096, 0, 7)
    made = checkpoint_manifest.CheckpointManifest(mark, 0, {}, (), level=level)
    return checkpoint_manifest.decode(
        checkpoint_manifest.encode(made, GROUP), GROUP, Path("/data/checkpoints/x/CHECKPOINT")
    )


def level_of_backup(folder: Path, level: int) -> Any:
    made = backup_manifest.Manifest(
        name="b", made_ms=0, node=1, cluster_uuid=str(UUID(int=1)), cluster_name="c", broker_name="b", group_id=GROUP,
        index=5, term=1, position=4096, header_crc=7, timestamp_ms=0, segment_size=65536, origin=[], digest={},
        segments=[], state=[], bytes_total=0, bytes_new=0, versions={}, level=level,
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(backup_manifest.encode(made))
    return backup_manifest.load(folder)


def level_of_tier(_: Path, level: int) -> Any:
    key = manifest_name(7, "0" * 16)
    head = manifest_format.Head(
        schema=manifest_format.SCHEMA,
        cluster_id="c",
        version=7,
        term=1,
        applied_index=5,
        key=key,
        sha256="",
        level=level,
    )
    return manifest_format.decode_head(msgspec.json.encode(head))


@pytest.mark.parametrize("read", [level_of_rows, level_of_checkpoint, level_of_backup, level_of_tier])
def test_a_level_of_a_later_day_in_one_file_is_refused_in_words(
    tmp_path: Path, read: Callable[[Path, int], Any]
) -> None:
    read(tmp_path, LEVEL)
    with pytest.raises(Exception, match=f"has level {LEVEL + 1}: a newer RaftMQ was finalized there") as caught:
        read(tmp_path, LEVEL + 1)
    assert f"knows levels up to {LEVEL}" in str(caught.value)
