"""`raftmq doctor` says what to change, and exits with 1 only then."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.config.exposure_check import open_folder
from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from cluster.runtime.host import cgroup, versions
from cluster.runtime.host.cgroup import Bounds
from raftmq import cli
from raftmq.commands import doctor
from raftmq_wire import kernel


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is well, until a test changes it."""
    monkeypatch.setattr(cgroup, "bounds", lambda: Bounds(None, None))
    monkeypatch.setattr(kernel, "WHY", "")
    monkeypatch.setenv("RAFTMQ_DATA", "/nowhere")
    monkeypatch.setattr(versions, "versions", lambda: {"zlib-ng": "1.1.0"})


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = cli.run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in told["checks"]] == ["python", "kernel", "checksums", "control group"]
    return code, told["findings"]


@pytest.mark.usefixtures("machine")
def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(capsys) == (0, [])


def test_a_kernel_that_was_not_built(monkeypatch: pytest.MonkeyPatch, machine: object, capsys: Any) -> None:
    monkeypatch.setattr(kernel, "WHY", "no C compiler")
    assert examined(capsys) == (1, ["no C compiler"])


def test_slow_checksums() -> None:
    assert doctor.checksums("1.1.0", by_pip=False).finding == ""
    assert doctor.checksums("not installed", by_pip=False).finding.startswith("make setup installs it")


@pytest.mark.usefixtures("machine")
def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["python", "kernel", "checksums", "control"]


@pytest.mark.usefixtures("machine")
def test_what_strangers_can_reach_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    file = tmp_path / "raftmq.toml"
    node = '[node]\nid = 4\ndata_dir = "data"\n[[listeners]]\nname = "broker"\nport = 10911\n'
    file.write_text(node)
    assert cli.run(["doctor", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("ports of node 4 ")
    assert lines[5].startswith("data of node 4 ")
    monkeypatch.setattr(doctor, "open_folder", partial(open_folder, root=tmp_path / "data"))
    file.write_text(f'{node}[peer]\nbind = "::"\n')
    assert cli.run(["doctor", "--config", str(file), "--json"]) == 1
    ports, folder = json.loads(capsys.readouterr().out)["findings"]
    assert "(peer [::]:10912), without encryption" in ports
    assert folder.endswith(f"chmod 700 {tmp_path / 'data'}")


@pytest.mark.usefixtures("machine")
def test_the_nodes_of_a_local_cluster_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = plan_nodes(tmp_path, 2, 29100)
    write_configs(nodes)
    write_cluster(tmp_path, ClusterFile(nodes))
    monkeypatch.setenv("RAFTMQ_DATA", str(tmp_path))
    assert cli.run(["doctor", "--json"]) == 0
    names = [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert names[4:] == ["ports of node 1", "data of node 1", "ports of node 2", "data of node 2"]


def test_a_control_group_that_allows_too_little() -> None:
    name, found, finding = doctor.control_group(Bounds(300 << 20, 0.5))
    assert (name, found) == ("control group", "memory 300 MiB, processors 0.50")
    assert "at least 512 MiB" in finding
    assert "at least one processor" in finding


def test_an_installation_by_pip_is_told_nothing_of_make() -> None:
    said = doctor.checksums("not installed", by_pip=True).finding
    assert "-m pip install zlib-ng" in said
    assert "make" not in said
