"""Unmodified clients as a user with exactly the rights they need, through three killed leaders: Java over TLS, C++ and
Node, which have no TLS, in plain text; and those that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import raftmq
from raftmq.client.environment import user_of
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.compat.conftest import ForeignClient, Start
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(420)]
SHOP = ("shop", "the-secret-of-shop")
KILLS = 3
COUNT = 300


def _cluster(folder: Path, *, tls: bool) -> Iterator[LocalCluster]:
    made = LocalCluster(folder / "data")
    try:
        made.up(3, free_base_port(12), tls=tls, auth=True)
        with raftmq.connect(made.servers, **made.client_options) as root:
            root.admin.create_topic("orders", 4)
            root.admin.create_group("billing")
            root.admin.create_user(*SHOP)
            root.admin.set_rule(SHOP[0], "Topic:orders", ["Pub", "Sub"])
            root.admin.set_rule(SHOP[0], "Group:billing", ["Sub"])
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that take TLS alone."""
    yield from _cluster(tmp_path_factory.mktemp("secured"), tls=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that take plain text."""
    yield from _cluster(tmp_path_factory.mktemp("plain"), tls=False)


def _tls_of(cluster: LocalCluster) -> list[str]:
    """The options with which Java's client speaks TLS and checks the server's certificate."""
    ca = cluster.data / "tls" / "ca.crt"
    return [
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={ca}",
    ]


def _kills(cluster: LocalCluster, writer: ForeignClient) -> None:
    """Kills the leader while a third of the messages each is sent."""
    for kill in range(1, KILLS + 1):
        writer.wait("send", COUNT * kill // (KILLS + 1), timeout_s=at_most(120))
        killed = cluster.wait_leader()
        cluster.kill(killed)
        cluster.restart(killed)


def _goes_on(cluster: LocalCluster, start: Start, kind: str, java: Sequence[str]) -> None:
    signed = "--access-key", SHOP[0], "--secret-key", SHOP[1]
    servers = cluster.servers
    reader = start(kind, "consume", "orders", "--group", "billing", *signed, servers=servers, java=java)
    writer = start(
        kind,
        "produce",
        "orders",
        "--group",
        "p",
        "--count",
        str(COUNT),
        "--pace-ms",
        "30",
        "--prefix",
        kind,
        *signed,
        servers=servers,
        java=java,
    )
    _kills(cluster, writer)
    writer.wait("done", timeout_s=at_most(120))
    stored = {line["key"] for line in writer.lines("send") if "error" not in line}
    assert len(stored) > COUNT // 2, writer.story()
    reader.wait("message", len(stored), timeout_s=at_most(120), which=lambda line: line["key"] in stored)


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_java_over_tls_as_a_user_goes_on_through_three_killed_leaders(
    secured: LocalCluster, start: Start, kind: str
) -> None:
    _goes_on(secured, start, kind, _tls_of(secured))


@pytest.mark.parametrize("kind", ["cpp", "js"])
def test_clients_without_tls_go_on_as_a_user(plain: LocalCluster, start: Start, kind: str) -> None:
    _goes_on(plain, start, kind, ())


def test_our_client_over_tls_as_a_user_goes_on_through_three_killed_leaders(secured: LocalCluster) -> None:
    options = secured.client_options
    with raftmq.connect(
        secured.servers, tls=options["tls"], access_key=SHOP[0], secret_key=SHOP[1], timeout_s=at_most(60)
    ) as mq:
        sent = [f"ours {number}".encode() for number in range(COUNT)]
        for number, body in enumerate(sent):
            if number % (COUNT // KILLS) == COUNT // KILLS // 2:
                killed = secured.wait_leader()
                secured.kill(killed)
                mq.send("orders", body)
                secured.restart(killed)
            else:
                mq.send("orders", body)
        with mq.consumer("billing", "orders", follow=False) as consumer:
            got = [message.body for message in consumer if message.body.startswith(b"ours ")]
        assert sorted(got) == sorted(sent)


@pytest.mark.parametrize("wrong", ["plain text", "another CA", "secret", "topic"])
def test_java_that_is_wrong_stores_nothing(secured: LocalCluster, start: Start, tmp_path: Path, wrong: str) -> None:
    from raftmq.local.tls.certificates import CA, new_ca, write_pair

    java = _tls_of(secured)
    if wrong == "plain text":
        java = []
    elif wrong == "another CA":
        write_pair(new_ca(), tmp_path / "other", CA)
        java[-1] = f"-Dtls.client.trustCertPath={tmp_path / 'other' / 'ca.crt'}"
    topic = "hidden" if wrong == "topic" else "orders"
    name, secret = user_of(secured.data / "first-user")
    with raftmq.connect(secured.servers, access_key=name, secret_key=secret, tls=secured.client_options["tls"]) as root:
        if topic not in root.admin.topics():
            root.admin.create_topic(topic, 4)
        before = [root.admin.max_offset(topic, queue) for queue in range(4)]
        keys = "--access-key", SHOP[0], "--secret-key", "wrong-secret" if wrong == "secret" else SHOP[1]
        arguments = "produce", topic, "--group", "p", "--count", "2", "--prefix", "wrong"
        writer = start("java-newest", *arguments, *keys, servers=secured.servers, java=java)
        writer.wait("done", timeout_s=at_most(180))
        sent = writer.lines("send")
        assert sent
        assert [line for line in sent if "error" not in line] == [], writer.story()
        assert [root.admin.max_offset(topic, queue) for queue in range(4)] == before
