"""The user that RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY name signs what commands send and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

import raftmq.client
from cluster.config.local_layout import ClusterFile, write_cluster
from cluster.config.node_files import plan_nodes
from raftmq.cli import run
from raftmq.client.discovery import LOCAL_USER
from raftmq.commands.shared_options import connect
from raftmq.local.access_files import make_first_user
from raftmq.local.http.contexts import FILE_VARIABLE
from raftmq_wire.errors import LocalError
from raftmq_wire.user_file import USER_VARIABLES

NAME, SECRET = USER_VARIABLES
AWAY = "127.0.0.1:1"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a local cluster with users, which does not run."""
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "contexts.json"))
    rows = {"away": {"admin": [], "cluster_id": "", "servers": [AWAY]}}
    (tmp_path / "contexts.json").write_text(json.dumps({"schema": 1, "contexts": rows}))
    folder = tmp_path / "cluster"
    folder.mkdir()
    write_cluster(folder, ClusterFile(plan_nodes(folder, 1, 29300)))
    make_first_user(folder / LOCAL_USER)
    return folder


@pytest.mark.parametrize("given", USER_VARIABLES)
@pytest.mark.parametrize("where", ["--servers", "--data", "context"])
def test_half_a_user_is_an_error_wherever_the_servers_come_from(
    data: Path, where: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(given, "only-half")
    place = {"--servers": ("--servers", AWAY), "--data": ("--data", str(data)), "context": ("--servers", "away")}
    assert run(["consume", "orders", *place[where]]) == 2
    (other,) = set(USER_VARIABLES) - {given}
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"{given} is set, and {other} is not"
    assert told[2] == f"type:    export {other}={'USER' if other == NAME else 'SECRET'}", "what is set stays"
    assert "only-half" not in "".join(told)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_named_user_comes_before_the_first_super_of_the_directory(
    data: Path, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def open_client(servers: object, **options: Any) -> None:
        asked.update(options)
        raise LocalError("seen", "", "")

    monkeypatch.setattr(raftmq.client, "connect", open_client)
    if is_named:
        monkeypatch.setenv(NAME, "shop")
        monkeypatch.setenv(SECRET, "the-secret-of-shop")
    context = click.Context(click.Command("any"))
    context.meta["raftmq.data"] = str(data)
    with context, pytest.raises(LocalError, match="seen"):
        connect(None)
    assert asked.get("access_key") == (None if is_named else "admin")  # None: the client takes the environment's
