"""A version in every kind of file and frame, told in docs/disk-format.md; a newer one is refused in words."""

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
from cluster.errors import LocalError
from cluster.peer import wire
from cluster.peer.secret import MARK_HEAD
from cluster.peer.wire import Kind, WireError
from cluster.replication.acks import early_ledger as ledger
from cluster.state import manifest as checkpoint_manifest
from cluster.state import tables
from cluster.tier import manifest_format, stored_files
from cluster.tier.store.errors import StoreError
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog import frame, membership
from raftlog.errors import InvariantViolationError, RaftLogError
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
from statemachine import payload, trim
from statemachine.broker_state import BrokerState
from statemachine.commands import pack
from statemachine.index_file import index_format
from statemachine.index_file.index_reader import drive, open_index
from statemachine.index_file.index_writer import IndexWriter
from statemachine.rows import keys, sums
from statemachine.rows.kv import META, Batch
from statemachine.trim import Trim

ROOT = Path(__file__).parents[3]
GROUP = 9
VOTER = Voter(NodeId(1), UUID(int=1))
TAIL = LogTail(5, 41, 5000, 7, 4096, 1)


class Kept(NamedTuple):
    """A kind of file or frame: its version here, and reading one of the next version."""

    version: int
    read_newer: Callable[[Path], Any]
    says: str = "newer RaftMQ"


def bumped(data: bytes, at: int = 8, size: int = 2, crc_at: int = 4, crc_from: int = 8) -> bytes:
    """The bytes with the version at `at` raised and the CRC made to fit."""
    version = int.from_bytes(data[at : at + size]) + 1
    changed = data[:at] + version.to_bytes(size) + data[at + size :]
    crc: bytes = crc32c(changed[crc_from:]).to_bytes(4)
    return changed[:crc_at] + crc + changed[crc_at + 4 :]


def newer_identity(_: Path) -> Any:
    known = identity.encode(Identity(UUID(int=1), GROUP, NodeId(1), UUID(int=2), 0))
    return identity.decode(bumped(bumped(known)), Path("/data/IDENTITY"))


def newer_hard_state(_: Path) -> Any:
    return hard_state.decode_slot(bumped(hard_state.encode_slot(1, HardState(1, NOBODY, 0), GROUP)), GROUP)


def newer_run(_: Path) -> Any:
    run = Run(RunState.RUNNING, 1, bytes(16), 0, 0, 0, 0)
    return run_file.decode_slot(bumped(run_file.encode_slot(run, 1, GROUP)), GROUP)


def newer_vote_withheld(_: Path) -> Any:
    return vote_withheld.decode(bumped(vote_withheld.encode(VoteWithheld("why", 1, 1), GROUP)), GROUP)


def newer_install(_: Path) -> Any:
    known = install_file.encode(Install("5-4-90ab12cd", 1, 512, EntryId(4, 5), 1024, 7), GROUP)
    return install_file.decode(bumped(known), GROUP)


def newer_first(_: Path) -> Any:
    return log_first.decode(bumped(log_first.encode(TAIL, GROUP)), GROUP)


def newer_segment(_: Path) -> Any:
    page = segment.encode_header(TAIL, GROUP)
    return segment.decode_header(bumped(page[:64]) + page[64:], Path("/data/log/1.seg"), GROUP)


def newer_sidecar(_: Path) -> Any:
    head, offsets = segment_index.encode_index(SegmentIndex(4096, 40), TAIL, GROUP)
    return segment_index.decode_index(bumped(head) + offsets, GROUP)


def newer_frame(_: Path) -> Any:
    entry = genesis_entry(b"x", timestamp_ms=0, group_id=GROUP)
    return FrameHeader(bumped(entry.header, at=25, size=1))


def newer_genesis(_: Path) -> Any:
    known = genesis.encode(Genesis(UUID(int=1), GROUP, 65536, 0, (VOTER,)))
    raised = msgpack.packb({**msgpack.unpackb(known), "format": genesis.FORMAT + 1})
    return genesis.decode(genesis_entry(raised, timestamp_ms=0, group_id=GROUP))


def newer_membership(_: Path) -> Any:
    known = membership.encode(Membership(UUID(int=1), (VOTER,)))
    raised = msgpack.packb({**msgpack.unpackb(known), "format": membership.FORMAT + 1})
    return membership.decode_payload(raised, 3)


def newer_messages(_: Path) -> Any:
    known = payload.encode([b"x"], 1, [])
    return payload.decode(bytes([payload.VERSION_KEYS + 1]) + known[1:])


def newer_trim(_: Path) -> Any:
    known = trim.encode(Trim(4096, 3, "why"))
    return trim.decode(msgpack.packb({**msgpack.unpackb(known), "format": trim.FORMAT + 1}))


def newer_command(_: Path) -> Any:
    state = BrokerState(MemoryKV())
    entry = make_entry(
        EMPTY_TAIL,
        term=1,
        entry_type=EntryType.COMMAND,
        payload=pack([["of_a_later_day"]]),
        timestamp_ms=0,
        group_id=GROUP,
        segment_size=65536,
    )
    return state.apply([entry])


def newer_rows(_: Path) -> Any:
    kv, batch = MemoryKV(), Batch()
    batch.put(META, keys.FORMAT_KEY, keys.U32.pack(keys.FORMAT + 1))
    kv.write(batch)
    return BrokerState(kv)


def newer_index_file(_: Path) -> Any:
    out = bytearray()
    IndexWriter(out.extend).finish(index_format.IndexMeta(UUID(int=1), 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0))
    covered = slice(len(out) - index_format.TRAILER_SIZE, len(out) - len(index_format.MAGIC) - 4)
    out[covered.stop - 1] += 1
    out[covered.stop : covered.stop + 4] = crc32c(bytes(out[covered])).to_bytes(4)
    return drive(open_index(len(out)), lambda at, length: bytes(out[at : at + length]))


