"""A node whose clients speak TLS: our client sends and reads, plain text and a foreign CA are refused, other files are
taken while it runs. A real node in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

import raftmq
from cluster.config.loading import load
from cluster.node.node import Node
from cluster.runtime.tls import tls_maintenance
from raftmq.local.tls.certificates import new_node, write_pair
from tests.support.certificates import CLUSTER, NODE, Files, make_files
from tests.support.first_leader import stand
from tests.support.lone_node import write_lone_node
from tests.support.pace import at_most
from tests.support.small_segments import LOG
from tests.support.wait_until import until


class Running(NamedTuple):
    node: Node
    files: Files
    servers: str

    def client(self, ca: str) -> raftmq.AsyncClient:
        return raftmq.aconnect(self.servers, tls=raftmq.Tls(ca=ca), timeout_s=at_most(10))


def _key(files: Files) -> bytes:
    return Path(files.path("node.key")).read_bytes()


def _write_key(files: Files, data: bytes) -> None:
    Path(files.path("node.key")).write_bytes(data)


REFUSED_S = at_most(0.3)
"""How long a client tries again that is refused for ever. Its first try is over in a few milliseconds."""


@pytest.fixture
async def running(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setattr(tls_maintenance, "LOOK_EVERY_MS", 200)
    files = make_files(tmp_path / "pki")
    path, base = write_lone_node(tmp_path, LOG + files.section(mode="enforcing", **getattr(request, "param", {})))
    node = Node(load(path))
    await node.start()
    stand(node)
    yield Running(node, files, f"127.0.0.1:{base + 1}")
    await node.close()


async def test_messages_over_tls(running: Running) -> None:
    body = b"b" * 200_000
    async with running.client(running.files.path("ca.crt")) as mq:
        await mq.admin.create_topic("orders", queues=1)
        for _ in range(20):
            await mq.send("orders", body)
        async with mq.consumer("group", "orders", follow=False) as consumer:
            assert [message.body async for message in consumer] == [body] * 20


async def test_the_wrong_ones_get_nothing(running: Running, tmp_path: Path) -> None:
    foreign = make_files(tmp_path / "other")
    async with running.client(foreign.path("ca.crt")) as mq:
        with pytest.raises(raftmq.RaftMQError, match="not trusted"):
            await mq.pull("orders", 0, 0, timeout_s=REFUSED_S)
        with pytest.raises(raftmq.RaftMQError, match="not trusted"):
            await mq.producer(timeout_s=REFUSED_S).send("orders", b"body")
    async with raftmq.aconnect(running.servers, timeout_s=REFUSED_S) as plain:
        with pytest.raises(raftmq.RaftMQError):
            await plain.pull("orders", 0, 0, timeout_s=REFUSED_S)


@pytest.mark.parametrize("running", [{"client_certificates": "required"}], indirect=True)
async def test_a_client_hears_why_its_certificate_is_refused(running: Running, tmp_path: Path) -> None:
    foreign, ca = make_files(tmp_path / "other"), running.files.path("ca.crt")
    for tls, says in (
        (raftmq.Tls(ca), "asks for a certificate of the client"),
        (raftmq.Tls(ca, foreign.path("client.crt"), foreign.path("client.key")), "refuses the client's certificate"),
    ):
        async with raftmq.aconnect(running.servers, tls=tls) as mq:
            with pytest.raises(raftmq.RaftMQError, match=says):
                await mq.pull("orders", 0, 0, timeout_s=REFUSED_S)
            with pytest.raises(raftmq.RaftMQError, match=says):
                await mq.producer(timeout_s=REFUSED_S).send("orders", b"body")
    known = raftmq.Tls(ca, running.files.path("client.crt"), running.files.path("client.key"))
    async with raftmq.aconnect(running.servers, tls=known) as mq:
        await mq.admin.create_topic("orders", queues=1)
        await mq.send("orders", b"body")


async def test_other_files_are_taken_and_half_a_pair_is_not(running: Running) -> None:
    tls, files = running.node.peers.tls, running.files
    before = tls.contexts
    pair = new_node(files.ca, CLUSTER, NODE, ["127.0.0.1"], days=20)
    kept = _key(files)
    write_pair(pair, files.folder, "node", replace=True)
    whole = _key(files)
    _write_key(files, kept)
    await until(lambda: running.node.alarms.raised("tls_files"))
    assert tls.contexts is before
    _write_key(files, whole)
    await until(lambda: tls.contexts is not before)
    assert not running.node.alarms.raised("tls_files")
    assert running.node.alarms.raised("tls_expires")
    async with running.client(files.path("ca.crt")) as mq:
        await mq.admin.create_topic("orders", queues=1)
        await mq.send("orders", b"after")
