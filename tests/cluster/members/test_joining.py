"""The sources of a new node's directory and configuration, and everything that is not taken over."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.config.loading import load
from cluster.members.joining import clear_half_made, make_directory, peer_tables
from cluster.members.new_node import prepare
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter, encode
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import NodeId
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row

FS = OsFileSystem()
OLD, NOW = UUID(int=7), UUID(int=8)
VOTERS = tuple(Voter(NodeId(node), UUID(int=node)) for node in (1, 2, 3))
GENESIS = Genesis(OLD, 1, 1 << 20, 1_700_000_000_000, VOTERS)


def join(**changes: Any) -> dict[str, Any]:
    """Returns the answer of GET /v1/members/join; the cluster goes on from an older one."""
    told = {
        "cluster": "DefaultCluster",
        "broker": "raftmq",
        "cluster_id": str(NOW),
        "group": 1,
        "genesis": base64.b64encode(encode(GENESIS)).decode(),
        "next_id": 5,
        "taken_ids": [1, 2, 3, 4],
        "ancestors": [{"cluster_id": str(OLD), "last_index": 40}],
        "peers": [
            {
                "id": n,
                "host": f"10.0.0.{n}",
                "port": 10912,
                "admin": f"10.0.0.{n}:9644",
                "listeners": {"broker": f"10.0.0.{n}:10911"},
            }
            for n in (1, 2, 3)
        ],
    }
    return told | changes


def test_a_directory_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = make_directory(FS, tmp_path / "a" / "data", 5, join(), 1)
    assert (made.cluster_uuid, made.node_id, [each.cluster_uuid for each in made.origin]) == (NOW, 5, [OLD])
    opened = open_node_dir(FS, tmp_path / "a" / "data")
    assert opened.log.genesis == GENESIS
    assert opened.log.tail.index == 0
    opened.close(clean=True)
    assert make_directory(FS, tmp_path / "a" / "data", 5, join(taken_ids=[1, 2, 3, 4, 5]), 2) == made


def test_what_an_interrupted_attempt_left_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    made = make_directory(FS, directory, 5, join(), 1)
    clear_half_made(FS, directory)
    assert identities.load(FS, directory) == made, "it is whole"
    (directory / "IDENTITY").unlink()
    with pytest.raises(LocalError, match="its creation was interrupted"):
        make_directory(FS, directory, 5, join(), 1)
    clear_half_made(FS, directory)
    assert make_directory(FS, directory, 5, join(), 1).node_uuid != made.node_uuid


def used(folder: Path) -> int:
    folder.mkdir()
    return (folder / "something").write_text("of somebody")


BAD: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "an id that is taken": (lambda d: make_directory(FS, d / "x", 4, join(), 1), "node 4 is, or was", "use id 5"),
    "another node's directory": (
        lambda d: (make_directory(FS, d / "x", 5, join(), 1), make_directory(FS, d / "x", 6, join(), 1)),
        "it is node 5's",
        "another node.data_dir",
    ),
    "another cluster's directory": (
        lambda d: (
            make_directory(FS, d / "x", 5, join(), 1),
            make_directory(FS, d / "x", 5, join(cluster_id=str(UUID(int=9))), 1),
        ),
        "belongs to another cluster",
        ".old",
    ),
    "a directory that holds something else": (
        lambda d: (used(d / "x"), make_directory(FS, d / "x", 5, join(), 1)),
        "is not empty",
        "mv",
    ),
    "a directory that cannot be made": (
        lambda d: (d.joinpath("f").write_text(""), make_directory(FS, d / "f" / "x", 5, join(), 1)),
        "cannot be used",
        "ls -ld",
    ),
}


@each_row("name", BAD)
def test_nothing_is_taken_over(name: str, tmp_path: Path) -> None:
    attempt, what, fix = BAD[name]
    with pytest.raises(LocalError) as caught:
        attempt(tmp_path)
    assert what in caught.value.what
    assert fix in caught.value.fix
    kept = tmp_path / "x"
    if name == "another node's directory" or name == "another cluster's directory":
        assert identities.load(FS, kept).node_id == 5
        assert identities.load(FS, kept).cluster_uuid == NOW


OWN = """[node]
id = 5
data_dir = "data"

