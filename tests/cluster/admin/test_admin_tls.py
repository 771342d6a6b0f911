"""The HTTP API over TLS: what each mode takes, what pages may do, and how nodes ask each other. Real sockets."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from cluster.admin.node_interface import AdminPort
from cluster.admin.server import AdminServer
from cluster.config.node_sections import TlsMode
from cluster.members.addresses import probe_http
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.cluster.admin.conftest import FakeNode
from tests.support.certificates import Files, make_files

Start = Callable[..., Awaitable[FakeNode]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def start(files: Files) -> AsyncIterator[Start]:
    servers: list[AdminServer] = []
    base = free_base_port(2)
    peers = [{"id": n, "port": 10900 + n, "admin": f"127.0.0.1:{base + n - 1}"} for n in (1, 2)]

    async def made(mode: TlsMode, node: int = 1, **more: Any) -> FakeNode:
        keys = {"cert_file": "node.crt", "key_file": "node.key", "ca_file": "ca.crt"}
        paths = {f"tls__{key}": files.path(name) for key, name in keys.items()}
        fake = FakeNode(node, **{"admin__port": base + node - 1, "admin__tls": mode, "peers": peers, **paths, **more})
        servers.append(AdminServer(cast("AdminPort", fake)))  # a fake of it
        await servers[-1].start()
        return fake

    yield made
    for server in servers:
        await server.close()


@pytest.fixture
async def session(files: Files) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=files.path("ca.crt"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as made:
        yield made


@pytest.mark.parametrize(
    ("mode", "over_tls", "plain"), [("disabled", 0, 200), ("permissive", 200, 200), ("enforcing", 200, 400)]
)
async def test_the_modes(
    start: Start, session: aiohttp.ClientSession, mode: TlsMode, over_tls: int, plain: int
) -> None:
    node = await start(mode)
    at = f"127.0.0.1:{node.config.admin.port}/v1/health/live"
    async with session.get(f"http://{at}") as answer:
        assert answer.status == plain
        if plain == 400:
            assert "https" in (await answer.json())["error"]["message"]
    if over_tls:
        async with session.get(f"https://{at}") as answer:
            assert answer.status == over_tls
    else:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"https://{at}")


async def test_a_large_answer_and_a_page_in_plain_text(start: Start, session: aiohttp.ClientSession) -> None:
    node = await start("permissive")
    at = f"127.0.0.1:{node.config.admin.port}"
    async with session.get(f"https://{at}/openapi.json") as answer:
        assert len(await answer.read()) > 64 << 10
    for scheme, status in (("https", 200), ("http", 403)):
        async with session.get(f"https://{at}/v1/status", headers={"Origin": f"{scheme}://{at}"}) as answer:
            assert answer.status == status, await answer.text()


@pytest.mark.parametrize(
    ("leads", "asks"),
    [("enforcing", "enforcing"), ("enforcing", "permissive"), ("permissive", "disabled"), ("disabled", "permissive")],
)
async def test_a_request_is_passed_on(
    start: Start, session: aiohttp.ClientSession, leads: TlsMode, asks: TlsMode
) -> None:
    leader, other = await start(leads), await start(asks, 2)
    assert other.leader == NodeId(1)
    scheme = "http" if asks == "disabled" else "https"
    body = {"name": "orders", "queues": 1}
    async with session.post(f"{scheme}://127.0.0.1:{other.config.admin.port}/v1/topics", json=body) as answer:
        assert answer.status == 201, await answer.text()
    assert len(leader.proposed) == 1
    found = await probe_http(NodeId(1), "", "", other_address(leader), other.tls.http_dialling())
    assert "TLS" not in found
    assert "no answer" not in found


def other_address(node: FakeNode) -> str:
    return f"127.0.0.1:{node.config.admin.port}"


async def test_a_node_with_another_ca_is_asked_nothing(
    start: Start, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    leader = await start("enforcing")
    foreign = make_files(tmp_path / "other")
    other = await start("enforcing", 2, tls__ca_file=foreign.path("ca.crt"))
    async with session.post(f"https://{other_address(other)}/v1/topics", json={"name": "orders"}) as answer:
        assert answer.status == 503
        assert "cannot be reached" in (await answer.json())["error"]["message"]
    assert not leader.proposed
