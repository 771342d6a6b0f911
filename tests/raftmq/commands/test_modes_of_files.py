"""Files of commands are for their user alone; a file that the user names for output has the modes of the umask."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cluster.config.node_files import plan_nodes, write_configs
from raftmq import cli
from raftmq.local.cluster_files import prepare_data_dir
from raftmq_wire.errors import ExitCode
from tests.support.answering_api import MakeApi
from tests.support.small_segments import LOG


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022, "tests and users of `run` keep theirs"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_everything_for_its_user_alone(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 2, 29100)
    write_configs(nodes)
    assert [mode(node.home) for node in nodes] == [0o700] * 2
    for node in nodes:
        with node.config_path.open("a") as file:
            file.write(f"\n{LOG}")
    given = [word for node in nodes for word in ("--config", str(node.config_path))]
    assert cli.run(["init", *given]) == 0
    made = [path for node in nodes for path in (node.home / "data", *(node.home / "data").rglob("*"))]
    assert {path.name for path in made} >= {"SECRET", "SECRET_REQUIRED", "IDENTITY", "GENESIS", "log"}
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}


def test_the_folder_of_a_local_cluster_is_private_by_itself(tmp_path: Path) -> None:
    """Also for a program that uses `LocalCluster`."""
    prepare_data_dir(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o700


def test_a_folder_that_is_there_keeps_its_modes(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o755)
    prepare_data_dir(tmp_path / "c")
    assert mode(tmp_path / "c") == 0o755


def test_a_support_bundle_is_private_unless_the_user_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["support", "bundle", "--admin", "127.0.0.1:9"]) == 0
    (unnamed,) = tmp_path.glob("*.tar.gz")
    assert mode(unnamed) == 0o600
    assert cli.run(["support", "bundle", "--admin", "127.0.0.1:9", "--to", "mine.tar.gz"]) == 0
    assert mode(tmp_path / "mine.tar.gz") == 0o644


def test_exported_metadata_has_the_modes_of_the_umask(tmp_path: Path, make_api: MakeApi) -> None:
    nothing: dict[str, Any] = {"topics": [], "groups": [], "offsets": [], "ends": {}}
    api = make_api({"GET /v1/metadata": {"cluster_uuid": "c", "applied_index": 1, **nothing}})
    assert cli.run(["metadata", "export", "--admin", api.address, "--to", str(tmp_path / "m.json")]) == 0
    assert mode(tmp_path / "m.json") == 0o644


def test_commands_of_the_packages_above_keep_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write Parquet files, histories and reports."""

    @click.command()
    def spark() -> None:
        (tmp_path / "part.parquet").touch()

    plugin: Any = SimpleNamespace(load=lambda: spark)
    monkeypatch.setattr(cli, "_plugins", lambda: {"spark": plugin})
    assert cli.run(["spark"]) == 0
    assert mode(tmp_path / "part.parquet") == 0o644


@pytest.mark.parametrize("command", ["up", "down", "status", "logs"])
def test_another_users_cluster_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAFTMQ_DATA", raising=False)
    data = tmp_path / ".raftmq"
    data.mkdir(mode=0o700)

    def denied(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for call in ("is_file", "read_bytes", "iterdir"):
        monkeypatch.setattr(Path, call, denied)
    assert cli.run([command]) == ExitCode.REFUSED
    what, why, fix = capsys.readouterr().err.splitlines()
    assert what.startswith(str(data))
    assert why == "because: Permission denied"
    assert "as the user who owns" in fix