[[listeners]]
name = "broker"
port = 10911
"""
TOLD = """
[[peers]]
id = 5
host = "10.0.0.5"
port = 10912
admin = "10.0.0.5:9644"
listeners = {broker = "10.0.0.5:10911"}
"""


def file_of(folder: Path, text: str = OWN + TOLD) -> Path:
    path = folder / "n5.toml"
    path.write_text(text.replace('name = "broker"', 'name = "broker"\nadvertised = "10.0.0.5:10911"', 1))
    return path


def test_the_other_members_are_written_into_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    prepared = prepare(path, join(), None)
    config = load(path)
    assert [peer.id for peer in config.peers] == [5, 1, 2, 3]
    assert config.peer_of(2).host == "10.0.0.2"
    assert (prepared.request["id"], prepared.request["host"], prepared.request["cluster_id"]) == (
        5,
        "10.0.0.5",
        str(NOW),
    )
    assert prepared.directory == tmp_path / "data"
    before = path.read_text()
    again = prepare(path, join(taken_ids=[1, 2, 3, 5]), 5)
    assert again.request == prepared.request
    assert path.read_text() == before


def test_a_file_without_peers_gets_its_own_node_too(tmp_path: Path) -> None:
    local = join(peers=[{**peer, "host": "127.0.0.1", "port": 10912 + peer["id"]} for peer in join()["peers"]])
    path = file_of(tmp_path, OWN)
    prepare(path, local, None)
    assert [peer.id for peer in load(path).peers] == [5, 1, 2, 3]


def test_members_that_the_file_knows_are_left_as_they_are() -> None:
    known = load(None, {}, {"node.id": 1, "node.data_dir": "/d", "peers": [{"id": 1, "port": 1}, {"id": 2, "port": 2}]})
    text = peer_tables(join()["peers"], known.peers)
    assert text.count("[[peers]]") == 1
    assert "id = 3" in text
    assert peer_tables([{**join()["peers"][0], "id": 9, "host": ""}], ()) == "", "nobody knows where node 9 is"


@each_row(
    ("text", "told", "node_id", "what", "fix", "code"),
    [
        (OWN + TOLD, {}, 6, "is of node 5, not 6", "id = 6 under [node]", ExitCode.USAGE),
        (OWN + TOLD, {"cluster": "Other"}, None, "another cluster: cluster.name", 'name = "Other"', ExitCode.REFUSED),
        (OWN + TOLD, {"broker": "b"}, None, "cluster.broker_name is raftmq", 'broker_name = "b"', ExitCode.REFUSED),
        (OWN + TOLD, {"group": 2}, None, "cluster.group is 1", "write group = 2 under", ExitCode.REFUSED),
        (
            OWN + TOLD + f'[cluster]\nid = "{UUID(int=1)}"\n',
            {},
            None,
            "another cluster: cluster.id",
            str(NOW),
            ExitCode.REFUSED,
        ),
        (OWN, {}, None, "cannot reach node 5 at 127.0.0.1", "NAME_OR_IP", ExitCode.USAGE),
        (OWN + '[peer]\nbind = "0.0.0.0"\n', {}, None, "cannot reach node 5 at 0.0.0.0", "NAME_OR_IP", ExitCode.USAGE),
        (
            OWN.replace("id = 5", "id = 4") + TOLD.replace("id = 5", "id = 4"),
            {},
            None,
            "node 4 is, or was",
            "use id 5",
            ExitCode.REFUSED,
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_left_as_it_is(
    tmp_path: Path, text: str, told: dict[str, Any], node_id: int | None, what: str, fix: str, code: ExitCode
) -> None:
    path = file_of(tmp_path, text)
    before = path.read_text()
    with pytest.raises(LocalError) as caught:
        prepare(path, join(**told), node_id)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.exit_code is code
    assert path.read_text() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["n5.toml"]
