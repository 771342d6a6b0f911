"""Users on real processes: the right ones go on through a killed leader, the wrong ones get code 16."""

from __future__ import annotations

import base64
import io
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from raftmq.cli import run
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.codec import decode_header, encode_frame
from statemachine.levels import LEVEL
from tests.support.archives import extract
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.user_cluster import ROOT, as_user, cluster_with_users, code_of

pytestmark = pytest.mark.live
SHOP = ("shop", "the-secret-of-shop")
WRONG: list[tuple[tuple[str, str] | None, str]] = [
    (None, "orders"),
    (("shop", "another-secret"), "orders"),
    (("nobody", SHOP[1]), "orders"),
    (SHOP, "other"),
]
"""User, topic."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with cluster_with_users(tmp_path, monkeypatch) as made:
        yield made


class Stranger:
    """A producer that signs nothing: its sends are those that the kernel takes as they come."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=at_most(10))
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self) -> int:
        """The code of the answer to one send."""
        ext = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
        ext |= {"i": "", "j": "0", "k": "false", "m": "false"}
        self._socket.sendall(encode_frame(310, 1, 0, ext=ext, body=b"from a stranger", language="JAVA"))
        size = int.from_bytes(self._file.read(4), "big")
        frame = self._file.read(size)
        return int(decode_header(frame[0], frame[4 : 4 + int.from_bytes(frame[1:4], "big")]).code)


@pytest.mark.ci
def test_a_stranger_with_an_open_connection_is_stopped_when_the_mode_changes(cluster: LocalCluster) -> None:
    with as_user(cluster, ROOT) as root:
        root.admin.create_topic("orders")
        leader = next(node for node in cluster.nodes if node.id == cluster.wait_leader())
        stranger = Stranger(("127.0.0.1", leader.broker_port))
        assert [stranger.send() for _ in range(3)] == [0, 0, 0]
        root.admin.set_auth_mode("enforce")
        assert [stranger.send() for _ in range(3)] == [16, 16, 16]
        root.admin.set_auth_mode("observe")
        assert stranger.send() == 0
        stranger.close()


def test_the_right_one_goes_on_and_the_wrong_ones_are_told_16(cluster: LocalCluster, tmp_path: Path) -> None:
    with as_user(cluster, ROOT) as root:
        root.admin.create_topic("orders")
        root.admin.create_group("billing")
        root.admin.create_user(*SHOP)
        root.admin.set_rule("shop", "Topic:orders", ["Pub", "Sub"])
        root.admin.set_rule("shop", "Group:billing", ["Sub"])
        root.admin.set_auth_mode("enforce")
        for user, topic in WRONG:
            with as_user(cluster, user) as client:
                assert code_of(partial(client.send, topic, b"x")) == 16, (user, topic)
                assert code_of(partial(client.admin.set_auth_mode, "off")) == 16, user
        with as_user(cluster, SHOP) as shop:
            sent = [f"message {number}".encode() for number in range(60)]
            with ThreadPoolExecutor(1) as pool:
                killed = pool.submit(lambda: (time.sleep(0.2), cluster.kill(cluster.wait_leader())))
                for body in sent:
                    shop.send("orders", body)
                killed.result()
            with shop.consumer("billing", "orders", follow=False) as consumer:
                got = [message.body for message in consumer]
            assert sorted(got) == sorted(sent)
            cluster.up()
            root.admin.delete_rule("shop", "Topic:orders")
            assert code_of(lambda: shop.send("orders", b"x")) == 16
            root.admin.set_rule("shop", "Topic:ord*", ["Pub"])
            assert code_of(lambda: shop.send("orders", b"x")) == 0
    cluster.down()
    secret = SHOP[1].encode()
    kept = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path for path in kept if secret in path.read_bytes()] == []
    assert [path for path in kept if b"message 59" in path.read_bytes()], "what is stored can be found so"


@pytest.mark.ci
def test_people_use_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From no user to enforcing, with a login that outlives the leader; secrets are found nowhere."""
    (tmp_path / "key").write_bytes(base64.b64encode(os.urandom(32)))
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("RAFTMQ_AUTH__KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("RAFTMQ_CONTEXTS", str(tmp_path / "mine" / "contexts.json"))
    cluster = LocalCluster(tmp_path / "data")
    planted = {"root": "planted-secret-of-root", "shop": "planted-secret-of-shop"}

    def types(line: str, data: bool = True, given: str = "", code: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert run([*line.split(), *(["--data", str(cluster.data)] if data else [])]) == code, line
        return "".join(capsys.readouterr())

    try:
        with small_segments():
            cluster.up(3, free_base_port(12))
        assert f"the cluster has level {LEVEL}\n" in types("upgrade plan")
        assert "no enabled Super" in types("auth mode enforce", code=5)
        types("user create root --super", given=planted["root"])
        types("user create shop", given=planted["shop"])
        types("acl set shop Topic:orders Pub Sub")
        types("auth mode enforce --yes")
        assert "writes open" in types("status")
        assert types("upgrade plan").count(": done") == 3
        everywhere = ",".join(f"127.0.0.1:{node.admin_port}" for node in cluster.nodes)
        types(f"context add prod --admin {everywhere}", data=False)
        assert "names no user" in types("topic list --admin prod", data=False, code=5)
        assert "is wrong" in types("login root --admin prod", data=False, given="another secret", code=5)
        types("login root --admin prod", data=False, given=planted["root"])
        kept = tmp_path / "mine" / "tokens" / "prod"
        assert kept.stat().st_mode & 0o777 == 0o600
        token = kept.read_text().strip()
        types(f"context add one --admin {everywhere.partition(',')[0]}", data=False)
        types("login root --admin one", data=False, given=planted["root"])
        assert types("upgrade plan --admin one", data=False).count(": done") == 3, "it sees the nodes not named, too"
        types("logout --admin one", data=False)
        cluster.kill(cluster.wait_leader())
        cluster.wait_leader()
        types("topic create orders --admin prod", data=False)
        assert "root" in types("audit --admin prod", data=False)
        cluster.up()
        types(f"support bundle --to {tmp_path / 'bundle.tar.gz'}")
        types("logout --admin prod", data=False)
        assert not kept.exists()
        monkeypatch.setenv("RAFTMQ_TOKEN", token)
        assert "not known here" in types(f"topic list --admin {everywhere}", data=False, code=5)
        monkeypatch.delenv("RAFTMQ_TOKEN")
        assert "operator" in types("audit")
        with as_user(cluster, ("shop", planted["shop"])) as shop:
            shop.send("orders", b"planted-marker-of-a-message")
    finally:
        cluster.down()
    extract(tmp_path / "bundle.tar.gz", tmp_path / "bundle")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / "key"]
    for secret in (*planted.values(), token):
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert [path for path in files if b"planted-marker-of-a-message" in path.read_bytes()]
    assert [path for path in files if path.is_relative_to(tmp_path / "bundle") and b"raftmq_" in path.read_bytes()]
