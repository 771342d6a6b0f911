"""`raftmq up --tls`: a cluster that takes TLS alone, and the commands and clients that find its CA. Real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import parse_addresses
from raftmq.local.http.https import chosen_tls, forget_tls, local_tls
from raftmq.local.membership import LocalMembers
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError
from tests.raftmq.local.conftest import Run
from tests.support.certificates import make_files


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("RAFTMQ_TLS", "RAFTMQ_TLS_CA", "RAFTMQ_ADMIN", "RAFTMQ_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAFTMQ_CONTEXTS", str(tmp_path / "contexts.json"))
    forget_tls()
    yield
    forget_tls()


@pytest.mark.ci
@pytest.mark.live
def test_everything_after_it_just_works(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / ".raftmq"
    cluster = LocalCluster(data)
    cluster.up(1, free_base_port(8), tls=True)
    try:
        admin = f"127.0.0.1:{cluster.nodes[0].admin_port}"
        assert cluster.admin_url == f"https://{admin}"
        assert run("status", "--data", str(data))[1]["writes_open"]
        with raftmq.connect(cluster.servers, tls=local_tls(data)) as mq:
            mq.send("greetings", b"hello")
        monkeypatch.chdir(tmp_path)
        with raftmq.connect() as mq:  # finds cluster.json, and the CA beside it
            mq.send("greetings", b"again")
        assert LocalMembers(cluster).add().voters == [1, 2]
        monkeypatch.chdir("/")
        code, said = run("topic", "list", "--admin", admin)
        assert code != 0
        assert "--tls-ca" in str(said)
        ca = str(data / "tls" / "ca.crt")
        code, said = run("topic", "list", "--admin", admin, "--tls-ca", make_files(tmp_path / "other").path("ca.crt"))
        assert code != 0
        assert "is not trusted" in str(said)
        assert run("topic", "list", "--admin", admin, "--tls-ca", ca)[1]["topics"][0]["name"] == "greetings"
        assert run("context", "add", "prod", "--admin", admin, "--servers", cluster.servers, "--tls-ca", ca)[0] == 0
        assert run("topic", "list", "--admin", "prod")[1]["topics"][0]["name"] == "greetings"
        code, said = run("consume", "greetings", "--servers", "prod", "--max", "1")
        assert code == 0, said
        cluster.restart(1)
        cluster.down()
        cluster.up()  # it stays what it is
        assert run("status", "--data", str(data))[1]["writes_open"]
    finally:
        cluster.down()


def test_an_address_with_https_asks_for_tls() -> None:
    assert parse_addresses("http://a:1,b:2") == ["a:1", "b:2"]
    assert chosen_tls() is None
    assert parse_addresses("https://a:1/,b:2") == ["a:1", "b:2"]
    assert chosen_tls() == raftmq.Tls()


def test_a_ca_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_TLS_CA", "/nowhere")
    with pytest.raises(LocalError, match="/nowhere cannot be used"):
        chosen_tls()
