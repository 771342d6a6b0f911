"""The largest size of answers: every route says it, a page keeps to it after escaping, and holds memory for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cluster.admin.handler_request import Call
from cluster.admin.resource_limits import ANSWERS_BYTES_MAX, Guard
from cluster.admin.route import CONSTANT, CONSTANT_BYTES_MAX, PAGE_BYTES_MAX, Route, whole_message
from cluster.admin.routes import ROUTES
from cluster.admin.server import build_app
from cluster.admin.streamed_json import SENT_BYTES, Pieces
from cluster.config.service_sections import LimitsSection
from raftlog.types import NodeId
from statemachine.topics.topics import CreateTopic
from tests.support.pace import at_most
from tests.support.rows import each_row
from tests.support.wait_until import until

QUEUE = "/v1/topics/orders/queues/0/messages"
ENVELOPE_BYTES = 4096
"""Bytes of a page besides its items."""


@each_row("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_says_what_its_answer_may_come_to(route: Route) -> None:
    limits = LimitsSection()
    if route.cost is CONSTANT:
        return
    assert route.cost.items_max > 0
    assert 0 < route.cost.bytes_max(limits) <= ANSWERS_BYTES_MAX


def test_a_new_route_cannot_forget_it() -> None:
    with pytest.raises(TypeError, match="'cost'"):
        Route("GET", "/v1/new", ROUTES[0].handler, "text/plain", needs=ROUTES[0].needs)  # type: ignore[call-arg]


@pytest.fixture
def orders(node: Any) -> Any:
    node.consistency = SimpleNamespace(fenced=False)
    node.apply([CreateTopic({"name": "orders"}, True)])
    return node


async def asked(client: Any, path: str) -> tuple[Any, int]:
    """The answer and its length."""
    answer = await client.get(path)
    body = await answer.read()
    assert (answer.status, answer.content_type, int(answer.headers["Content-Length"])) == (
        200,
        "application/json",
        len(body),
    )
    return json.loads(body), len(body)


async def test_a_page_of_control_characters_ends_when_its_json_is_full(client: Any, orders: Any) -> None:
    body = b"\x01" * 100_000
    for _ in range(8):
        orders.add_message("orders", body, "k")
    shown, offset = [], 0
    while offset < 8:
        page, size = await asked(client, f"{QUEUE}?offset={offset}&count=32&body_bytes=9999999")
        assert size <= PAGE_BYTES_MAX + ENVELOPE_BYTES
        assert page["next_offset"] == offset + len(page["messages"]) > offset
        shown += page["messages"]
        offset = page["next_offset"]
    assert [each["queue_offset"] for each in shown] == list(range(8))
    assert all(each["body"].encode() == body and not each.get("body_cut") for each in shown)


async def test_a_message_that_fills_a_page_is_cut_there_and_is_had_whole_by_its_position(
    client: Any, orders: Any
) -> None:
    text = "ä\x02" * 200_000
    position = orders.add_message("orders", text.encode(), "k")
    page, size = await asked(client, f"{QUEUE}?offset=0&body_bytes=9999999")
    (one,) = page["messages"]
    assert size <= PAGE_BYTES_MAX + ENVELOPE_BYTES
    assert (one["body_cut"], one["body_bytes"], page["next_offset"]) == (True, len(text.encode()), 1)
    assert text.startswith(one["body"])
    assert len(one["body"]) > 100_000
    found, size = await asked(client, "/v1/topics/orders/messages/k")
    assert found["messages"] == [one]
    assert size <= PAGE_BYTES_MAX + ENVELOPE_BYTES
    whole, _ = await asked(client, f"/v1/messages/{position}")
    assert (whole["message"]["body"], "body_cut" in whole["message"]) == (text, False)


async def test_what_a_search_finds_and_has_no_room_for_is_cut(client: Any, orders: Any) -> None:
    for _ in range(6):
        orders.add_message("orders", b"\x01" * 60_000, "k")
    found, size = await asked(client, "/v1/topics/orders/messages/k?body_bytes=60000")
    assert size <= PAGE_BYTES_MAX + ENVELOPE_BYTES
    cut = [each.get("body_cut", False) for each in found["messages"]]
    assert (len(cut), cut[0], cut[-1]) == (6, False, True)


async def test_bytes_that_are_no_text_only_at_their_end_are_base64_throughout(client: Any, orders: Any) -> None:
    position = orders.add_message("orders", b"a" * 200_000 + b"\xff", "k")
    whole, _ = await asked(client, f"/v1/messages/{position}")
    assert "body" not in whole["message"]
    assert whole["message"]["body_base64"].startswith("YWFh")
    cut, _ = await asked(client, f"/v1/messages/{position}?body_bytes=3")
    assert (cut["message"]["body_base64"], cut["message"]["body_cut"]) == ("YWFh", True)


async def test_a_large_message_is_made_in_steps_that_are_charged(client: Any, orders: Any) -> None:
    position = orders.add_message("orders", b"\x01" * 1_000_000, "k")
    orders.turns.share = 1
    whole, _ = await asked(client, f"/v1/messages/{position}")
    assert len(whole["message"]["body"]) == 1_000_000
    spent = orders.turns.steps()
    assert len(spent) >= 19
    assert 0 < max(spent) <= 1_000


async def test_room_is_held_before_the_handler_and_until_the_answer_is_sent(serve: Any, orders: Any) -> None:
    position = orders.add_message("orders", b"x" * 100, "k")
    (route,) = [each for each in ROUTES if each.path == "/v1/messages/{position}"]
    guard, taken = Guard(asyncio.get_running_loop().time), list[int]()

    async def noted(call: Call) -> Any:
        taken.append(guard.answers.taken)
        return await route.handler(call)

    client = TestClient(TestServer(build_app(orders, guard, routes=[route._replace(handler=noted)])))
    async with client:
        await asked(client, f"/v1/messages/{position}")
        assert taken == [whole_message(orders.config.limits)]
        await until(lambda: guard.answers.taken == 0)


def test_writes_are_bounded_whatever_the_parts_are() -> None:
    pieces = Pieces([b"a" * 10] * 20_000 + [b"b" * SENT_BYTES])
    writes = list(pieces.writes())
    assert b"".join(writes) == b"".join(pieces.parts)
    assert max(map(len, writes)) <= 2 * SENT_BYTES


# --- answers that are passed on -----------------------------------------------------------------------------------


@pytest.fixture
async def endless(make_node: Any, serve: Any) -> Any:
    """A leader that answers for ever; how much of it was read is counted. The client asks another node."""
    said = SimpleNamespace(bytes=0, client=None)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while said.bytes < 1 << 30:
                await response.write(b"x" * (1 << 16))
                said.bytes += 1 << 16
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    node = make_node(1, peers=[{"id": 1, "port": 1}, {"id": 2, "port": 2, "admin": f"127.0.0.1:{server.port}"}])
    node.leader = NodeId(2)
    said.client = await serve(node)
    yield said
    await server.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/topics?consistency=linearizable", 503, "failed"),
        ("GET", "/v1/members/2/status", 503, "failed"),
        ("POST", "/v1/members", 504, "unknown_outcome"),
        ("DELETE", "/v1/topics/orders", 504, "unknown_outcome"),
    ],
)
async def test_of_a_member_that_answers_for_ever_only_so_much_is_read(
    endless: Any, method: str, path: str, status: int, code: str
) -> None:
    uuid = "00000000-0000-0000-0000-000000000009"
    body = {"cluster_id": uuid, "uuid": uuid, "host": "127.0.0.1", "port": 1}
    async with asyncio.timeout(at_most(30)):
        answer = await endless.client.request(method, path, json=body if method == "POST" else None)
        told = await answer.json()
    assert (answer.status, told["error"]["code"]) == (status, code), told
    assert "longer than" in told["error"]["message"]
    assert endless.bytes <= CONSTANT_BYTES_MAX + PAGE_BYTES_MAX + (16 << 20)  # what lies in sockets beside it
