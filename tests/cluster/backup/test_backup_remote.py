"""Backups in an object store: the same bytes, the same checks; later ones write only what is new."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.backup import files, remote
from cluster.backup.create import MadeBackup
from cluster.backup.remote import backups_at, create_remote, fetch_backup, newest_ms, verify_backup
from cluster.backup.replay import RestoreTarget
from cluster.backup.restore import RestoreSource, found_source, restore
from cluster.tier import stored_files
from cluster.tier.store import retrying_store
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import StoredObject
from raftmq_wire.errors import LocalError

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CALLS_TOTAL_S", 0.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


def made(stopped: Any, url: str, number: int = 0, **changes: Any) -> MadeBackup:
    return create_remote(replace(stopped.request(Path("/"), NOW_MS + 1000 * number, **changes), to=url))


def objects(url: str) -> dict[str, bytes]:
    root = Path(url.removeprefix("file://"))
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".")}


def test_what_was_just_made_stays_although_the_clock_of_its_node_is_behind(
    stopped: Any, url: str, tmp_path: Path
) -> None:
    ahead = made(stopped, url, 5)
    done = made(stopped, url, 1, keep=1)
    assert done.removed == [ahead.manifest.name]
    assert backups_at(url) == ([done.manifest], [])
    assert verify_backup(done.path, tmp_path / "scratch").problems == []


def test_a_backup_there_and_back_is_a_good_backup(stopped: Any, url: str, tmp_path: Path) -> None:
    done = made(stopped, url)
    assert done.path == f"{url}/{done.manifest.name}"
    assert backups_at(url) == ([done.manifest], [])
    assert not (stopped.data / "checkpoints" / remote.STAGING).exists()
    stages: list[str] = []
    with found_source(RestoreSource(done.path), tmp_path / "new", NOW_MS, stages.append) as local:
        new = restore(local.path, tmp_path / "new", count=1, base_port=21000, now_ms=NOW_MS)
    assert new.manifest.digest == done.manifest.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "node", "store"]
    assert verify_backup(done.path, tmp_path / "scratch").problems == []
    assert not (tmp_path / "scratch").exists()
    assert remote.is_backup_at(done.path)
    assert not remote.is_backup_at(url)


def test_a_folder_that_was_there_before_is_left_alone(stopped: Any, url: str, tmp_path: Path) -> None:
    done = made(stopped, url)
    theirs = tmp_path / "theirs" / "file"
    theirs.parent.mkdir()
    theirs.write_text("precious")
    for fetched in (fetch_backup, verify_backup):
        with pytest.raises(LocalError, match="is in the way"):
            fetched(done.path, theirs.parent)
        assert theirs.read_text() == "precious"


def test_the_next_backup_writes_what_is_new(stopped: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.tier.stored_files.PART_BYTES", 4096)
    first = made(stopped, url)
    before = objects(url)
    again = made(stopped, url, 1)
    assert again.manifest.bytes_new == 0
    assert len(objects(url)) == len(before) + 1
    grown = stopped._replace(checkpoint=stopped.grow(3))
    third = made(grown, url, 2, keep=2)
    assert 0 < third.manifest.bytes_new < first.manifest.bytes_new
    assert third.removed == [first.manifest.name]
    assert [each.name for each in backups_at(url)[0]] == [again.manifest.name, third.manifest.name]
    last = made(grown, url, 3, keep=1)
    assert last.removed == [again.manifest.name, third.manifest.name]
    named = {f"{remote.BACKUPS}/{last.manifest.name}.json"}
    left = objects(url)
    description = stored_files.decode(left[min(named)], remote.Description)
    named |= {part.name for file in description.files for part in file.parts}
    assert set(left) == named


async def test_the_newest_of_a_node_is_found(stopped: Any, url: str) -> None:
    done = await asyncio.to_thread(made, stopped, url)
    assert await newest_ms(url, None, done.manifest.cluster_uuid, done.manifest.node) == done.manifest.made_ms
    assert await newest_ms(url, None, done.manifest.cluster_uuid, 9) is None


def test_what_is_damaged_there_is_named(stopped: Any, url: str, tmp_path: Path) -> None:
    done = made(stopped, url)
    root = tmp_path / "store"
    part = next(iter((root / remote.PARTS).iterdir()))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(LocalError, match=rf"(?s)is damaged.*{part.name} was read 3 times: its digest"):
        fetch_backup(done.path, tmp_path / "new")
    part.unlink()
    with pytest.raises(LocalError, match=rf"(?s)is damaged.*{part.name} was read 3 times: it is missing"):
        fetch_backup(done.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    part.write_bytes(whole)
    description = root / remote.BACKUPS / f"{done.manifest.name}.json"
    description.write_bytes(description.read_bytes().replace(b'"size":', b'"size":1', 1))
    found, (problem,) = backups_at(url)
    assert (found, problem) == (
        [],
        f"{url}/{remote.BACKUPS}/{description.name} cannot be read: its checksum does not fit",
    )
    with pytest.raises(LocalError, match=r"(?s)is damaged.*checksum does not fit.*backup list"):
        fetch_backup(done.path, tmp_path / "new")


def test_a_rotten_part_is_not_taken_by_the_next_backup(stopped: Any, url: str, tmp_path: Path) -> None:
    made(stopped, url)
    for part in (tmp_path / "store" / remote.PARTS).iterdir():
        part.write_bytes(bytes(len(part.read_bytes())))
    second = made(stopped, url, 1)
    assert verify_backup(second.path, tmp_path / "scratch").problems == []


def open_source(source: RestoreSource, into: Path) -> None:
    with found_source(source, into, NOW_MS, lambda stage: None):
        pass


def test_bad_sources_and_targets(stopped: Any, url: str, tmp_path: Path) -> None:
    made(stopped, url)
    with pytest.raises(LocalError, match=r"(?s)has no backup 'none'.*backup list"):
        fetch_backup(f"{url}/none", tmp_path / "new")
    (tmp_path / "new").mkdir()
    with pytest.raises(LocalError, match=r"(?s)new is in the way.*rm -r"):
        fetch_backup(f"{url}/none", tmp_path / "new")
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(LocalError, match=r"is not empty"):
        open_source(RestoreSource(f"{url}/x"), tmp_path / "new")
    with pytest.raises(LocalError, match=r"(?s)a backup alone is restored as it is.*--from-tier URL"):
        open_source(RestoreSource(f"{url}/x", target=RestoreTarget(7)), tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"(?s)the store file://.* failed"):
        made(stopped, (tmp_path / "file").as_uri())
    with pytest.raises(LocalError, match="schemes"):
        made(stopped, "ftp://x/y")
    assert not (stopped.data / "checkpoints" / remote.STAGING).exists()


@pytest.mark.parametrize("stage", ["state", "log", "reading back"])
def test_what_fails_of_the_folder_before_the_upload_is_not_called_the_nodes_log(
    stopped: Any, url: str, stage: str
) -> None:
    """It lies in the node's directory, as the log does."""
    staging = stopped.data / "checkpoints" / remote.STAGING

    def vanishes(begins: str) -> None:
        if begins == stage:
            shutil.rmtree(staging)

    order = replace(stopped.request(Path("/")), to=url)
    again = rf"raftmq backup create --to {url}    \(once more\)"
    with pytest.raises(LocalError, match=rf"(?s)not made: {staging}, in which.*No such file.*{again}"):
        create_remote(order, vanishes)


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_changes_before_it_is_uploaded_fails_the_backup(stopped: Any, url: str, grows: bool) -> None:
    staging = stopped.data / "checkpoints" / remote.STAGING

    def changes(begins: str) -> None:
        if begins == "uploading":
            file = next(path for path in staging.rglob("state/*") if path.stat().st_size > 100)
            data = file.read_bytes()
            file.write_bytes(data + b"x" if grows else data[:-1])

    order = replace(stopped.request(Path("/"), copy_all=True), to=url)
    with pytest.raises(LocalError, match=rf"(?s)the backup to {url} failed.* bytes, \d+ were expected.*\(again\)"):
        create_remote(order, changes)
    assert backups_at(url) == ([], [])


def test_a_node_without_room_for_a_backup_says_so(
    stopped: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 5000)
    with pytest.raises(LocalError, match=rf"(?s)own disk.*is full.*5000 bytes are free.*df -h {stopped.data}"):
        made(stopped, url, copy_all=True)
    assert not (tmp_path / "store").exists()


class Hanging(MemoryStore):
    """Never answers."""

    async def get(self, name: str, size_max: int) -> StoredObject:
        await asyncio.Event().wait()
        raise AssertionError(name, size_max)


def test_a_store_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CALL_S", 0.01)
    monkeypatch.setattr(retrying_store.RetryPolicy, "deadline_s", lambda self, size: self.call_s)
    monkeypatch.setattr(remote, "open_store", lambda url, options: Hanging())
    with pytest.raises(LocalError, match=r"(?s)the store s3://bucket/x failed.*no answer within"):
        fetch_backup("s3://bucket/x/name", tmp_path / "new")
    assert not (tmp_path / "new").exists()
