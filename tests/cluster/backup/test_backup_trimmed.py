"""A log that was trimmed: backed up, read back, restored, and left to one survivor, without what is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.backup import manifest as manifests
from cluster.backup.create import create
from cluster.backup.restore import restore
from cluster.backup.unsafe_recovery import look_at, recover
from cluster.backup.verify import verify
from cluster.config.loading import load
from raftlog.frame import make_entry
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.log.log_trimmer import LogTrimmer
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import EntryType
from raftmq_wire.errors import LocalError
from statemachine.broker_state import BrokerState
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.trim import Trim, encode

NOW_MS = 1_800_000_000_000


def trim(stopped: Any, *, told: bool = True) -> Any:
    """Begins the log at its third file; `told`: the state knows it."""
    opened = open_node_dir(OsFileSystem(), stopped.data)
    log = opened.log
    segment = log.state.segments[2]
    log.remove_files(log.trim(segment.base))
    if not told:
        opened.close(clean=True)
        return stopped
    payload = encode(Trim(segment.base, segment.header.base_index, "a test"))
    entry = make_entry(
        log.tail,
        term=log.tail.term,
        entry_type=EntryType.TRIM,
        payload=payload,
        timestamp_ms=0,
        group_id=log.genesis.group_id,
        segment_size=log.segment_size,
    )
    log.append([entry])
    opened.close(clean=True)
    return stopped._replace(checkpoint=stopped.grow(2))


@pytest.fixture
def trimmed(stopped: Any) -> Any:
    """The recorded directory, begun again at its third file."""
    return trim(stopped)


def test_a_node_that_lacks_log_makes_no_backup(stopped: Any, tmp_path: Path) -> None:
    """A node lacks log between an install and the end of its backfill: nodes restored from it would wait for what
    nobody has."""
    with pytest.raises(LocalError, match=r"(?s)does not have all of the log.*another --node"):
        create(trim(stopped, told=False).request(tmp_path / "to"))
    assert not (tmp_path / "to").exists()


def first_of(data: Path) -> int:
    opened = open_node_dir(OsFileSystem(), data)
    try:
        log = opened.log
        assert not log.damage.ranges
        first, last = log.first_index, log.tail.index
        assert len(log.read_entries(first, last + 1, 1 << 30)) == last + 1 - first
        return log.first_index
    finally:
        opened.close(clean=True)


def test_a_trimmed_log_is_backed_up_and_restored(trimmed: Any, tmp_path: Path) -> None:
    first = first_of(trimmed.data)
    assert first > 0
    made = create(trimmed.request(tmp_path / "to"))
    assert made.manifest.segments[0].base_position > 0
    assert made.manifest.genesis
    assert verify(Path(made.path)).problems == []
    cluster = restore(Path(made.path), tmp_path / "new", count=2, base_port=21000, now_ms=NOW_MS)
    for node in cluster.nodes:
        data = Path(load(node.config_path).node.data_dir)
        assert first_of(data) == first
        opened = open_node_dir(OsFileSystem(), data)
        assert opened.log.genesis.segment_size == made.manifest.segment_size
        assert "trimmed" in opened.log.report.rows
        opened.close(clean=True)
    again = trimmed._replace(data=Path(load(cluster.nodes[0].config_path).node.data_dir))
    again = again._replace(checkpoint=again.grow(3))
    assert verify(Path(create(again.request(tmp_path / "to", NOW_MS)).path)).problems == []


def test_files_that_a_trim_gave_up_are_not_backed_up(stopped: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(LogTrimmer, "_unlink", lambda self, path: False)  # it comes later
    trimmed = trim(stopped)
    opened = open_node_dir(OsFileSystem(), stopped.data)
    base = opened.log.state.segments[2].base
    opened.close(clean=True)
    made = create(trimmed.request(tmp_path / "to"))
    assert made.manifest.segments[0].base_position == base


@pytest.mark.parametrize("genesis", ["", "00", "524d5131"])
def test_a_trimmed_backup_without_GENESIS_is_not_restored(trimmed: Any, tmp_path: Path, genesis: str) -> None:
    made = create(trimmed.request(tmp_path / "to"))
    path = Path(made.path)
    (path / manifests.MANIFEST).write_bytes(manifests.encode(replace(made.manifest, genesis=genesis)))
    (problem,) = verify(path).problems
    assert "GENESIS" in problem
    with pytest.raises(LocalError, match="is damaged"):
        restore(path, tmp_path / "new", now_ms=NOW_MS)


def test_a_survivor_with_a_trimmed_log_goes_on(trimmed: Any) -> None:
    first = first_of(trimmed.data)
    found = look_at(trimmed.data)
    assert found.sound
    assert not found.damage
    members = recover(trimmed.data, str(found.identity.cluster_uuid), NOW_MS)
    assert [int(voter) for voter in members.voter_ids] == [found.identity.node_id]
    assert first_of(trimmed.data) == first


def test_a_survivor_that_was_still_fetching_older_log_gives_it_up(stopped: Any) -> None:
    """Nobody has it any more: it says what is lost, and its first entries make the state know."""
    node = trim(stopped, told=False)
    found = look_at(node.data)
    assert found.missing[0] == 0 < found.missing[1]
    assert "it was fetching them from the others" in found.losses[-1]
    recover(node.data, str(found.identity.cluster_uuid), NOW_MS)
    opened = open_node_dir(OsFileSystem(), node.data)
    kv = RocksKV(str(node.data / "state"))
    state, log = BrokerState(kv), opened.log
    state.apply(log.read_entries(state.applied.index + 1, log.tail.index + 1, 1 << 30))
    assert state.trim_position == log.first_position
    members = members_at_opening(node.data, opened.identity, log.genesis, log, state.membership, state.applied.index)
    assert [int(voter) for voter in members[-1].voter_ids] == [found.identity.node_id]
    kv.close()
    opened.close(clean=True)
    assert look_at(node.data).missing == (log.first_position, log.first_position)


def test_a_survivor_with_a_snapshot_to_put_in_place_is_started_first(stopped: Any) -> None:
    (stopped.data / "INSTALL").write_bytes(b"x")
    with pytest.raises(LocalError, match=r"(?s)is not what it will be.*start the node once"):
        look_at(stopped.data)
