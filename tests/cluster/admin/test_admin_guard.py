"""The HTTP API within its descriptors and its memory: idle connections, slow readers, many large answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession, TraceConfig
from aiohttp.test_utils import TestClient, TestServer

from cluster.admin.errors import ApiError
from cluster.admin.resource_limits import (
    ANSWERS_BYTES_MAX,
    CONNECTIONS_MAX,
    HELD_S,
    PATIENCE_S,
    PROBES,
    SLOWEST_BYTES,
    SPARE_MAX,
    SPARE_S,
    Guard,
    Guarded,
)
from cluster.admin.routes import ROUTES
from cluster.admin.server import LINGER_S, AdminServer, build_app
from cluster.admin.signed_identity import operator_pass
from cluster.runtime.turns.work import Turns
from tests.support.fake_raw import CLUSTER
from tests.support.pace import at_most

ASK = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Transport:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.unsent = 0
        self.aborted = False
        self.address = address

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return self.address, 1

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


def connected(guard: Guard, address: str = "10.0.0.1") -> tuple[Guarded, Transport]:
    transport = Transport(address)
    inner = SimpleNamespace(connection_made=lambda _: None, connection_lost=lambda _: None)
    connection = Guarded(guard, cast("Any", inner))
    connection.connection_made(cast("Any", transport))
    return connection, transport


def test_nobody_keeps_others_out_by_holding_connections() -> None:
    clock = Clock()
    guard = Guard(clock)
    crowd = [connected(guard) for _ in range(CONNECTIONS_MAX)]
    crowd[0][0].busy = 1
    crowd[1][0].of_node = True
    clock.s += 1
    assert guard.room(0, "10.0.0.2") == ""
    assert [transport.aborted for _, transport in crowd].index(True) == 2, "not one with a request, not a node's"
    newcomers = [connected(guard, address)[0].is_spare for address in ("10.0.0.2", "10.0.0.3")]
    assert newcomers == [False, True], "there was room for one"


def test_a_probe_is_answered_when_all_is_taken_and_nothing_else_is() -> None:
    clock = Clock()
    guard = Guard(clock)
    for _ in range(CONNECTIONS_MAX):
        connected(guard)[0].busy = 1
    spare = []
    for _ in range(SPARE_MAX):
        assert guard.room(0, "10.0.0.1") == ""
        spare.append(connected(guard))
    assert all(connection.is_spare for connection, _ in spare)
    spare[0][0].busy = 1
    assert guard.room(0, "10.0.0.1") == "", "one that asks for nothing makes room"
    assert [transport.aborted for _, transport in spare] == [False, True, *[False] * (SPARE_MAX - 2)]
    for connection, _ in spare:
        connection.busy = 1
    connected(guard)[0].busy = 1
    assert "64 connections" in guard.room(0, "10.0.0.1")
    clock.s += SPARE_S
    for connection, _ in spare:
        connection.busy = 0
    guard.look()
    assert spare[-1][1].aborted


async def test_a_spare_connection_has_no_more_than_a_probe() -> None:
    guard = Guard(Clock())
    for _ in range(CONNECTIONS_MAX):
        connected(guard)
    _, transport = connected(guard)
    for path in PROBES:
        async with guard.serving(cast("Any", SimpleNamespace(transport=transport, path=path, get=lambda *_: False))):
            pass
    with pytest.raises(ApiError, match="beyond them it answers only"):
        async with guard.serving(
            cast("Any", SimpleNamespace(transport=transport, path="/v1/status", get=lambda *_: False))
        ):
            pass


def test_an_idle_connection_is_closed_and_one_that_is_served_is_not() -> None:
    clock = Clock()
    guard = Guard(clock)
    (_, idle), (busy, served) = connected(guard), connected(guard)
    busy.busy = 1
    for _ in range(2):
        clock.s += PATIENCE_S / 2
        guard.look()
    assert (idle.aborted, served.aborted) == (True, False)


@pytest.mark.parametrize(("a_second", "closed"), [(0, True), (1000, True), (SLOWEST_BYTES, False)])
def test_a_reader_is_closed_when_it_takes_too_little(a_second: int, closed: bool) -> None:
    clock = Clock()
    guard = Guard(clock)
    connection, transport = connected(guard)
    connection.busy = 1
    transport.unsent = 100 * SLOWEST_BYTES
    for _ in range(2 * int(PATIENCE_S)):
        guard.look()
        clock.s += 1
        transport.unsent -= a_second
    assert transport.aborted is closed


async def test_large_answers_have_room_together_and_who_finds_none_is_told() -> None:
    guard = Guard(Clock(), patience_s=0.02)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(guard.answering(None, ANSWERS_BYTES_MAX // 4))
        with pytest.raises(ApiError) as caught:
            async with guard.answering(None, 1):
                pass
        assert (caught.value.code, caught.value.status) == ("busy", 503)
    assert (guard.answers.taken, guard.answers.waiting) == (0, 0)
    async with guard.answering(None, 2 * ANSWERS_BYTES_MAX):  # a lone one is made, however large it is
        assert guard.answers.taken == 2 * ANSWERS_BYTES_MAX


async def test_who_waits_for_room_is_served_when_there_is_some() -> None:
    guard, order = Guard(Clock()), []

    async def answer(name: str, size: int) -> None:
        async with guard.answering(None, size):
            order.append(name)
            assert guard.answers.taken <= ANSWERS_BYTES_MAX
            await asyncio.sleep(0)

    await asyncio.gather(*(answer(f"{n}", ANSWERS_BYTES_MAX // 3) for n in range(9)))
    assert (order, guard.answers.taken) == ([f"{n}" for n in range(9)], 0)


async def test_a_connection_that_holds_room_for_long_is_closed_when_others_wait() -> None:
    clock = Clock()
    guard = Guard(clock)
    connection, transport = connected(guard)
    connection.busy = 1
    request = cast("Any", SimpleNamespace(transport=transport))
    async with guard.answering(request, ANSWERS_BYTES_MAX):
        clock.s += HELD_S
        guard.look()
        assert not transport.aborted
        waits = asyncio.ensure_future(guard.answering(None, 1).__aenter__())
        await asyncio.sleep(0)
        guard.look()
        assert transport.aborted
    await waits


async def test_the_work_of_a_connection_ends_with_it() -> None:
    turns = Turns(lambda callback: asyncio.get_running_loop().call_soon(callback), share=0)
    guard = Guard(Clock(), turns)
    connection, transport = connected(guard)
    waits = asyncio.ensure_future(turns.breathe(transport))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    with pytest.raises(asyncio.CancelledError):
        await waits


def test_what_grows_with_what_is_stored_is_known() -> None:
    large = {route.path for route in ROUTES if route.cost.grows}
    assert {"/v1/topics", "/v1/groups", "/v1/metadata", "/v1/messages/{position}", "/metrics"} <= large
    assert not {"/v1/health/live", "/v1/status", "/v1/failpoints", "/"} & large


async def test_idle_connections_neither_fill_the_node_nor_keep_others_out(make_node: Any) -> None:
    guard = Guard(asyncio.get_running_loop().time, patience_s=0.5, look_every_s=0.05)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = AdminServer(make_node(1, admin__port=port), guard)
    await server.start()
    try:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 20)]
        reads = [asyncio.wait_for(reader.read(), at_most(20)) for reader, _ in idle]
        ends = await asyncio.gather(*reads, return_exceptions=True)
        assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
        for _, writer in idle:
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
    finally:
        await server.close()


class Crowd:
    """Strangers without a token, each at an address of its own, who come again whenever they lose their place."""

    def __init__(self, port: int, says: bytes) -> None:
        self._port = port
        self._says = says
        self.opened = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def _hold(self, address: str) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
                self.opened += 1
                try:
                    writer.write(self._says)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.02)

    async def begin(self, count: int) -> None:
        self.tasks = [asyncio.create_task(self._hold(f"127.0.{number % 3}.{number + 2}")) for number in range(count)]
        while self.opened < count:
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports


def serving() -> int:
    """The number of connections that aiohttp serves, or that it has not forgotten."""
    return sum("RequestHandler.start" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_connection_that_is_gone_does_not_wait_for_the_rest_of_its_request(make_node: Any) -> None:
    """aiohttp kept each for 10 s: strangers who came 1,800 times a second took 136 MiB."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server, gone = AdminServer(make_node(1, admin__port=port)), 20
    await server.start()
    try:
        for _ in range(gone):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
            assert b" 404 " in await reader.readline()
            writer.transport.abort()
        assert serving() > 0
        async with asyncio.timeout(LINGER_S + 4):
            while serving():
                await asyncio.sleep(0.05)
    finally:
        await server.close()


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"GET /v1/status HT",
        b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n",
    ],
    ids=["nothing", "half a header", "no token", "a body that never comes"],
)
async def test_strangers_of_64_addresses_do_not_keep_the_operators_command_out(make_node: Any, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    node = make_node(1, admin__port=port)
    token = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    server, crowd = AdminServer(node), Crowd(port, says)
    await server.start()
    try:
        await crowd.begin(CONNECTIONS_MAX + 10)
        url, made_here, trace = f"http://127.0.0.1:{port}", list[Any](), TraceConfig()

        async def is_new(session: Any, context: Any, told: Any) -> None:
            made_here.append(told)

        trace.on_connection_create_end.append(is_new)
        bearer = {"Authorization": f"Bearer {token}"}
        async with ClientSession(url, headers=bearer, trace_configs=[trace]) as stays:
            assert (await stays.get("/v1/status")).status == 200
            for _ in range(10):
                key, nonce = node.keyring.keys[0], node.access.entropy(16)
                made = operator_pass(key, str(CLUSTER), 1, "GET", "/v1/status", b"", wall_ms=node.now_ms, nonce=nonce)
                async with ClientSession(url, headers=made) as session:
                    assert (await session.get("/v1/status")).status == 200
                await asyncio.sleep(0.01)
            before = crowd.opened
            assert (await stays.get("/v1/status")).status == 200
            assert len(made_here) == 1, "a connection that has proven a user loses it to no stranger"
            assert crowd.opened >= before
    finally:
        await crowd.end()
        await server.close()


async def test_who_may_not_ask_takes_no_memory_of_answers(make_node: Any) -> None:
    """Not while a wrong token is answered late, either."""
    node = make_node(1)
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    guard = Guard(Clock())
    held: list[int] = []
    slow_down = node.access.slow_down

    async def late(*given: Any) -> None:
        held.append(guard.answers.taken)
        await slow_down(*given)

    node.access.slow_down = late
    async with TestClient(TestServer(build_app(node, guard))) as client:
        for path in ("/v1/topics", "/v1/groups", "/metrics"):
            answer = await client.get(path, headers={"Authorization": "Bearer of-nobody-at-all-here"})
            assert answer.status == 401
    assert held == [0, 0, 0]
