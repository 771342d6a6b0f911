"""Contexts: `--admin NAME` and `--servers NAME` lead to the cluster that they were added for, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import click
import pytest

import raftmq.client
from raftmq.cli import run
from raftmq.client.cluster_view import Contact
from raftmq.client.errors import Unreachable
from raftmq.commands.shared_options import connect
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.http.contexts import FILE_VARIABLE, read_token, token_file, write_token
from raftmq.local.http.credentials import SECRET_VARIABLE, TOKEN_VARIABLE, Address, like, proofs_for
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The answer of `/v1/status` about its cluster."""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "deep" / "contexts.json"))
    told: dict[str, Any] = {"cluster_id": "c-1"}

    def local(api: AdminApi, path: str) -> dict[str, Any]:
        if told["cluster_id"] is None:
            raise LocalError("no node answers", "", "", ExitCode.UNREACHABLE)
        return told

    monkeypatch.setattr(AdminApi, "local", local)
    monkeypatch.setattr("raftmq.local.http.admin_http.node_at", lambda address: None)
    return told


def test_a_name_stands_for_its_addresses(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "add", "prod", "--admin", "http://n1:9644/,n2:9644"]) == 0
    assert admin_addresses("prod") == ["n1:9644", "n2:9644"]
    capsys.readouterr()
    assert run(["context", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["contexts"]
    assert listed == {
        "name": "prod",
        "addresses": ["n1:9644", "n2:9644"],
        "cluster_id": "c-1",
        "servers": [],
        "tls_ca": "",
    }
    assert run(["context", "remove", "prod"]) == 0
    with pytest.raises(LocalError, match="is not the address of an HTTP API, and no context"):
        admin_addresses("prod")


class FakeClient:
    """A client of servers that belong to the clusters `said`, or do not answer."""

    def __init__(self, servers: list[str], said: tuple[str, ...] | None) -> None:
        self.servers = servers
        self.cluster_ids: tuple[str, ...] = ()
        self.admin = self
        self.closed = False
        self._said = said

    def members(self) -> None:
        if self._said is None:
            raise Unreachable("no server answers")
        self.cluster_ids = self._said

    def contact(self, wait_s: float) -> Contact:
        return Contact(self.servers[0], hopeless=False, why="")

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the clusters of clients, newest first, and the clients so far."""
    told: dict[str, Any] = {"said": ("c-1",), "made": []}

    def open_client(servers: list[str], tls: object = None, on_retry: object = None) -> FakeClient:
        told["made"].append(FakeClient(servers, told["said"]))
        return cast(FakeClient, told["made"][-1])

    monkeypatch.setattr(raftmq.client, "connect", open_client)
    return told


def opened(servers: str) -> Any:
    with click.Context(click.Command("any")):
        return connect(servers)


@pytest.mark.usefixtures("answers")
def test_a_name_stands_for_the_servers_of_clients_too(clients: dict[str, Any]) -> None:
    assert run(["context", "add", "prod", "--admin", "n1:9644"]) == 0
    with pytest.raises(LocalError, match="the context prod has no --servers") as error:
        opened("prod")
    assert error.value.fix == "raftmq context add prod --servers HOST:9876"
    assert run(["context", "add", "prod", "--servers", "n1:9876;n2:9876"]) == 0
    assert admin_addresses("prod") == ["n1:9644"], "what is not given stays"
    assert opened("prod").servers == ["n1:9876", "n2:9876"]
    with pytest.raises(LocalError, match="nope is not host:port, and no context"):
        opened("nope")


@pytest.mark.usefixtures("answers")
def test_clients_are_kept_from_another_cluster(clients: dict[str, Any]) -> None:
    assert run(["context", "add", "prod", "--servers", "n1:9876"]) == 0
    with pytest.raises(LocalError, match="the context prod has no --admin"):
        admin_addresses("prod")
    clients["said"] = ("c-2", "c-1")
    assert not opened("prod").closed, "a cluster that goes on from it, after a restore"
    clients["said"] = ("c-3",)
    with pytest.raises(LocalError, match="another cluster answers") as error:
        opened("prod")
    assert (error.value.exit_code, clients["made"][-1].closed) == (ExitCode.REFUSED, True)
    clients["said"] = None
    with pytest.raises(Unreachable):
        opened("prod")
    assert clients["made"][-1].closed


def test_both_kinds_of_address_lead_to_one_cluster(answers: dict[str, Any], clients: dict[str, Any]) -> None:
    both = ["context", "add", "prod", "--admin", "n1:9644", "--servers", "n1:9876"]
    clients["said"] = ("c-2",)
    assert run(both) == ExitCode.REFUSED
    answers["cluster_id"] = clients["said"] = None
    assert run(both) == 0
    assert opened("prod").cluster_ids == (), "nobody knows which cluster it should be"


def test_a_file_of_an_earlier_release_has_no_servers(answers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    row = {"admin": ["n1:9644"], "cluster_id": "c-1"}
    (tmp_path / "deep" / "contexts.json").write_text(json.dumps({"schema": 1, "contexts": {"prod": row}}))
    assert admin_addresses("prod") == ["n1:9644"]


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
@each_row("name", ["", "a:b", "../x", "-x", "a b", "x" * 65])
def test_names_that_are_none(name: str) -> None:
    assert run(["context", "add", "--admin", "n1:9644", "--", name]) == ExitCode.USAGE


def test_a_damaged_file_is_said(answers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "contexts.json").write_text('{"contexts": [1]}')
    with pytest.raises(LocalError, match="cannot be used"):
        admin_addresses("prod")


def test_the_token_of_a_context_is_kept_for_its_user_alone(answers: dict[str, Any]) -> None:
    run(["context", "add", "prod", "--admin", "n1:9644"])
    assert not isinstance(admin_addresses("prod")[0], Address)
    write_token("prod", "token-of-prod-0001")
    kept = token_file("prod")
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (proof, none) = proofs_for(admin_addresses("prod")[0], "GET", "/", b"")
    assert (proof, none) == ({"Authorization": "Bearer token-of-prod-0001"}, {})
    kept.chmod(0o644)
    with pytest.raises(LocalError, match="is not used"):
        admin_addresses("prod")
    write_token("prod", "")
    assert read_token("prod") == ""


def test_no_proof_goes_to_another_cluster_than_the_contexts(answers: dict[str, Any]) -> None:
    run(["context", "add", "prod", "--admin", "n1:9644"])
    write_token("prod", "token-of-prod-0001")
    answers["cluster_id"] = "c-2"
    with pytest.raises(LocalError, match="another cluster answers"):
        admin_addresses("prod")


def test_a_token_goes_to_no_address_that_a_node_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "token-of-somebody")
    (named,) = admin_addresses("n1:9644")
    assert "Authorization" in next(proofs_for(named, "GET", "/", b""))
    assert list(proofs_for(like(named, "n2:9644"), "GET", "/", b"")) == [{}]
    monkeypatch.delenv(TOKEN_VARIABLE)
    monkeypatch.setenv(SECRET_VARIABLE, str(tmp_path / "SECRET"))
    (named,) = admin_addresses("n1:9644")
    assert isinstance(like(named, "n2:9644"), Address), "a pass tells nobody the secret"
