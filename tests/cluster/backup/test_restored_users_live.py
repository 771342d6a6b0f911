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
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]


def asked_with(cluster: LocalCluster, token: str) -> int:
    address = Address(f"127.0.0.1:{cluster.nodes[0].admin_port}", Bearer(token))
    return exchange(address, "GET", "/v1/users", timeout_s=at_most(20)).status


def test_no_token_comes_back_and_the_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, base = LocalCluster(tmp_path / "old"), free_base_port(8)
    old.up(1, base, auth=True)
    try:
        options = old.client_options
        body = {"user": options["access_key"], "secret": options["secret_key"], "answer": "token"}
        reply = exchange(
            address_of(old.nodes[0]), "POST", "/v1/session", json.dumps(body).encode(), timeout_s=at_most(20)
        )
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


def test_users_of_a_later_backup_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The earlier backup has a Super that was removed later, and a user that was made again with another secret."""
    old, base = LocalCluster(tmp_path / "old"), free_base_port(8)
    old.up(1, base, auth=True)
    backups = old.data / "backups"
    try:
        with raftmq.connect(old.servers, **old.client_options) as root:
            root.admin.create_user("eve", "the-secret-of-eve", is_super=True)
            root.admin.create_user("shop", "the-secret-of-shop")
            root.admin.set_rule("shop", "Topic:orders", ["Pub"])
            assert run(["backup", "create", "--to", str(backups), "--data", str(old.data)]) == 0
            root.admin.delete_user("eve")
            root.admin.delete_user("shop")
            root.admin.create_user("shop", "another-secret-of-shop")
            root.admin.set_rule("shop", "Topic:orders", ["Pub"])
            root.admin.create_user("bill", "the-secret-of-bill")
            root.admin.set_rule("bill", "Topic:orders", ["Pub"])
            assert run(["backup", "create", "--to", str(backups), "--data", str(old.data)]) == 0
    finally:
        old.down()
    capsys.readouterr()
    first, second = sorted(path for path in backups.iterdir() if path.is_dir())
    asked = ["restore", "--from", str(first), "--nodes", "1", "--base-port", str(base + 4)]
    assert run([*asked, "--into", str(tmp_path / "as-it-was")]) == 0
    told = capsys.readouterr().out
    assert "eve: Super" in told
    assert "eve: was removed later" in told
    assert "bill: was made later" in told
    assert (
        run([*asked[:1], "--from", str(second), *asked[3:], "--acl-from", str(first), "--into", str(tmp_path / "no")])
        == 5
    )
    assert "below" in capsys.readouterr().err
    into = tmp_path / "new"
    assert run([*asked, "--into", str(into), "--acl-from", str(second), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [user["name"] for user in told["users"]] == ["admin", "bill", "shop"]
    assert told["acl_from"] == second.name
    assert "eve: was removed later" in told["changed_later"]
    new = LocalCluster(into)
    shutil.copy2(old.data / "users.key", into / "users.key")
    with (into / "n1" / "raftmq.toml").open("a") as file:
        file.write('\n[auth]\nkey_file = "../users.key"\n')
    new.up()
    try:
        for name, secret in (("shop", "another-secret-of-shop"), ("bill", "the-secret-of-bill")):
            with raftmq.connect(new.servers, access_key=name, secret_key=secret) as client:
                client.send("orders", b"with the secret and the right of the later backup")
        for name, secret in (("shop", "the-secret-of-shop"), ("eve", "the-secret-of-eve")):
            with (
                raftmq.connect(new.servers, access_key=name, secret_key=secret) as client,
                pytest.raises(raftmq.RaftMQError),
            ):
                client.send("orders", b"no more")
    finally:
        new.down()
