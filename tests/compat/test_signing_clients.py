"""Users, with unmodified clients: mqadmin makes them, Java's own hook signs, and the wrong ones store nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.conftest import INSTALLED, Start
from tests.support.pace import at_most
from tests.support.tools import lack
from tests.support.user_cluster import ROOT, cluster_with_users

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]
SHOP = "shop", "the-secret-of-shop"
MQADMIN = "5.5.0"
COUNT = 400
Ask = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with cluster_with_users(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def mqadmin(cluster: LocalCluster, tmp_path: Path) -> Ask:
    """`mqadmin("createUser", ...)` prints what the command prints; it signs as the first Super."""
    jars = INSTALLED / f"tools-{MQADMIN}" / "lib"
    if not jars.is_dir():
        lack("mvn", why="make test-compat fetches mqadmin with it")
    (tmp_path / "conf").mkdir()
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (tmp_path / "conf" / name).write_text("<configuration><root level='OFF'/></configuration>")
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    home = f"-Drocketmq.home.dir={tmp_path}", f"-Duser.home={tmp_path}"
    program = "-cp", f"{jars}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"

    def run(*arguments: str) -> str:
        command = ["java", *home, *program, *arguments, "-c", "DefaultCluster", "-n", cluster.servers]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=at_most(120), env=environment, check=False
        )
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_java_signs_and_goes_on_through_a_killed_leader(
    cluster: LocalCluster, mqadmin: Ask, start: Start, kind: str
) -> None:
    assert mqadmin("createUser", "-u", SHOP[0], "-p", SHOP[1]).count("success") == 3, "one log behind three addresses"
    rights = "-s", f"User:{SHOP[0]}", "-r", "Topic:orders,Group:billing", "-a", "Pub,Sub", "-d", "Allow"
    assert mqadmin("createAcl", *rights).count("success") == 3
    assert SHOP[1] not in mqadmin("listUser")
    with raftmq.connect(cluster.servers, access_key=ROOT[0], secret_key=ROOT[1]) as root:
        root.admin.create_topic("orders", 4)
        root.admin.set_auth_mode("enforce")
    signed = "--access-key", SHOP[0], "--secret-key", SHOP[1]
    reader = start(kind, "consume", "orders", "--group", "billing", *signed, servers=cluster.servers)
    writer = start(
        kind, "produce", "orders", "--group", "p", "--count", str(COUNT), "--pace-ms", "10", *signed,
        servers=cluster.servers,
    )  # fmt: skip
    writer.wait("send", COUNT // 4)
    killed = cluster.wait_leader()
    cluster.kill(killed)
    writer.wait("done", timeout_s=at_most(120))
    stored = [line["key"] for line in writer.lines("send") if "error" not in line]
    assert len(stored) > COUNT * 3 // 4, writer.story()
    reader.wait("message", len(stored), timeout_s=at_most(120))
    assert {*stored} <= {line["key"] for line in reader.lines("message")}
    cluster.start(killed)


@pytest.mark.parametrize("wrong", ["none", "secret", "user", "topic"])
def test_wrong_ones_store_nothing(cluster: LocalCluster, start: Start, wrong: str) -> None:
    with raftmq.connect(cluster.servers, access_key=ROOT[0], secret_key=ROOT[1]) as root:
        root.admin.create_topic("orders", 4)
        root.admin.create_user(*SHOP)
        root.admin.set_rule(SHOP[0], "Topic:other" if wrong == "topic" else "Topic:orders", ["Pub"])
        root.admin.set_auth_mode("enforce")
    name, secret = (
        ("nobody", SHOP[1]) if wrong == "user" else (SHOP[0], "wrong-secret" if wrong == "secret" else SHOP[1])
    )
    signed = () if wrong == "none" else ("--access-key", name, "--secret-key", secret)
    writer = start("java-newest", "produce", "orders", "--group", "p", "--count", "2", *signed, servers=cluster.servers)
    writer.wait("done", timeout_s=at_most(120))
    sent = writer.lines("send")
    assert sent
    assert [line for line in sent if "error" not in line] == [], writer.story()
    with raftmq.connect(cluster.servers, access_key=ROOT[0], secret_key=ROOT[1]) as root:
        assert [root.admin.max_offset("orders", queue) for queue in range(4)] == [0] * 4
