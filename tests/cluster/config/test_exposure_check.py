"""The exposure of a node to strangers: ports on every address, and a folder that other users may enter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.exposure_check import open_folder, open_ports
from cluster.config.loading import load
from cluster.config.local_layout import CLUSTER_FILE
from tests.support.rows import each_row


def config(**overrides: Any) -> Config:
    listener = {"name": "broker", "port": 10911, "advertised": "10.0.0.1:10911", **overrides.pop("broker", {})}
    keys = {"node.id": 1, "node.data_dir": "/d", "listeners": [listener]}
    peers = [{"id": 1, "host": "10.0.0.1", "port": 10912, "admin": "10.0.0.1:9644"}]
    return load(None, {}, keys | {"peers": peers} | {key.replace("__", "."): bind for key, bind in overrides.items()})


@pytest.mark.parametrize("bind", ["127.0.0.1", "10.0.0.1", "::1", "node1.example"])
def test_an_address_of_its_own_is_no_finding(bind: str) -> None:
    assert open_ports(config(broker={"bind": bind}, peer__bind=bind, admin__bind=bind)) == ""


@each_row(
    ("overrides", "named"),
    [
        ({"broker": {"bind": "0.0.0.0"}}, "(broker 0.0.0.0:10911), without access control"),
        ({"admin__bind": "::"}, "(admin [::]:9644), without access control"),
        ({"peer__bind": "0.0.0.0"}, "(peer 0.0.0.0:10912), without encryption"),
        ({"peer__heartbeat_bind": "0.0.0.0", "peer__heartbeat_port": 10999}, "(heartbeat 0.0.0.0:10999)"),
        ({"admin__bind": "0.0.0.0", "peer__bind": "0:0::0"}, "(admin 0.0.0.0:9644, peer [0:0::0]:10912)"),
    ],
)
def test_every_address_is_named_with_the_two_ways_out(overrides: dict[str, Any], named: str) -> None:
    says = open_ports(config(**overrides))
    assert named in says
    assert "bind 127.0.0.1 or a private address, or put these ports behind a firewall" in says
    assert says.endswith('(see the page "Security: users and rules" of the docs)')
    assert "\n" not in says


@pytest.mark.parametrize(("mode", "is_open"), [(0o700, False), (0o750, False), (0o755, True), (0o701, True)])
def test_a_folder_that_other_users_may_enter(tmp_path: Path, mode: int, is_open: bool) -> None:
    folder = tmp_path / "its data"
    folder.mkdir()
    folder.chmod(mode)
    found = open_folder(folder, tmp_path / "its data")
    assert (found is not None) == is_open
    if found is not None:
        assert found.command == f"chmod 700 '{folder}'"
        assert found.says.startswith("other users of this machine can enter")
        assert found.says.endswith(found.command)


def test_a_closed_folder_above_is_enough(tmp_path: Path) -> None:
    (tmp_path / "above" / "data").mkdir(parents=True)
    (tmp_path / "above" / "data").chmod(0o755)
    for mode, is_open in ((0o700, False), (0o755, True)):
        (tmp_path / "above").chmod(mode)
        assert (open_folder(tmp_path / "above" / "data", tmp_path / "above") is not None) == is_open
    assert open_folder(tmp_path / "absent", tmp_path) is None


def test_the_folder_of_a_local_cluster_is_what_to_close(tmp_path: Path) -> None:
    """One command covers the nodes' logs and configurations as well."""
    top = tmp_path / ".raftmq"
    (top / "n1" / "data").mkdir(parents=True)
    for folder in (top, top / "n1", top / "n1" / "data"):
        folder.chmod(0o755)
    (top / CLUSTER_FILE).touch()
    found = open_folder(top / "n1" / "data", top)
    assert found is not None
    assert found.command == f"chmod 700 {top}"
