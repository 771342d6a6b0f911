"""A new cluster out of a backup: the same rows and frames on every node, one new entry on top, nothing taken over."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cluster.backup import files
from cluster.backup.create import create
from cluster.backup.restore import restore
from cluster.config.loading import load
from raftlog.membership import RESTORE
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import EntryType
from raftmq.local.init import check_data_dirs
from raftmq_wire.errors import LocalError
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from statemachine.rows.rocksdb_store import RocksKV

NOW_MS = 1_800_000_000_000


def test_every_node_of_the_new_cluster_is_the_backup_and_one_entry(backup: Path, tmp_path: Path) -> None:
    made = restore(backup, tmp_path / "new", count=3, base_port=21000, now_ms=NOW_MS)
    told, tails, uuids = made.manifest, set(), set()
    assert check_data_dirs(made.nodes) == made.cluster_uuid
    assert str(made.cluster_uuid) != told.cluster_uuid
    for node in made.nodes:
        data = Path(load(node.config_path).node.data_dir)
        opened = open_node_dir(OsFileSystem(), data)
        kv = RocksKV(str(data / "state"))
        state, log = BrokerState(kv), opened.log
        sums = digest(kv)
        assert {family: f"{total:016x}" for family, total in sums.items()} == told.digest
        assert (state.applied.index, log.tail.index) == (told.index, told.index + 1)
        assert log.report.clean
        (entry,) = log.read_entries(told.index + 1, told.index + 2, 1)
        assert (entry.type, entry.term, entry.timestamp_ms) == (EntryType.MEMBERSHIP, told.term + 1, NOW_MS)
        assert entry.parent == told.header_crc
        *_, members = members_at_opening(data, opened.identity, log.genesis, log, state.membership, state.applied.index)
        assert (members.cluster_uuid, members.reason) == (made.cluster_uuid, RESTORE)
        assert [int(voter) for voter in members.voter_ids] == [1, 2, 3]
        assert [(str(each.cluster_uuid), each.last_index) for each in opened.identity.origin] == [
            (told.cluster_uuid, told.index)
        ]
        assert opened.hard_state_store.load().term == told.term + 1
        assert len(log.read_entries(0, told.index + 1, 1 << 30)) == told.index + 1
        tails.add(log.tail)
        uuids.add(opened.identity.node_uuid)
        kv.close()
        opened.close(clean=True)
    assert (len(tails), len(uuids)) == (1, 3)


def test_a_restored_cluster_can_be_backed_up_and_restored_again(stopped: Any, backup: Path, tmp_path: Path) -> None:
    first = restore(backup, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS)
    node = stopped._replace(data=Path(load(first.nodes[0].config_path).node.data_dir))
    node = node._replace(checkpoint=node.grow(3))
    second_backup = Path(create(node.request(tmp_path / "to", NOW_MS)).path)
    second = restore(second_backup, tmp_path / "newer", count=1, base_port=21000, now_ms=NOW_MS)
    opened = open_node_dir(OsFileSystem(), Path(load(second.nodes[0].config_path).node.data_dir))
    assert [str(each.cluster_uuid) for each in opened.identity.origin] == [
        first.manifest.cluster_uuid,
        str(first.cluster_uuid),
    ]
    opened.close(clean=True)


def test_names_that_clients_know_stay(stopped: Any, tmp_path: Path) -> None:
    shop = create(stopped.request(tmp_path / "to", broker_name="shop"))
    made = restore(Path(shop.path), tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS)
    for node in made.nodes:
        config = load(node.config_path)
        assert (config.cluster.broker_name, config.cluster.name) == ("shop", "DefaultCluster")
        assert Path(config.node.data_dir) == node.home / "data"


def test_a_used_directory_is_refused_and_stays_as_it_is(backup: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").write_text("x")
    with pytest.raises(LocalError, match=r"(?s)used is not empty.*holds mine.*restore --from .*--into .*used.restored"):
        restore(backup, used, now_ms=NOW_MS)
    with pytest.raises(LocalError, match="it is a file"):
        restore(backup, used / "mine", now_ms=NOW_MS)
    (tmp_path / "new.partial").mkdir()
    with pytest.raises(LocalError, match=r"(?s)in the way.*rm -r"):
        restore(backup, tmp_path / "new", now_ms=NOW_MS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.partial", "to", "used"]


def test_an_empty_directory_is_taken(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    restore(backup, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS)
    assert (tmp_path / "new" / "n1" / "data" / "IDENTITY").exists()


def test_a_damaged_backup_is_not_restored(backup: Path, tmp_path: Path) -> None:
    path = sorted((backup / "log").iterdir())[-1]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", 5000)
    with pytest.raises(LocalError, match=r"(?s)is damaged.*at position.*raftmq backup verify"):
        restore(backup, tmp_path / "new", now_ms=NOW_MS)
    with pytest.raises(LocalError, match=r"(?s)is no backup.*backup list"):
        restore(backup.parent, tmp_path / "new", now_ms=NOW_MS)
    assert not (tmp_path / "new").exists()


def test_a_disk_that_is_full_or_fails_leaves_nothing(backup: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    with pytest.raises(LocalError, match=r"(?s)restore into .* failed.*nodes need about.*free space"):
        restore(backup, tmp_path / "new", now_ms=NOW_MS)
    monkeypatch.undo()

    def goes_bad(begins: str) -> None:
        if begins == "making node 2":
            (tmp_path / "new.partial" / "n2" / "data").touch()

    with pytest.raises(LocalError, match="failed"):
        restore(backup, tmp_path / "new", now_ms=NOW_MS, on_stage=goes_bad)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]


@pytest.mark.parametrize("folder", ["log", "state"])
@pytest.mark.parametrize("left", [0, 4100])
def test_a_backup_that_shrinks_while_it_is_restored_leaves_nothing(
    backup: Path, tmp_path: Path, folder: str, left: int
) -> None:
    file = max((backup / folder).iterdir(), key=lambda path: path.stat().st_size)
    assert file.stat().st_size > left

    def shrinks(begins: str) -> None:
        if begins.startswith("making node"):
            os.truncate(file, left)

    changed = rf"(?s)restore into .* failed.*the backup changed while it was read: .*{file}.*backup verify {backup}"
    with pytest.raises(LocalError, match=changed):
        restore(backup, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS, on_stage=shrinks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]


def test_a_disk_that_is_full_when_the_log_of_the_new_node_is_written_is_told(
    backup: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    fdatasync = os.fdatasync

    def full(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".seg":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(LocalError, match=r"(?s)restore into .* failed.*No space left on device.*free space there"):
        restore(backup, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]


def test_a_file_of_the_backup_that_cannot_be_read_is_named(backup: Path, tmp_path: Path) -> None:
    """/proc/self/mem can be opened, and fails where nothing is mapped, as a bad block does."""
    bad = min((backup / "state").glob("*.sst"))

    def turns_bad(begins: str) -> None:
        if begins.startswith("making node"):
            bad.unlink()
            bad.symlink_to("/proc/self/mem")

    with pytest.raises(LocalError, match=rf"(?s)Input/output error at {bad}; .*the backup is untouched"):
        restore(backup, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS, on_stage=turns_bad)
    assert not (tmp_path / "new").exists()
