"""The local cluster's directory: where it is found, what cluster.json says, and that it is never half written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from cluster.config.local_layout import (
    ClusterFile,
    NodeRecord,
    find_data_dir,
    locked,
    read_cluster,
    replace_file,
    write_cluster,
)
from cluster.config.node_files import move_ports, plan_nodes, read_nodes, set_tls, write_configs
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row


def test_the_default_is_here(tmp_path: Path) -> None:
    assert find_data_dir(None, {}, tmp_path) == tmp_path / ".raftmq"


def test_it_is_found_from_sub_folders(tmp_path: Path) -> None:
    (tmp_path / ".raftmq").mkdir()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_data_dir(None, {}, below) == tmp_path / ".raftmq"


def test_a_directory_with_a_cluster_comes_before_a_nearer_one_without(tmp_path: Path) -> None:
    below = tmp_path / "a"
    (below / ".raftmq").mkdir(parents=True)
    (tmp_path / ".raftmq").mkdir()
    write_cluster(tmp_path / ".raftmq", ClusterFile([]))
    assert find_data_dir(None, {}, below) == tmp_path / ".raftmq"


def test_the_client_finds_the_same_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raftmq.client.discovery import cluster_file

    (tmp_path / ".raftmq").mkdir()
    write_cluster(tmp_path / ".raftmq", ClusterFile([]))
    below = tmp_path / "deep"
    below.mkdir()
    found = cluster_file({}, below)
    assert found is not None
    assert found.parent == find_data_dir(None, {}, below)


def test_flag_before_variable_before_folder(tmp_path: Path) -> None:
    (tmp_path / ".raftmq").mkdir()
    assert find_data_dir(None, {"RAFTMQ_DATA": "from-env"}, tmp_path) == tmp_path / "from-env"
    assert find_data_dir("given/../flag", {"RAFTMQ_DATA": "from-env"}, tmp_path) == tmp_path / "flag"


def test_cluster_file_round_trip_and_shape(tmp_path: Path) -> None:
    cluster = ClusterFile(plan_nodes(tmp_path, 3, None)).with_pid(2, 4711)
    write_cluster(tmp_path, cluster)
    assert read_cluster(tmp_path) == cluster
    raw = json.loads((tmp_path / "cluster.json").read_text())
    assert raw["nodes"][1] == {
        "id": 2,
        "pid": 4711,
        "broker_port": 10921,
        "namesrv_port": 9877,
        "peer_port": 10922,
        "admin_port": 9645,
        "log": str(tmp_path / "n2" / "node.log"),
    }


def test_cluster_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine stops before the rename, the old file stands untouched and no leftover remains after an error."""
    old = ClusterFile(plan_nodes(tmp_path, 3, None))
    write_cluster(tmp_path, old)

    def fail(self: Path, target: Path) -> Path:
        assert self.read_bytes().endswith(b"}\n"), "renamed before it was whole"
        raise OSError("stopped here")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="stopped here"):
        write_cluster(tmp_path, old.with_pid(1, 99))
    assert read_cluster(tmp_path) == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json"]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    """The file under the final name is always another inode: nobody writes into one that is being read."""
    cluster = ClusterFile(plan_nodes(tmp_path, 3, None))
    write_cluster(tmp_path, cluster)
    with (tmp_path / "cluster.json").open("rb") as held:
        inode = os.fstat(held.fileno()).st_ino
        write_cluster(tmp_path, cluster.with_pid(3, 12345))
        assert b"12345" not in held.read()
    assert (tmp_path / "cluster.json").stat().st_ino != inode


@each_row(
    ("content", "code", "what"),
    [
        (None, ExitCode.UNREACHABLE, "there is no cluster in"),
        (b"", ExitCode.REFUSED, "is damaged"),
        (b'{"nodes": [', ExitCode.REFUSED, "is damaged"),
        (b'{"schema": 10, "nodes": [{"id": "one"}]}', ExitCode.REFUSED, "is damaged"),
        (b'{"schema": 12, "groups": []}', ExitCode.REFUSED, "a newer RaftMQ wrote it"),
    ],
)
def test_unusable_cluster_files(tmp_path: Path, content: bytes | None, code: ExitCode, what: str) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(LocalError, match=what) as caught:
        read_cluster(tmp_path)
    assert caught.value.exit_code == code
    assert caught.value.why
    assert caught.value.fix


def test_the_lock_keeps_a_second_command_out(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(LocalError, match="another raftmq command"), locked(tmp_path):
        pytest.fail("two commands hold the directory")
    with locked(tmp_path):
        pass


def ports(nodes: list[NodeRecord]) -> list[int]:
    return [port for node in nodes for port in node.ports.values()]


def test_usual_ports(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, None)
    assert [node.namesrv_port for node in nodes] == [9876, 9877, 9878]
    assert [node.broker_port for node in nodes] == [10911, 10921, 10931]
    assert [node.admin_port for node in nodes] == [9644, 9645, 9646]
    assert [node.peer_port for node in nodes] == [10912, 10922, 10932]


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_ports_in_a_row(tmp_path: Path, count: int) -> None:
    assert sorted(ports(plan_nodes(tmp_path, count, 20000))) == list(range(20000, 20000 + 4 * count))
    assert len(set(ports(plan_nodes(tmp_path, count, None)))) == 4 * count


@each_row(("count", "base"), [(0, None), (10, None), (-1, 20000), (3, 80), (3, 65530), (3, 70000)])
def test_impossible_plans(tmp_path: Path, count: int, base: int | None) -> None:
    with pytest.raises(LocalError) as caught:
        plan_nodes(tmp_path, count, base)
    assert caught.value.exit_code == ExitCode.USAGE


def test_configs_say_what_was_planned(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 20000)
    write_configs(nodes, failpoints=True)
    assert read_nodes(tmp_path) == nodes
    from cluster.config.loading import load

    config = load(nodes[1].config_path)
    assert config.node.data_dir == str(tmp_path / "n2" / "data")
    assert config.failpoints.enabled
    assert config.voter_ids == (1, 2, 3)
    by_listener = {name: config.broker_addresses(name) for name in ("broker", "namesrv")}
    assert (
        by_listener["broker"] == by_listener["namesrv"] == {node.id: f"127.0.0.1:{node.broker_port}" for node in nodes}
    )


def test_the_key_of_users_is_one_file_beside_the_nodes(tmp_path: Path) -> None:
    from cluster.config.loading import load

    nodes = plan_nodes(tmp_path, 2, 20000)
    write_configs(nodes, users_key=True)
    assert {Path(load(node.config_path).auth.key_file).resolve() for node in nodes} == {tmp_path / "users.key"}
    write_configs(nodes)
    assert load(nodes[0].config_path).auth.key_file == ""


def test_other_ports_keep_every_other_setting(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 20000)
    write_configs(nodes)
    path = nodes[0].config_path
    path.write_text("# our cluster\n" + path.read_text() + "\n[raft]\ntick_ms = 77  # the network is slow\n")
    moved = plan_nodes(tmp_path, 3, 21000)
    move_ports(moved, failpoints=True)
    text = path.read_text()
    assert text.startswith("# our cluster\n# Node 1 of a local cluster")
    assert "tick_ms = 77  # the network is slow" in text
    assert "[limits]" not in text, "what the user did not write is not written"
    assert read_nodes(tmp_path) == moved
    from cluster.config.loading import load

    config = load(path)
    assert (config.raft.tick_ms, config.failpoints.enabled) == (77, True)
    assert config.node.data_dir == str(tmp_path / "n1" / "data")
    assert config.broker_addresses("namesrv") == {n.id: f"127.0.0.1:{n.broker_port}" for n in moved}


def _access(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def test_a_file_that_is_replaced_keeps_its_owner_group_and_mode(tmp_path: Path) -> None:
    """A configuration of root, which the group of a service reads: whoever may rewrites it, and the service reads it
    on."""
    nodes = plan_nodes(tmp_path, 1, None)
    write_configs(nodes)
    path = nodes[0].config_path
    owner = (os.getuid(), 4711) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    path.chmod(0o640)
    set_tls(path, "node-1", tmp_path / "pki")
    assert "cert_file" in path.read_text()
    assert _access(path) == (*owner, 0o640)
    move_ports(nodes)
    replace_file(path, path.read_bytes(), 0o600)
    assert _access(path) == (*owner, 0o640)
    assert [each.name for each in path.parent.iterdir()] == ["raftmq.toml"]


def test_rights_of_a_group_that_cannot_be_kept_are_given_to_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o664)
    monkeypatch.setattr(os, "fchown", refuse)
    replace_file(path, b"new")
    assert path.read_text() == "new"
    assert _access(path)[2] == 0o604


def test_a_secret_that_lay_open_does_not_stay_open(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new", 0o600)
    assert _access(path)[2] == 0o640


def test_what_its_check_refuses_takes_no_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def refuse(fresh: Path) -> None:
        assert fresh.read_text() == "new"
        raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        replace_file(path, b"new", check=refuse)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
