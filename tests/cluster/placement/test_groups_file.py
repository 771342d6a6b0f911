"""DATA/GROUPS: what was kept is read again, and whatever else lies there is no map."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, GroupRecords, encode
from cluster.placement.groups_file import FORMAT, MAGIC, GroupsFile
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.sealed_map import seal

FS = OsFileSystem()
MEMBERS = [GroupMember(1, "h", 1, "", {"broker": "h:2"})]
GROUPS: GroupRecords = {group: GroupRecord(group, f"g{group}", Epoch(3, 4), 1, MEMBERS) for group in (1, 3, 64)}


@pytest.fixture
def file(tmp_path: Path) -> GroupsFile:
    return GroupsFile(FS, tmp_path, "uuid", 2)


def test_a_map_is_kept(file: GroupsFile, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert file.load() == {}
    assert not caplog.text, "there is none before the first"
    file.save(GROUPS)
    assert GroupsFile(FS, tmp_path, "uuid", 2).load() == GROUPS
    file.save({})
    assert file.load() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["GROUPS"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "damaged"),
        (b"RMQG", "damaged"),
        (seal(MAGIC, FORMAT, 3, {"cluster": "uuid", "groups": encode(GROUPS.values())}), "of another group"),
        (seal(MAGIC, FORMAT, 2, {"cluster": "other", "groups": encode(GROUPS.values())}), "of another cluster"),
        (seal(MAGIC, FORMAT, 2, {"groups": encode(GROUPS.values())}), "of another cluster"),
        (seal(MAGIC, FORMAT, 2, {"cluster": "uuid"}), "no map"),
        (seal(MAGIC, FORMAT, 2, {"cluster": "uuid", "groups": "text"}), "no map"),
        (seal(MAGIC, FORMAT, 2, {"cluster": "uuid", "groups": b"\xc1"}), "malformed map"),
        (seal(MAGIC, FORMAT + 9, 2, {"cluster": "uuid", "groups": encode([])}), "format"),
    ],
)
def test_what_is_no_map_of_this_node_is_ignored(
    file: GroupsFile, tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    (tmp_path / "GROUPS").write_bytes(data)
    assert file.load() == {}
    assert "GROUPS is ignored, and the map of the groups begins anew" in caplog.text
    assert why in caplog.text


def test_any_damaged_byte_is_found(file: GroupsFile, tmp_path: Path) -> None:
    file.save(GROUPS)
    path = tmp_path / "GROUPS"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert file.load() == {}, at
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert file.load() == {}, end
    path.write_bytes(whole)
    assert file.load() == GROUPS


def test_a_file_that_cannot_be_read_stops_nothing(file: GroupsFile, tmp_path: Path) -> None:
    (tmp_path / "GROUPS").mkdir()
    assert file.load() == {}


def test_the_own_group_is_not_learned_from_a_file(tmp_path: Path) -> None:
    file = GroupsFile(FS, tmp_path, "uuid", 3)
    file.save(GROUPS)
    assert file.load().keys() == {1, 64}
