"""Contexts: `--admin NAME` leads to the cluster that it was added for, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ExitCode, LocalError
from raftmq.cli import run
from raftmq.local.admin_http import AdminApi, admin_addresses
from raftmq.local.contexts import FILE_VARIABLE


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What `/v1/status` says of its cluster."""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "deep" / "contexts.json"))
    told: dict[str, Any] = {"cluster_id": "c-1"}

    def local(api: AdminApi, path: str) -> dict[str, Any]:
        if told["cluster_id"] is None:
            raise LocalError("no node answers", "", "", ExitCode.UNREACHABLE)
        return told

    monkeypatch.setattr(AdminApi, "local", local)
    return told


def test_a_name_stands_for_its_addresses(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "add", "prod", "--admin", "http://n1:9644/,n2:9644"]) == 0
    assert admin_addresses("prod") == ["n1:9644", "n2:9644"]
    capsys.readouterr()
    assert run(["context", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["contexts"]
    assert listed == {"name": "prod", "addresses": ["n1:9644", "n2:9644"], "cluster_id": "c-1"}
    assert run(["context", "remove", "prod"]) == 0
    with pytest.raises(LocalError, match="is not the address of an HTTP API, and no context"):
        admin_addresses("prod")


def test_a_name_that_leads_to_another_cluster_is_refused(answers: dict[str, Any]) -> None:
    assert run(["context", "add", "prod", "--admin", "n1:9644"]) == 0
    answers["cluster_id"] = "c-2"
    with pytest.raises(LocalError, match="another cluster answers") as error:
        admin_addresses("prod")
    assert error.value.exit_code is ExitCode.REFUSED
    answers["cluster_id"] = None
    assert admin_addresses("prod") == ["n1:9644"], "whoever asks next hears that nobody answers"


def test_a_cluster_that_is_away_may_be_named(answers: dict[str, Any]) -> None:
    answers["cluster_id"] = None
    assert run(["context", "add", "spare", "--admin", "n1:9644"]) == 0
    answers["cluster_id"] = "c-9"
    assert admin_addresses("spare") == ["n1:9644"]


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("name", ["", "a:b", "../x", "-x", "a b", "x" * 65])
def test_names_that_are_none(name: str) -> None:
    assert run(["context", "add", "--admin", "n1:9644", "--", name]) == ExitCode.USAGE


def test_a_damaged_file_is_said(answers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "contexts.json").write_text('{"contexts": [1]}')
    with pytest.raises(LocalError, match="cannot be used"):
        admin_addresses("prod")
