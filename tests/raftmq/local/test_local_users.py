"""`raftmq up --auth`: a first Super, enforced rules, and clients and commands that find the user. Real processes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raftmq
from cluster.config.loading import load
from cluster.config.node_files import plan_nodes, write_configs
from raftmq import cli
from raftmq.client.discovery import LOCAL_USER
from raftmq.client.environment import REAL, user_of, with_credentials
from raftmq.local.access_files import make_first_user
from raftmq.local.cluster import LocalCluster
from raftmq.local.local_users import client_options, has_users, lack_key, provide_key
from raftmq.local.process import free_base_port
from raftmq_wire.codes import ResponseCode

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> tuple[int, Any]:
        code = cli.run([*words, "--json"])
        told = capsys.readouterr()
        try:
            return code, json.loads(told.out)
        except ValueError:
            return code, told.out + told.err

    return ran


@pytest.mark.live
def test_one_command_makes_a_secured_cluster(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / ".raftmq"
    cluster = LocalCluster(data)
    cluster.up(1, free_base_port(4), tls=True, auth=True)
    try:
        where = "--data", str(data)
        assert run("auth", "show", *where)[1]["nodes"][0]["mode"] == "enforce"
        assert run("topic", "create", "greetings", *where)[0] == 0
        monkeypatch.chdir(tmp_path)
        with raftmq.connect() as mq:  # finds cluster.json, and beside it the CA and the user
            mq.send("greetings", b"hello")
        with raftmq.connect(cluster.servers, **cluster.client_options) as mq:
            mq.send("greetings", b"again")
        assert run("consume", "greetings", "--max", "1", *where)[0] == 0
        monkeypatch.chdir("/")
        stranger = raftmq.connect(cluster.servers, tls=client_options(data)["tls"])
        with stranger, pytest.raises(raftmq.Refused) as refused:
            stranger.send("greetings", b"let me in")
        assert refused.value.code == ResponseCode.NO_PERMISSION
        cluster.down()
        cluster.up()  # it stays what it is
        assert run("auth", "show", *where)[1]["nodes"][0]["mode"] == "enforce"
    finally:
        cluster.down()
    cluster.purge()
    assert not data.exists(), "the next cluster there has another CA and other users"


def test_only_a_client_of_the_local_cluster_signs_as_its_user(tmp_path: Path) -> None:
    data = tmp_path / ".raftmq"
    data.mkdir()
    name, secret = user_of(make_first_user(data / LOCAL_USER))
    (data / "cluster.json").write_text(json.dumps({"nodes": [{"namesrv_port": 29300}]}))
    environ = {"RAFTMQ_DATA": str(data)}
    assert name == "admin"
    assert has_users(data)

    def user(servers: tuple[str, ...], **more: str) -> str:
        found = with_credentials(REAL, "", "", environ | more, servers).credentials
        return "" if found is None else found.access_key

    ours = "127.0.0.1:29300"
    assert user((ours,)) == "admin"
    assert user((ours, "10.0.0.1:9876")) == "", "the secret proves itself to no other server"
    assert user((ours,), RAFTMQ_ACCESS_KEY="shop", RAFTMQ_SECRET_KEY="the-secret-of-shop") == "shop"
    (data / LOCAL_USER).chmod(0o640)
    with pytest.raises(ValueError, match="0640") as refused:
        user((ours,))
    assert secret not in str(refused.value)


def test_a_key_that_a_person_chose_is_not_replaced(tmp_path: Path) -> None:
    nodes = plan_nodes(tmp_path, 2, 29300)
    write_configs(nodes)
    with nodes[0].config_path.open("a") as file:
        file.write('\n[auth]\nkey_file = "own.key"\n')
    assert lack_key(nodes) == nodes[1:]
    provide_key(tmp_path, nodes)
    files = [Path(load(node.config_path).auth.key_file).resolve() for node in nodes]
    assert files == [nodes[0].home / "own.key", tmp_path / "users.key"]
    assert [path.exists() for path in files] == [False, True]
    assert not lack_key(nodes)


def test_init_issues_certificates_and_names_them(tmp_path: Path, run: Run) -> None:
    nodes = plan_nodes(tmp_path / "d", 3, 29300)
    write_configs(nodes)
    files = [word for node in nodes for word in ("--config", str(node.config_path))]
    code, made = run("init", *files, "--tls", str(tmp_path / "pki"))
    assert code == 0, made
    assert made["certificates"] == [str(tmp_path / "pki" / f"node-{node.id}.crt") for node in nodes]
    config = load(nodes[1].config_path)
    assert (config.tls.mode, config.tls.ca_file) == ("enforcing", str(tmp_path / "d" / "n2" / "../../pki/ca.crt"))
    before = nodes[1].config_path.stat()
    assert run("init", *files, "--tls", str(tmp_path / "pki"))[1]["certificates"] == [], "it can run before every start"
    assert nodes[1].config_path.stat() == before
    assert len(base64.b64decode((tmp_path / "pki" / "ca.key").read_bytes().split(b"-----")[2])) > 100
