"""Several groups in one data directory: names, folders, ports and files, without a process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os.path import normpath
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from cluster.config import node_files
from cluster.config.loading import load
from cluster.config.local_layout import (
    ClusterFile,
    NodeRecord,
    is_lost,
    key_of,
    local_root,
    name_of,
    place_of,
    read_cluster,
    write_cluster,
)
from cluster.config.node_files import plan_group, plan_moved, plan_node, plan_nodes, read_nodes, write_config_like
from cluster.peer.secret import path_of
from cluster.peer.secret_files import read_keys
from cluster.state.manifest import FILE, CheckpointManifest, encode
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftmq.cli import cli
from raftmq.client.discovery import find_servers
from raftmq.local import init as local_init
from raftmq.local.cluster import LocalCluster
from raftmq.local.cluster_files import ClusterFiles, prepare_data_dir
from raftmq.local.further_groups import BEGUN
from raftmq.local.http.admin_http import admin_addresses
from raftmq.local.init import check_data_dirs
from raftmq.local.lost_disks import dead_group, dead_groups, lost_nodes
from raftmq.local.process import free_base_port
from raftmq.local.retired_groups import set_aside
from raftmq.local.status import GroupStatus, NodeView, json_of
from raftmq.local.tls.local_tls import certify
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.broker_state import AppliedMark
from statemachine.levels import GROUPS_LEVEL
from tests.support.answering_api import answering
from tests.support.idle_nodes import idle
from tests.support.rows import each_row
from tests.support.small_segments import small_segments

BASE = 29100


def loaded(
    folder: Path,
    groups: int | None = None,
    count: int | None = None,
    base: int | None = None,
    *,
    failpoints: bool = False,
) -> list[NodeRecord]:
    """What `raftmq up` makes or finds before it starts a node."""
    prepare_data_dir(folder)
    with small_segments():
        found = ClusterFiles(folder).load_or_make(count, base, groups, failpoints=failpoints, on_stage=lambda _: None)
    assert read_cluster(folder) == found
    return found.nodes


def named(nodes: Sequence[NodeRecord]) -> list[int | str]:
    return [node.name for node in nodes]


def of(nodes: Sequence[NodeRecord], group: int) -> list[NodeRecord]:
    return [node for node in nodes if node.group == group]


def refused(folder: Path, what: str, **wanted: Any) -> LocalError:
    with pytest.raises(LocalError, match=what) as caught:
        loaded(folder, **wanted)
    return caught.value


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """path -> (content, time of the last change) of every file of group 1."""
    paths = [path for home in folder.glob("n*") for path in home.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@each_row(
    ("name", "key"), [(2, (1, 2)), ("2", (1, 2)), ("1/2", (1, 2)), ("3/2", (3, 2)), ("03/02", (3, 2)), ("9/0", (9, 0))]
)
def test_a_name_has_the_group_unless_it_is_the_first(name: int | str, key: tuple[int, int]) -> None:
    assert key_of(name) == key
    assert key_of(name_of(*key)) == key
    assert name_of(*key) == (key[1] if key[0] == 1 else f"{key[0]}/{key[1]}")


@each_row("name", ["", "x", "2/x", "/2", "2/", "2/1/1", "-1", "2/-1", "²", "2 /1", "1" * 10])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(LocalError, match="is no name of a node") as caught:
        key_of(name)
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_same_id_in_two_groups_is_two_nodes(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 2, BASE)
    nodes += plan_group(tmp_path, 3, 2, None, nodes, lambda port: True)
    cluster = ClusterFile(nodes)
    assert named(cluster.nodes) == [1, 2, "3/1", "3/2"]
    assert cluster.groups == [1, 3]
    assert [cluster.node(name) for name in (1, "1/2", "3/1", "3/2")] == nodes
    assert [node.pid for node in cluster.with_pid("3/2", 7).nodes] == [None, None, None, 7]
    assert [node.pid for node in cluster.with_pid(2, 7).nodes] == [None, 7, None, None]
    assert named(cluster.without("3/1").nodes) == [1, 2, "3/2"]
    assert named(cluster.without(1).nodes) == [2, "3/1", "3/2"]
    for name in ("3/9", 9, "9/1"):
        with pytest.raises(LocalError, match=f"there is no node {name}") as caught:
            cluster.node(name)
        assert caught.value.why == "the members are 1, 2, 3/1, 3/2"


def test_a_cluster_of_one_group_is_written_for_earlier_releases(tmp_path: Path) -> None:
    first = plan_nodes(tmp_path, 1, BASE)
    write_cluster(tmp_path, ClusterFile(first))
    written = json.loads((tmp_path / "cluster.json").read_text())
    assert written["schema"] == 10
    assert "group" not in written["nodes"][0]
    both = ClusterFile([*first, *plan_group(tmp_path, 2, 1, None, first, lambda port: True)])
    write_cluster(tmp_path, both)
    written = json.loads((tmp_path / "cluster.json").read_text())
    assert (written["schema"], written["nodes"][1]["group"]) == (11, 2)
    assert read_cluster(tmp_path) == both
    write_cluster(tmp_path, both.without("2/1"))
    assert json.loads((tmp_path / "cluster.json").read_text())["schema"] == 10


def test_a_further_group_has_ports_of_its_own(tmp_path: Path) -> None:
    usual = plan_nodes(tmp_path, 9, None)
    taken = {port for node in usual for port in node.ports.values()}
    for group in range(2, 65):
        usual += plan_group(tmp_path, group, 9, None, usual, lambda port: True)
        assert len(taken & {port for node in of(usual, group) for port in node.ports.values()}) == 0
        taken |= {port for node in of(usual, group) for port in node.ports.values()}
    assert len(taken) == 4 * 9 * 64
    assert max(taken) < 15000
    assert usual[9].log == str(tmp_path / "g02" / "n1" / "node.log")
    busy = plan_group(tmp_path, 2, 1, None, plan_nodes(tmp_path, 1, None), lambda port: port not in (11000, 10914))
    assert busy[0].ports == {"name server": 10915, "broker": 10916, "peer": 10917, "admin": 10918}
    own = plan_group(tmp_path, 2, 2, None, plan_nodes(tmp_path, 3, BASE), lambda port: port != BASE + 13)
    assert sorted(port for node in own for port in node.ports.values()) == list(range(BASE + 14, BASE + 22))
    with pytest.raises(LocalError, match="no 4 consecutive free ports were found for group 2"):
        plan_group(tmp_path, 2, 1, None, plan_nodes(tmp_path, 1, None), lambda port: False)


def test_a_node_that_joins_a_further_group_takes_no_port_of_another(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 1, None)
    nodes += plan_group(tmp_path, 2, 1, None, nodes, lambda port: True)
    assert plan_node(tmp_path, 2, nodes, lambda port: True).admin_port == 9645, "a usual one: group 1 has those"
    joined = plan_node(tmp_path, 2, nodes, lambda port: True, group=2)
    assert (joined.name, joined.log) == ("2/2", str(tmp_path / "g02" / "n2" / "node.log"))
    assert sorted(joined.ports.values()) == [11004, 11005, 11006, 11007]


def test_a_group_takes_no_port_of_a_node_that_is_down(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 9, None)
    nodes += plan_group(tmp_path, 2, 9, None, nodes, lambda port: True)
    nodes.append(plan_node(tmp_path, 10, nodes, lambda port: True, group=2))
    assert min(nodes[-1].ports.values()) == 11036, "the usual ones of group 3"
    third = plan_group(tmp_path, 3, 1, None, nodes, lambda port: True)
    assert sorted(third[0].ports.values()) == [11040, 11041, 11042, 11043]


def test_emptied_directories_of_several_groups_make_no_new_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=1, base=BASE)
    for node in nodes:
        shutil.rmtree(node.home / "data")
    (data / "cluster.json").unlink()
    refused(data, "holds no node")
    assert not any((node.home / "data").exists() for node in nodes)


def test_a_second_group_beside_the_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = loaded(data, count=3, base=BASE)
    uuid, before = check_data_dirs(first), files_of(data)
    nodes = loaded(data, groups=2)
    assert named(nodes) == [1, 2, 3, "2/1", "2/2", "2/3"]
    assert nodes[:3] == first
    assert files_of(data) == before, "nothing of the first group was touched"
    assert check_data_dirs(nodes) == uuid
    for node in nodes[3:]:
        config = load(node.config_path)
        assert (config.cluster.id, config.cluster.group, config.cluster.broker_name) == (str(uuid), 2, "raftmq-g02")
        assert read_keys(path_of(config)) == read_keys(path_of(load(first[0].config_path))) != ()
        assert normpath(config.auth.key_file) == str(data / "users.key")
        assert config.backup.roots == str(tmp_path)
        assert [peer.id for peer in config.peers] == [1, 2, 3]
        opened = open_node_dir(OsFileSystem(), node.home / "data")
        assert opened.identity.group_id == opened.log.genesis.group_id == 2
        opened.close(clean=True)
    assert normpath(path_of(load(nodes[3].config_path))) == str(data / "SECRET")
    assert (data / "SECRET").stat().st_mode & 0o777 == 0o600
    assert nodes[3].data == nodes[0].data == data
    assert loaded(data) == nodes, "those that are there"
    assert loaded(data, groups=2) == nodes
    assert named(loaded(data, groups=3, count=3)[6:]) == ["3/1", "3/2", "3/3"]
    assert load(data / "g03" / "n1" / "raftmq.toml").cluster.broker_name == "raftmq-g03"


@contextmanager
def running(data: Path, answers: dict[str, Any]) -> Iterator[None]:
    """The first node of the cluster runs, and its HTTP API answers so."""
    first, *others = read_cluster(data).nodes
    with idle([first]) as nodes, answering(answers, first.admin_port):
        write_cluster(data, ClusterFile([*nodes, *others]))
        yield


def test_no_group_is_made_beside_one_whose_level_has_none(tmp_path: Path) -> None:
    """What was made could not be added, and would keep the cluster from its next start."""
    data = tmp_path / "data"
    first = loaded(data, count=3, base=free_base_port(24))
    before = files_of(data)
    made = CheckpointManifest(AppliedMark(1, 7, 0, 0, 0), 0, {}, (), level=GROUPS_LEVEL - 1)
    folder = first[1].home / "data" / "checkpoints" / made.name
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(encode(made, 1))
    with pytest.raises(LocalError, match="group 1 has level 13, and several groups need level 14") as failed:
        loaded(data, groups=2)
    assert failed.value.fix.startswith("raftmq up && raftmq upgrade finalize")
    (folder / FILE).unlink()
    folder.rmdir()
    assert files_of(data) == before

    told = {"level": GROUPS_LEVEL - 1}
    groups = {"groups": [{"group": 1, "state": "active"}]}
    with running(data, {"GET /v1/upgrade": told, "GET /v1/broker-groups": groups}):
        with pytest.raises(LocalError, match="nothing was made") as failed:
            loaded(data, groups=2)
        assert failed.value.fix.startswith("raftmq upgrade finalize")
        assert files_of(data) == before
        told["level"] = GROUPS_LEVEL
        assert len(loaded(data, groups=2)) == 6


def test_all_groups_of_a_new_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=1, base=BASE)
    assert [sorted(node.ports.values()) for node in nodes] == [
        [BASE, BASE + 1, BASE + 2, BASE + 3],
        [BASE + 4, BASE + 5, BASE + 6, BASE + 7],
    ]
    servers = (f"127.0.0.1:{BASE}", f"127.0.0.1:{BASE + 4}")  # any node tells of all groups
    assert find_servers(environ={"RAFTMQ_DATA": str(data)}) == servers
    assert LocalCluster(data).servers == f"127.0.0.1:{BASE}"
    assert admin_addresses(None, str(data)) == [f"127.0.0.1:{BASE + 3}"]
    assert admin_addresses(None, str(data), 2) == [f"127.0.0.1:{BASE + 7}"]
    (data / "cluster.json").unlink()
    assert loaded(data) == nodes, "it is made again from the files"


def test_settings_and_paths_of_the_first_group_hold_in_the_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = loaded(data, count=1, base=BASE, failpoints=True)
    text = first[0].config_path.read_text()
    text += f'\n[cluster]\nname = "Ours"\nbroker_name = "shop"\n\n[tier]\nurl = "file://{tmp_path}/tier/"\n'
    first[0].config_path.write_text(text + "\n[retention]\nhours = 5\n\n[log]\nsegment_size_bytes = 6291456\n")
    certify(data, first)
    node = loaded(data, groups=2)[1]
    config = load(node.config_path)
    assert (config.cluster.name, config.cluster.broker_name, config.retention.hours) == ("Ours", "shop-g02", 5)
    assert config.tier.url == f"file://{tmp_path}/tier/g02", "objects of two groups would have the same names"
    assert config.failpoints.enabled
    assert normpath(config.tls.cert_file) == str(data / "tls" / "node-2-1.crt")
    assert (normpath(config.tls.ca_file), config.tls.mode) == (str(data / "tls" / "ca.crt"), "enforcing")
    assert normpath(load(first[0].config_path).tls.cert_file) == str(data / "tls" / "node-1.crt")
    ClusterFiles(data).change_tier([first[0], node], f"file://{tmp_path}/other")
    assert load(node.config_path).tier.url == f"file://{tmp_path}/other/g02"
    assert load(first[0].config_path).tier.url == f"file://{tmp_path}/other"


def test_a_node_that_joins_a_further_group_is_configured_like_the_others_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=1, base=BASE)
    joined = plan_node(data, 2, nodes, lambda port: True, group=2)
    write_config_like(joined, [nodes[1], joined], nodes[1].config_path)
    own, like = load(joined.config_path), load(nodes[1].config_path)
    assert own.cluster == like.cluster
    assert (normpath(path_of(own)), own.node.id) == (str(data / "SECRET"), 2)
    assert normpath(own.auth.key_file) == normpath(like.auth.key_file)
    assert [peer.id for peer in own.peers] == [1, 2]


def test_ports_of_all_groups_move_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=3, base=BASE)
    moved = loaded(data, base=BASE + 100)
    assert moved == plan_moved(nodes, BASE + 100) == read_nodes(data)
    assert sorted(port for node in moved for port in node.ports.values()) == list(range(BASE + 100, BASE + 124))
    for node in moved:
        own = of(moved, node.group)
        assert [(peer.id, peer.port) for peer in load(node.config_path).peers] == [(e.id, e.peer_port) for e in own]
    assert [node.log for node in moved] == [node.log for node in nodes]
    more = loaded(data, groups=3, count=3, base=BASE + 200)
    assert sorted(port for node in more for port in node.ports.values()) == list(range(BASE + 200, BASE + 236))
    error = refused(data, "--base-port 65500 leaves no room", groups=4, base=65500)
    assert error.why.startswith("12 nodes need 48 consecutive ports")
    assert read_nodes(data) == more
    monkeypatch.setattr(node_files, "_NAMES_FIRST_GROUP", True)  # a version that has cluster.first_group
    text = node_files.moved(more[3].config_path.read_text(), more[3], of(more, 2), of(more, 1), failpoints=False)
    assert f'first_group = ["127.0.0.1:{more[0].peer_port}", ' in text
    assert "first_group" not in node_files.moved(
        more[0].config_path.read_text(), more[0], of(more, 1), of(more, 1), failpoints=False
    )


@each_row("writes_left", [0, 1, 2, 3])
@each_row("step", ["write_config", "create_node_dir", "write_mark"])
def test_an_interrupted_group_is_begun_again_and_the_first_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, writes_left: int
) -> None:
    data = tmp_path / "data"
    first = loaded(data, count=3, base=BASE)
    uuid, before = check_data_dirs(first), files_of(data)
    module = node_files if step == "write_config" else local_init
    real, left = getattr(module, step), [writes_left]

    def interrupted(*arguments: Any, **more: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupted)
        if writes_left < (1 if step == "write_mark" else 3):
            with pytest.raises(KeyboardInterrupt):
                loaded(data, groups=2)
            assert (data / "g02" / BEGUN).exists()
    nodes = loaded(data, groups=2)
    assert named(nodes) == [1, 2, 3, "2/1", "2/2", "2/3"]
    assert check_data_dirs(nodes) == uuid
    assert not (data / "g02" / BEGUN).exists()
    assert files_of(data) == before


def test_a_group_that_was_made_with_its_mark_and_not_finished_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    loaded(data, count=1, base=BASE)
    certified = tmp_path / "data" / "tls" / "ca.crt"
    certified.parent.mkdir()
    certified.touch()

    def no(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("raftmq.local.further_groups.certify", no)
        with pytest.raises(KeyboardInterrupt):
            loaded(data, groups=2)
    assert (data / "SECRET.g02.cluster").exists()
    shutil.rmtree(certified.parent)
    assert named(loaded(data)) == [1], "nobody asks for it any more"
    assert not (data / "SECRET.g02.cluster").exists()
    assert named(loaded(data, groups=2)) == [1, "2/1"]


def test_wrong_numbers_of_groups(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in (0, 65, -1):
        done = CliRunner().invoke(cli, ["up", "--groups", str(number), "--data", str(data)])
        assert done.exit_code == ExitCode.USAGE
        assert f"a cluster of {number} groups is not possible" in done.stderr
    assert not data.exists()
    loaded(data, groups=3, count=1, base=BASE)
    error = refused(data, "has 3 groups, not 2", groups=2)
    assert (error.exit_code, error.fix[:20]) == (ExitCode.REFUSED, "raftmq up --groups 3")
    assert refused(data, "has 1 nodes, not 3", groups=4, count=3).fix.endswith(
        "(once for each; or another cluster with --data)"
    )
    assert not (data / "g04").exists()


def test_a_group_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        loaded(tmp_path / name, groups=2, count=1, base=BASE)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.rmtree(ours / "g02")
    shutil.move(theirs / "g02", ours / "g02")
    error = refused(ours, "belongs to cluster")
    assert str(ours / "g02" / "n1" / "data") in error.what


def test_a_group_in_the_folder_of_another_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    loaded(data, groups=2, count=1, base=BASE)
    path = data / "g02" / "n1" / "raftmq.toml"
    text = path.read_text()
    path.write_text(text.replace("group = 2", "group = 3"))
    error = refused(data, "says cluster.group = 3, and lies in the folder of another group")
    assert error.why == f"the nodes of group 3 are in {data / 'g03'}"
    path.write_text(text)
    (data / "g02").rename(data / "g03")
    assert refused(data, "says cluster.group = 2").why == f"the nodes of group 2 are in {data / 'g02'}"
    (data / "g03").rename(data / "g02")
    (data / "g02" / "n1").rename(data / "n2")
    assert refused(data, "says cluster.group = 2").exit_code is ExitCode.REFUSED


def test_without_the_first_group_no_new_one_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    loaded(data, groups=2, count=1, base=BASE)
    shutil.rmtree(data / "n1")
    (data / "cluster.json").unlink()
    for groups in (None, 2):
        assert refused(data, "the directories of group 1 .* are gone", groups=groups).exit_code is ExitCode.REFUSED
    assert not (data / "n1").exists()


def test_a_group_whose_directories_were_emptied_is_not_made_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=1, base=BASE)
    shutil.rmtree(nodes[1].home / "data")
    for _ in range(2):
        assert loaded(data, groups=2) == nodes, "the first group starts"
        assert not (nodes[1].home / "data").exists()
        assert dead_groups(nodes) == [2]
        shutil.rmtree(data / "g02", ignore_errors=True)
    (data / "cluster.json").unlink()
    for _ in range(2):
        error = refused(data, "was made before", groups=2)
        assert "SECRET.g02.cluster" in error.why
        assert not (data / "g02").exists()


def test_a_group_that_has_retired_is_not_made_again(tmp_path: Path) -> None:
    """Neither while what it had lies aside nor afterwards; a further group gets the next number."""
    data = tmp_path / "data"
    loaded(data, groups=2, count=1, base=BASE)
    set_aside(data, 2)

    def everything() -> set[Path]:
        return {path for path in data.rglob("*") if path.name != "cluster.json"}

    for _ in range(2):
        before = everything()
        for _ in range(2):
            error = refused(data, "group 2 has retired", groups=2)
            assert (error.exit_code, error.fix[:21]) == (ExitCode.REFUSED, "raftmq up --groups 3 ")
            assert everything() == before, "nothing was made"
        assert named(loaded(data)) == [1]
        shutil.rmtree(data / "g02", ignore_errors=True)
    assert named(loaded(data, groups=3)) == [1, "3/1"]


def test_a_group_that_an_earlier_release_has_set_aside_is_known_while_the_first_one_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    loaded(data, groups=2, count=1, base=free_base_port(8))
    mark = (data / "SECRET.g02.cluster").read_bytes()
    set_aside(data, 2)
    (data / "SECRET.g02.cluster").write_bytes(mark)
    shutil.rmtree(data / "g02")
    for _ in range(2):
        refused(data, "was made before", groups=2)
        assert not (data / "g02").exists()
    told = {"groups": [{"group": 1, "state": "active"}, {"group": 2, "state": "retired"}]}
    with running(data, {"GET /v1/broker-groups": told}):
        refused(data, "group 2 has retired", groups=2)
    assert not (data / "g02").exists()


def test_disks_are_lost_group_by_group(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=3, base=BASE)
    shutil.rmtree(nodes[4].home / "data")
    assert named(lost_nodes(nodes)) == ["2/2"]
    cluster = LocalCluster(data)
    assert loaded(data) == nodes, "the others of its group are a majority"
    with pytest.raises(LocalError, match="data directory of node 2/2 is empty") as caught:
        cluster.restart("2/2")
    assert caught.value.fix.startswith("raftmq node replace 2/2 ")
    with pytest.raises(LocalError, match="node 2/2 is not running") as caught:
        cluster.kill("2/2")
    assert caught.value.fix.startswith("raftmq node replace 2/2 ")
    assert cluster.way_back(2) == "raftmq restart 2", "another node"
    shutil.rmtree(nodes[0].home / "data")
    assert named(lost_nodes(nodes)) == [1, "2/2"], "two of six, and one of three in each"
    shutil.rmtree(nodes[5].home)
    assert named(lost_nodes(nodes)) == [1], "the second group has no majority"
    assert cluster.way_back("2/3").startswith("raftmq runbook no_quorum")
    assert dead_groups(nodes) == [2]
    assert "2 of its 3 data directories are lost" in dead_group(2, of(nodes, 2)).why
    assert loaded(data) == nodes, "it stops no other group"
    shutil.rmtree(nodes[1].home / "data")
    assert dead_groups(nodes) == [2], "without the first group there is no cluster"
    refused(data, "holds no node")


def test_a_node_knows_where_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=2, base=BASE)
    for node in nodes:
        directory = str(node.home / "data")
        assert local_root(directory) == data
        assert place_of(directory) == "up"
        assert not is_lost(directory, 2)
    shutil.rmtree(nodes[3].home / "data")
    assert is_lost(str(nodes[2].home / "data"), 2)
    assert not is_lost(str(nodes[0].home / "data"), 2)
    (data / "cluster.json").unlink()
    assert local_root(str(nodes[2].home / "data")) is None


def test_a_purge_takes_all_groups_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    loaded(data, groups=3, count=1, base=BASE)
    (data / "g02" / "removed" / "n2").mkdir(parents=True)
    (data / "g03" / "mine.txt").write_text("keep")
    LocalCluster(data).purge()
    assert sorted(str(path.relative_to(data)) for path in data.rglob("*")) == ["g03", "g03/mine.txt"]
    (data / "g03" / "mine.txt").unlink()
    (data / "g03").rmdir()
    assert named(loaded(data, groups=2, count=1, base=BASE)) == [1, "2/1"]


def test_removed_nodes_are_looked_for_in_their_group(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nodes = loaded(data, groups=2, count=3, base=BASE)
    write_cluster(data, ClusterFile([*nodes[:5], replace(nodes[5], replaces=9)]))
    assert [node.replaces for node in loaded(data)] == [None, None, None, None, None, 9]
    (data / "g02" / "removed").mkdir()
    nodes[4].home.rename(data / "g02" / "removed" / "n2")
    assert named(loaded(data)) == [1, 2, 3, "2/1", "2/3"], "node 2 is of the first group"


def view_of(nodes: Sequence[NodeRecord], leader: int, term: int) -> GroupStatus:
    said = {"term": term, "role": "follower", "leader": leader, "writes_open": False, "alarms": [], "peers": []}
    leads = {**said, "role": "leader", "writes_open": True}
    return GroupStatus([NodeView(node, True, leads if node.id == leader else said) for node in nodes])


def test_each_group_has_its_leader_and_term(tmp_path: Path) -> None:
    nodes = loaded(tmp_path / "data", groups=2, count=3, base=BASE)
    views = [view_of(of(nodes, 1), 1, 7), view_of(of(nodes, 2), 2, 4)]
    told = json_of(views)
    assert [(each.ready, each.leader_name, each.term) for each in views] == [(True, 1, 7), (True, "2/2", 4)]
    assert (told["leader"], told["term"]) == (1, 7)
    assert [(node["id"], node.get("group")) for node in told["nodes"]] == [
        (1, None), (2, None), (3, None), (1, 2), (2, 2), (3, 2),
    ]  # fmt: skip
    assert told["groups"] == [
        {"group": 1, "leader": 1, "term": 7, "writes_open": True, "sends_refused": None},
        {"group": 2, "leader": 2, "term": 4, "writes_open": True, "sends_refused": None},
    ]
    alone = json_of(views[:1])
    assert "groups" not in alone
    assert alone == views[0].to_json()


def test_a_directory_has_the_identity_of_its_group(tmp_path: Path) -> None:
    nodes = loaded(tmp_path / "data", groups=2, count=1, base=BASE)
    found = [identities.load(OsFileSystem(), node.home / "data") for node in nodes]
    assert [each.group_id for each in found] == [1, 2]
    assert found[0].cluster_uuid == found[1].cluster_uuid != UUID(int=0)
    assert found[0].node_uuid != found[1].node_uuid