def newer_manifest(_: Path) -> Any:
    return manifest_format.decode_head(b'{"schema": 3, "of": "a later day"}')


def newer_checkpoint(_: Path) -> Any:
    known = seal(checkpoint_manifest.MAGIC, checkpoint_manifest.FORMAT, GROUP, {"a": 1})
    return checkpoint_manifest.decode(bumped(known), GROUP, Path("/data/checkpoints/x/CHECKPOINT"))


def newer_tables(_: Path) -> Any:
    known = seal(tables.MAGIC, tables.FORMAT, GROUP, {"a": 1})
    return unseal(bumped(known), tables.MAGIC, tables.FORMAT, GROUP, Path("/data/state/TABLES"))


def newer_backup(folder: Path) -> Any:
    (folder / "manifest.json").write_text('{"schema": 2, "backup": {"of": "a later day"}}')
    return backup_manifest.load(folder)


def newer_stored_files(_: Path) -> Any:
    return stored_files.decode(b'{"schema": 2, "of": "a later day"}', dict)


def newer_export(_: Path) -> Any:
    return metadata.read(b'{"kind": "raftmq metadata", "schema": 2, "of": "a later day"}', "m.json")


def newer_cluster_file(folder: Path) -> Any:
    (folder / CLUSTER_FILE).write_bytes(msgspec.json.encode(ClusterFile([], schema=2)))
    return read_cluster(folder)


def newer_peer(_: Path) -> Any:
    data = bytearray(wire.pack(Kind.HELLO, []))
    data[5] += 1
    return wire.unpack(bytes(data), 4, len(data))


KINDS = {
    "IDENTITY": Kept(identity.FORMAT, newer_identity),
    "hard state": Kept(hard_state.FORMAT, newer_hard_state),
    "RUN": Kept(run_file.FORMAT, newer_run),
    "VOTE_WITHHELD": Kept(vote_withheld.FORMAT, newer_vote_withheld),
    "INSTALL": Kept(install_file.FORMAT, newer_install),
    "FIRST": Kept(log_first.FORMAT, newer_first),
    "segment file": Kept(segment.FORMAT, newer_segment),
    "index sidecar": Kept(segment_index.FORMAT, newer_sidecar, "of another format"),
    "frame": Kept(frame.VERSION, newer_frame),
    "GENESIS": Kept(genesis.FORMAT, newer_genesis),
    "MESSAGES": Kept(payload.VERSION_KEYS, newer_messages),
    "TRIM": Kept(trim.FORMAT, newer_trim),
    "MEMBERSHIP": Kept(membership.FORMAT, newer_membership),
    "index file": Kept(index_format.VERSION, newer_index_file, "written by a newer RaftMQ"),
    "manifest of the tier": Kept(manifest_format.SCHEMA, newer_manifest, "written by a newer RaftMQ"),
    "rows": Kept(keys.FORMAT, newer_rows, "start the node with the version that wrote it"),
    "checkpoint": Kept(checkpoint_manifest.FORMAT, newer_checkpoint),
    "tables": Kept(tables.FORMAT, newer_tables),
    "backup": Kept(backup_manifest.SCHEMA, newer_backup, "newer release"),
    "stored files": Kept(stored_files.SCHEMA, newer_stored_files, "written by a newer RaftMQ"),
    "metadata export": Kept(metadata.SCHEMA, newer_export, "exported by a newer release"),
    "cluster.json": Kept(local_layout.CLUSTER_SCHEMA, newer_cluster_file, "newer release"),
    "peer frame": Kept(wire.VERSION, newer_peer, "this node speaks 1"),
}
OTHERS = {
    "COMMAND": "",
    "running sums": str(sums.VERSION),
    "EARLY": str(ledger.FORMAT),
    "SECRET": "",
    "SECRET_REQUIRED": MARK_HEAD.split()[-1].decode(),
}
"""Told in the table, tested apart."""
ELSEWHERE = {
    "raftmq/local/status.py": "what a node answers",
    "cluster/kernel/__init__.py": "what the compiled module is built for: the twin is used instead",
}
"""Modules with a version of something that is not kept."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_version_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    with pytest.raises((RaftLogError, LocalError, StoreError, WireError, ValueError), match=KINDS[kind].says):
        KINDS[kind].read_newer(tmp_path)


def test_a_command_of_a_newer_version_stops_the_node(tmp_path: Path) -> None:
    with pytest.raises(InvariantViolationError, match="unknown command 'of_a_later_day': was it written by a newer"):
        newer_command(tmp_path)


def test_running_sums_of_a_newer_version_are_counted_again(tmp_path: Path) -> None:
    kv, batch = MemoryKV(), Batch()
    row = sums.pack(7, sums.count(kv))
    for value, known in ((row, True), (bytes([sums.VERSION + 1]) + row[1:], False)):
        batch.put(META, keys.SUMS_KEY, value)
        kv.write(batch)
        assert (sums.load(kv, 7) is not None) is known


def test_early_answers_noted_by_a_newer_version_are_not_known() -> None:
    page = ledger.encode({EntryId(1, 2): 3}, ledger.Totals(0, 0))
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
    for package in ("raftlog", "statemachine", "cluster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if pattern.search(path.read_text()):
                name = path.relative_to(ROOT).as_posix()
                module = path.stem if path.stem not in ("manifest",) else f"{path.parent.name}"
                assert name in ELSEWHERE or module in here, f"{name} has a version that no test refuses"
