"""mqadmin 5.x, unmodified: it creates users and rules where rules are enforced, and is bound by them itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import raftmq
from raftmq.client.environment import user_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.compat.conftest import INSTALLED, NEWEST
from tests.support.pace import at_most
from tests.support.tools import lack

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]
SHOP = ("shop", "the-secret-of-shop")
Mqadmin = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    made.up(3, free_base_port(12), auth=True)
    with raftmq.connect(made.servers, **made.client_options) as root:
        for topic in ("orders", "others"):
            root.admin.create_topic(topic, 4)
    yield made
    made.down()


@pytest.fixture
def mqadmin(cluster: LocalCluster, tmp_path: Path) -> Mqadmin:
    """`mqadmin(user, "listUser", ...)` prints what the command prints for that user, (name, secret)."""
    jars = INSTALLED / f"tools-{NEWEST}" / "lib"
    if not jars.is_dir():
        lack("mvn", why="make test-compat fetches mqadmin with it")
    conf = tmp_path / "conf"
    conf.mkdir()
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (conf / name).write_text("<configuration><root level='OFF'/></configuration>")

    def run(user: tuple[str, str], *arguments: str) -> str:
        (conf / "tools.yml").write_text(f"accessKey: {user[0]}\nsecretKey: {user[1]}\n")
        done = subprocess.run(
            [
                "java",
                f"-Drocketmq.home.dir={tmp_path}",
                f"-Duser.home={tmp_path}",
                f"-Drmq.logback.configurationFile={conf}/rmq.tools.logback.xml",
                "-cp",
                f"{jars}/*",
                "org.apache.rocketmq.tools.command.MQAdminStartup",
                *arguments,
                "-n",
                cluster.servers,
            ],
            capture_output=True,
            text=True,
            timeout=at_most(120),
            env={**os.environ, "HOME": str(tmp_path)},
            check=False,
        )
        return done.stdout + done.stderr

    return run


def may_send(cluster: LocalCluster, user: tuple[str, str], topic: str) -> bool:
    try:
        with raftmq.connect(cluster.servers, access_key=user[0], secret_key=user[1]) as client:
            client.send(topic, b"x")
    except raftmq.Refused:
        return False
    return True


def test_it_makes_users_and_rules_and_is_bound_by_them(cluster: LocalCluster, mqadmin: Mqadmin) -> None:
    root = user_of(cluster.data / "first-user")
    broker = f"127.0.0.1:{cluster.nodes[1].broker_port}"
    said = mqadmin(root, "createUser", "-b", broker, "-u", SHOP[0], "-p", SHOP[1], "-t", "Normal")
    assert "success" in said, said
    assert SHOP[0] in mqadmin(root, "listUser", "-b", broker)
    assert SHOP[1] not in mqadmin(root, "getUser", "-b", broker, "-u", SHOP[0]), "secrets are not answered"
    assert not may_send(cluster, SHOP, "orders")

    # With -c it asks each broker of the cluster; all are names of the one log.
    rule = ["-s", "User:shop", "-r", "Topic:orders", "-a", "Pub", "-d", "Allow"]
    said = mqadmin(root, "createAcl", "-c", "DefaultCluster", *rule)
    assert "success" in said, said
    assert "Exception" not in said, said
    listed = mqadmin(root, "listAcl", "-b", broker)
    assert "User:shop" in listed, listed
    assert "Topic:orders" in listed, listed
    assert may_send(cluster, SHOP, "orders")
    assert not may_send(cluster, SHOP, "others")

    # mqadmin as that user: it may send where our client may, and manages nobody.
    said = mqadmin(SHOP, "sendMessage", "-t", "orders", "-p", "hello")
    assert "SEND_OK" in said, said
    denied = mqadmin(SHOP, "sendMessage", "-t", "others", "-p", "hello")
    assert "SEND_OK" not in denied
    for command in (
        ["createUser", "-b", broker, "-u", "eve", "-p", "the-secret-of-eve", "-t", "Super"],
        ["updateUser", "-b", broker, "-u", SHOP[0], "-t", "Super"],
        ["createAcl", "-b", broker, "-s", "User:shop", "-r", "Topic:others", "-a", "Pub", "-d", "Allow"],
        ["deleteUser", "-b", broker, "-u", root[0]],
    ):
        said = mqadmin(SHOP, *command)
        assert "CODE: 16" in said, f"{command[0]}: {said}"
    wrong = mqadmin((SHOP[0], "another-secret"), "sendMessage", "-t", "orders", "-p", "hello")
    assert "SEND_OK" not in wrong

    # Changes and removals count at once.
    said = mqadmin(root, "updateAcl", "-b", broker, "-s", "User:shop", "-r", "Topic:orders", "-a", "Pub", "-d", "Deny")
    assert "success" in said, said
    assert not may_send(cluster, SHOP, "orders")
    said = mqadmin(root, "deleteAcl", "-b", broker, "-s", "User:shop", "-r", "Topic:orders")
    assert "success" in said, said
    assert "Topic:orders" not in mqadmin(root, "listAcl", "-b", broker)
    said = mqadmin(root, "deleteUser", "-b", broker, "-u", SHOP[0])
    assert "success" in said, said
    assert SHOP[0] not in mqadmin(root, "listUser", "-b", broker)
    assert not may_send(cluster, SHOP, "orders")
