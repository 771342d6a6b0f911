"""The files and ports of a local cluster's registry, without a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from cluster.config.loading import load
from cluster.config.local_layout import ClusterFile, key_of, name_of, node_object, read_cluster, write_cluster
from cluster.config.node_files import plan_group, plan_nodes, set_registry, write_configs
from cluster.peer.secret_files import write_keys
from cluster.registry import registry_file
from cluster.registry.directory_check import check_directory
from cluster.registry.journal import Entry
from cluster.registry.records import Records
from cluster.registry.store import Store
from raftlog.storage.files.fs import OsFileSystem
from raftmq.local import registry_processes
from raftmq.local.registry_processes import (
    PORTS,
    addresses_of,
    check_cluster,
    free_beside,
    names_another,
    plan_registry,
    provide,
    read_registry,
    servers_of,
    tell_nodes,
    why_none,
    write_registry,
)
from raftmq_wire.errors import LocalError

CLUSTER = UUID(int=7)


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_processes, "is_free", lambda port: True)
    monkeypatch.setattr(registry_processes, "check_ports", lambda records: None)


def test_its_processes_have_names_of_their_own() -> None:
    assert name_of(0, 2) == "registry/2"
    assert key_of("registry/2") == (0, 2)
    assert node_object(*key_of("registry/2")) == "registry node 2"
    with pytest.raises(LocalError, match="is no name of a node"):
        key_of("registry/x")


def test_the_usual_ports_lie_below_those_of_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan_nodes(tmp_path, 3, None)
    nodes = [*first, *plan_group(tmp_path, 2, 3, None, first, lambda port: True)]
    records = plan_registry(tmp_path, None, nodes)
    assert servers_of(records) == "127.0.0.1:9866;127.0.0.1:9867;127.0.0.1:9868"
    assert addresses_of(records) == ("127.0.0.1:9869", "127.0.0.1:9870", "127.0.0.1:9871")
    assert sorted(port for each in records for port in each.ports.values()) == [*range(9866, 9875)]
    monkeypatch.setattr(registry_processes, "is_free", lambda port: port != 9868)
    above = plan_registry(tmp_path, None, nodes)
    assert above[0].port == 1 + max(port for node in nodes for port in node.ports.values())
    assert plan_registry(tmp_path, 30000, nodes)[2].own_port == 30008
    with pytest.raises(LocalError, match="no room"):
        plan_registry(tmp_path, 65536 - PORTS + 1, nodes)
    is_free = free_beside(records)
    assert [is_free(9865), is_free(9866), is_free(9874), is_free(9875)] == [True, False, False, True]


def test_what_a_person_wrote_stays_when_ports_move(tmp_path: Path) -> None:
    records = plan_registry(tmp_path, 30000, [])
    write_registry(tmp_path, records, CLUSTER)
    path = records[1].config_path
    path.write_text('listener = "public"  # for clients elsewhere\n' + path.read_text())
    moved = plan_registry(tmp_path, 31000, [])
    write_registry(tmp_path, moved, CLUSTER)
    assert read_registry(tmp_path) == moved
    assert (registry_file.load(path).listener, "# for clients elsewhere" in path.read_text()) == ("public", True)
    check_cluster(moved, CLUSTER)
    with pytest.raises(LocalError, match="is of another cluster"):
        check_cluster(moved, UUID(int=8))
    shutil.rmtree(moved[2].home)
    assert read_registry(tmp_path) == [], "what was half made is made again"


def test_nodes_are_told_and_a_registry_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 2, 30100)
    write_configs(nodes)
    records = plan_registry(tmp_path, 30000, nodes)

    def named() -> list[tuple[str, ...]]:
        return [load(node.config_path).cluster.registry for node in nodes]

    tell_nodes(nodes, records, wanted=True)
    assert named() == [addresses_of(records)] * 2
    tell_nodes(nodes, records, wanted=False)
    assert named() == [(), ()]
    set_registry(nodes[0].config_path, ["10.0.0.1:9867"])
    assert names_another(nodes, [])
    assert provide(tmp_path, nodes, lambda: CLUSTER, [], None, make=True, why="") == []
    assert not (tmp_path / "registry").exists()
    tell_nodes(nodes, records, wanted=False)
    assert named() == [("10.0.0.1:9867",), ()]


def test_it_is_made_once_and_found_again(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 1, 30100)
    write_configs(nodes)
    write_keys(tmp_path / "SECRET", [b"n" * 32], str(CLUSTER))
    assert provide(tmp_path, nodes, lambda: CLUSTER, [], None, make=False, why="") == []
    assert provide(tmp_path, nodes, lambda: CLUSTER, [], None, make=True, why="pysyncobj is not installed") == []
    made = provide(tmp_path, nodes, lambda: CLUSTER, [], 30200, make=True, why="")
    assert [each.port for each in made] == [30200, 30201, 30202]
    assert provide(tmp_path, nodes, lambda: CLUSTER, made, None, make=False, why="") == made
    assert registry_file.read_secret(Path(registry_file.load(made[0].config_path).secret_file))
    assert why_none(tmp_path) == ""
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "ca.crt").touch()
    assert "no TLS" in why_none(tmp_path)


def test_a_change_of_nodes_keeps_the_registry_in_the_file(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 3, 30100)
    records = plan_registry(tmp_path, 30000, nodes)
    write_cluster(tmp_path, ClusterFile(nodes, registry=records).with_pid("registry/2", 4711))
    found = read_cluster(tmp_path)
    assert [each.pid for each in found.registry] == [None, 4711, None]
    assert found.with_nodes(nodes[1:]).without(2).registry == found.registry
    assert [each.name for each in found.processes] == [1, 2, 3, "registry/1", "registry/2", "registry/3"]
    assert found.process("registry/2").pid == 4711
    with pytest.raises(LocalError, match="there is no registry node 1"):
        found.node("registry/1")


def test_a_directory_is_checked_and_nothing_of_it_changes(tmp_path: Path) -> None:
    directory, cluster = tmp_path / "data", CLUSTER.bytes
    assert check_directory(directory, cluster, 1).fault == "", "a process would begin there"
    store = Store(OsFileSystem(), directory, cluster, 1, Records(cluster))
    store.append([Entry(b"one", 2, 1), Entry(b"two", 3, 1)])
    store.close()
    before = {path: path.read_bytes() for path in directory.iterdir()}
    found = check_directory(directory, cluster, 1)
    assert (found.fault, found.last) == ("", 3)
    assert f"{directory / 'journal'} belongs to registry node 1" in check_directory(directory, cluster, 2).fault
    (directory / "hard_state").unlink()
    assert f"{directory / 'hard_state'} is missing" in check_directory(directory, cluster, 1).fault
    del before[directory / "hard_state"]
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
