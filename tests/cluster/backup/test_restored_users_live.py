"""A restore of a cluster with users: it names them and the key they need, and no token of the old cluster is good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import raftmq
from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.credentials import Address, Bearer, address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.process import free_base_port
from raftmq.local.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]


def asked_with(cluster: LocalCluster, token: str) -> int:
    address = Address(f"127.0.0.1:{cluster.nodes[0].admin_port}", Bearer(token))
    return exchange(address, "GET", "/v1/users", timeout_s=20).status


def test_no_token_comes_back_and_the_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, base = LocalCluster(tmp_path / "old"), free_base_port(8)
    old.up(1, base, auth=True)
    try:
        options = old.client_options
        body = {"user": options["access_key"], "secret": options["secret_key"], "answer": "token"}
        reply = exchange(address_of(old.nodes[0]), "POST", "/v1/session", json.dumps(body).encode(), timeout_s=20)
        token = json.loads(reply.body)["token"]
        assert asked_with(old, token) == 200
        with raftmq.connect(old.servers, **options) as root:
            root.admin.create_user("shop", "the-secret-of-shop")
            root.admin.set_rule("shop", "Topic:orders", ["Pub"])
        assert run(["backup", "create", "--to", str(old.data / "backups"), "--data", str(old.data)]) == 0
    finally:
        old.down()
    capsys.readouterr()
    (backup,) = (path for path in (old.data / "backups").iterdir() if path.is_dir())
    into = tmp_path / "new"
    asked = ["restore", "--from", str(backup), "--into", str(into), "--nodes", "1", "--base-port", str(base + 4)]
    assert run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(user["name"], user["super"], user["rules"]) for user in told["users"]] == [
        ("admin", True, 0),
        ("shop", False, 1),
    ]
    assert (told["auth_mode"], told["tokens_revoked"], len(told["keys"])) == ("enforce", 1, 1)
    new = LocalCluster(into)
    shutil.copy2(old.data / "users.key", into / "users.key")
    with (into / "n1" / "raftmq.toml").open("a") as file:
        file.write('\n[auth]\nkey_file = "../users.key"\n')
    new.up()
    try:
        assert until(lambda: asked_with(new, token) == 401, 20, 0.1), "a token of the old cluster is good for nothing"
        with raftmq.connect(new.servers, access_key="shop", secret_key="the-secret-of-shop") as shop:
            shop.send("orders", b"the user is there")
    finally:
        new.down()
