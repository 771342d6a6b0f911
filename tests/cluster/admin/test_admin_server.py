"""The common behaviour of all addresses: errors, consistency, passing on, the OpenAPI document, listening."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.admin.errors import STATUS
from cluster.admin.openapi import document
from cluster.admin.route import SERVED
from cluster.admin.routes import ROUTES, routes_of
from cluster.admin.server import AdminServer, build_app
from cluster.config.config import ConfigError
from cluster.requests.verb import Serves
from statemachine.topics.topics import CreateTopic
from tests.support.pace import at_most
from tests.support.rows import each_row


async def error_of(answer: Any) -> tuple[int, str]:
    body = await answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "hint"}
    assert STATUS[body["error"]["code"]] == answer.status
    return answer.status, body["error"]["code"]


# --- the same on every address ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["local", "linearizable"])
async def test_an_answer_has_what_was_committed_and_held_back(client: Any, node: Any, consistency: str) -> None:
    node.held_back.append(CreateTopic({"name": "held"}, True))
    answer = await client.get("/v1/topics", params={"consistency": consistency})
    assert [topic["name"] for topic in (await answer.json())["topics"]] == ["held"]


async def test_unknown_addresses_name_the_nearest(client: Any) -> None:
    answer = await client.get("/v1/topcs")
    assert await error_of(answer) == (404, "not_found")
    assert (await answer.json())["error"]["hint"] == "did you mean /v1/topics?"
    answer = await client.get("/v1/nosuch")  # only the beginning is like any other's
    assert (await answer.json())["error"]["hint"] == "/openapi.json lists every address"


async def test_wrong_method(client: Any) -> None:
    answer = await client.delete("/v1/topics")
    assert await error_of(answer) == (405, "bad_method")
    assert answer.headers["Allow"] == "GET,HEAD,POST"


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("consistncy=local", "did you mean consistency?"),
        ("consistency=linear", "did you mean linearizable?"),
        ("consistency=zzz", "use one of: local, linearizable"),
    ],
)
async def test_wrong_queries(client: Any, query: str, hint: str) -> None:
    answer = await client.get(f"/v1/topics?{query}")
    assert await error_of(answer) == (400, "bad_query")
    assert (await answer.json())["error"]["hint"] == hint


async def test_addresses_without_a_query_say_so(client: Any) -> None:
    answer = await client.get("/v1/health/live?consistency=linearizable")
    assert (await answer.json())["error"]["hint"] == "remove it: this address takes no query"


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[]", b"5"])
async def test_bodies_that_are_no_object(client: Any, body: bytes) -> None:
    answer = await client.post("/v1/topics", data=body, headers={"Content-Type": "application/json"})
    assert await error_of(answer) == (400, "bad_json")


async def test_other_media_types(client: Any, node: Any) -> None:
    answer = await client.post("/v1/topics", data=b'{"name": "a"}', headers={"Content-Type": "text/plain"})
    assert await error_of(answer) == (415, "not_json")
    assert node.proposed == []


async def test_large_bodies(client: Any, node: Any) -> None:
    answer = await client.post("/v1/topics", json={"name": "a" * 70_000})
    assert await error_of(answer) == (413, "too_large")
    assert node.proposed == []


async def test_pages_of_other_sites_neither_change_nor_read_anything(client: Any, node: Any) -> None:
    headers = {"Origin": "http://elsewhere.example"}
    for answer in (
        await client.post("/v1/topics", json={"name": "a"}, headers=headers),
        await client.delete("/v1/topics/a", headers=headers),
        await client.get("/v1/status", headers=headers),
        await client.get("/v1/status", headers={"Origin": "null"}),
    ):
        assert await error_of(answer) == (403, "cross_origin")
    own = {"Origin": f"http://127.0.0.1:{client.port}"}
    assert (await client.post("/v1/topics", json={"name": "a"}, headers=own)).status == 201
    assert (await client.get("/v1/status", headers=own)).status == 200


@each_row(
    ("host", "passes"),
    [
        ("127.0.0.1:9644", True),
        ("127.0.0.1", True),
        ("[::1]:9644", True),
        ("[::1]", True),
        ("10.1.2.3:1", True),
        ("localhost:9644", True),
        ("LOCALHOST", True),
        ("raftmq.localhost:9644", True),
        ("n2:9644", True),  # a member's [[peers]] name
        ("admin.n2.example:443", True),
        ("broker.example", True),  # advertised addresses
        ("raftmq.internal", True),
        ("raftmq-0.raftmq.svc.cluster.local:9644", True),
        ("RaftMQ.Internal.:80", True),
        ("rebound.example:9644", False),
        ("evil-raftmq.internal", False),
        ("raftmq.internal.evil.example", False),
        ("svc.cluster.local.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("0x7f000001", False),
        ("n2.evil.example", False),
        ("", False),
    ],
)
async def test_a_name_that_nobody_gave_the_cluster_is_refused(
    make_node: Any, serve: Any, host: str, passes: bool
) -> None:
    """A page of rebound.example, whose name was made to point here, reads and changes as its own site would."""
    peers = [
        {"id": 1, "host": "n1", "port": 10901, "listeners": {"broker": "broker.example:10911"}},
        {"id": 2, "host": "n2", "port": 10902, "admin": "admin.n2.example:443", "listeners": {"broker": "n2:10911"}},
    ]
    listeners = [{"name": "broker", "port": 10911, "advertised": "broker.example:10911"}]
    names = "raftmq.internal; *.svc.cluster.local"
    client = await serve(make_node(1, peers=peers, listeners=listeners, admin__allowed_hosts=names))
    for request in (client.get("/v1/status", headers={"Host": host}), client.get("/", headers={"Host": host})):
        answer = await request
        if passes:
            assert answer.status == 200
        else:
            assert await error_of(answer) == (403, "foreign_host")
            assert "admin.allowed_hosts" in (await answer.json())["error"]["hint"]


async def test_a_defect_is_logged_and_told(client: Any, node: Any, caplog: pytest.LogCaptureFixture) -> None:
    node.status = lambda: 1 / 0
    assert await error_of(await client.get("/v1/status")) == (500, "internal")
    assert "GET /v1/status failed" in caplog.text


# --- consistency -----------------------------------------------------------------------------------------------------


async def test_local_reads_ask_nobody(client: Any, node: Any) -> None:
    assert (await (await client.get("/v1/topics")).json())["consistency"] == "local"
    assert node.reads_confirmed == 0


async def test_linearizable_reads_are_confirmed(client: Any, node: Any) -> None:
    answer = await client.get("/v1/groups?consistency=linearizable")
    assert (await answer.json())["consistency"] == "linearizable"
    assert node.reads_confirmed == 1


async def test_a_read_that_is_not_confirmed_is_not_answered(make_node: Any, serve: Any) -> None:
    node = make_node(1, send__deadline_ms=20, send__leader_wait_ms=20)
    client = await serve(node)
    for confirms in (False, None):
        node.confirms = confirms
        assert await error_of(await client.get("/v1/topics?consistency=linearizable")) == (503, "no_leader")


# --- passing on ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(make_node: Any, serve: Any) -> Any:
    """(leader, follower, the follower's client)."""
    leader = make_node(1)
    leader_client = await serve(leader)
    return leader, *await follower_of(f"127.0.0.1:{leader_client.port}", make_node, serve)


async def follower_of(address: str, make_node: Any, serve: Any) -> Any:
    peers = [{"id": 1, "port": 1, "admin": address}, {"id": 2, "port": 2}]
    follower = make_node(2, peers=peers)
    return follower, await serve(follower)


async def test_writes_on_a_follower_reach_the_leader(pair: Any) -> None:
    leader, follower, client = pair
    answer = await client.post("/v1/topics", json={"name": "%RETRY%a", "queues": 2})
    assert (answer.status, (await answer.json())["node"]) == (201, 1)
    assert set(leader.state.topics) == {"%RETRY%a"}
    assert follower.proposed == []
    answer = await client.delete("/v1/topics/%25RETRY%25a")
    assert (answer.status, dict(leader.state.topics)) == (200, {})
    answer = await client.post("/v1/topics", json={"name": "a", "attributes": {"dedup": "sometimes"}})
    assert await error_of(answer) == (400, "bad_field")


async def test_linearizable_reads_on_a_follower_reach_the_leader(pair: Any) -> None:
    leader, _, client = pair
    body = await (await client.get("/v1/topics?consistency=linearizable")).json()
    assert (body["node"], body["consistency"], leader.reads_confirmed) == (1, "linearizable", 1)
    assert (await (await client.get("/v1/topics")).json())["node"] == 2


async def test_prefer_redirect(pair: Any) -> None:
    leader, _, client = pair
    answer = await client.post("/v1/topics", json={"name": "a"}, headers={"Prefer": "redirect"}, allow_redirects=False)
    assert (answer.status, answer.headers["X-Raft-Leader"]) == (307, "1")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1/topics", answer.headers["Location"])
    assert leader.proposed == []


async def test_wrong_bodies_are_refused_where_they_arrive(pair: Any) -> None:
    leader, _, client = pair
    leader.propose = lambda *_: pytest.fail("it was passed on")
    assert await error_of(await client.post("/v1/topics", json={"nam": "a"})) == (400, "bad_field")


async def test_one_hop_only(pair: Any) -> None:
    leader, _, client = pair
    leader.leader = 2  # each takes the other for the leader
    answer = await client.post("/v1/topics", json={"name": "a"})
    assert await error_of(answer) == (503, "not_leader")
    assert answer.headers["Retry-After"] == "1", "it comes back from the other node"


async def test_without_a_leader_nothing_is_passed_on(pair: Any, nobody: Any) -> None:
    _, follower, client = pair
    follower.leader = nobody
    answer = await client.post("/v1/topics", json={"name": "a"})
    assert await error_of(answer) == (503, "no_leader")
    assert answer.headers["Retry-After"] == "1"


async def test_a_leader_that_is_not_open_yet(client: Any, node: Any) -> None:
    node.writes_open = lambda: False
    assert await error_of(await client.post("/v1/topics", json={"name": "a"})) == (503, "not_leader")


async def test_a_leader_that_cannot_be_reached(make_node: Any, serve: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connecting is refused
        _, client = await follower_of(f"127.0.0.1:{closed.getsockname()[1]}", make_node, serve)
        assert await error_of(await client.post("/v1/topics", json={"name": "a"})) == (503, "leader_unreachable")


async def test_a_leader_without_a_configured_address(make_node: Any, serve: Any) -> None:
    _, client = await follower_of("", make_node, serve)
    answer = await client.post("/v1/topics", json={"name": "a"})
    assert await error_of(answer) == (503, "leader_unreachable")
    assert "[[peers]]" in (await answer.json())["error"]["hint"]


async def test_a_leader_that_dies_while_it_answers(make_node: Any, serve: Any) -> None:
    async def die(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", die)
    async with TestServer(app) as dying:
        _, client = await follower_of(f"127.0.0.1:{dying.port}", make_node, serve)
        assert await error_of(await client.post("/v1/topics", json={"name": "a"})) == (504, "unknown_outcome")
        answer = await client.get("/v1/topics?consistency=linearizable")
        assert await error_of(answer) == (503, "leader_unreachable")


# --- the document ----------------------------------------------------------------------------------------------------


async def test_the_document_names_exactly_what_is_served(client: Any, node: Any) -> None:
    served = {
        (route.method, route.resource.canonical)
        for route in build_app(node).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    answer = await client.get("/openapi.json")
    paths = (await answer.json())["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == served


async def test_head_answers_as_get_does_without_the_body(client: Any) -> None:
    for path in ("/metrics", "/v1/health", "/v1/topics", "/openapi.json"):
        answer = await client.head(path)
        assert (answer.status, await answer.read()) == (200, b""), path
    assert (await client.head("/v1/leader/transfer")).status == 405


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("DELETE", "/v1/members/join", "GET,HEAD"), ("GET", "/v1/consistency/log", "POST")]
)
async def test_an_address_takes_nothing_that_fits_it_by_chance(
    client: Any, method: str, path: str, allowed: str
) -> None:
    answer = await client.request(method, path)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


def test_the_document_says_what_paths_and_bodies_take() -> None:
    told = document(ROUTES, 100)
    schemas = told["components"]["schemas"]
    assert all(schemas[route.body.__name__]["additionalProperties"] is False for route in ROUTES if route.body)
    assert schemas["TopicRequest"]["properties"]["name"]["maxLength"] == 100
    (number,) = told["paths"]["/v1/members/{id}"]["delete"]["parameters"][:1]
    assert number["schema"] == {"type": "integer", "minimum": 1, "maximum": 65_535}
    assert told["paths"]["/v1/messages/{position}"]["get"]["parameters"][0]["schema"]["maximum"] == 2**63 - 1


async def test_a_whole_number_may_be_written_with_a_point(client: Any) -> None:
    answer = await client.post("/v1/topics", json={"name": "a", "queues": 3.0})
    assert (answer.status, (await answer.json())["topic"]["read_queues"]) == (201, 3)


def test_the_document_is_whole() -> None:
    text = json.dumps(document(ROUTES))
    schemas = document(ROUTES)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(schemas)
    assert {"TopicRequest", "NodeStatus", "ErrorView", "GroupDetail"} <= set(schemas)
    operations = [each for path in document(ROUTES)["paths"].values() for each in path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len(set(ids))
    assert all(each["summary"] for each in operations)


async def test_answers_are_as_the_document_says(client: Any, node: Any) -> None:
    """Every key of an answer is a property of its schema, and every required property is there."""
    await client.post("/v1/topics", json={"name": "a"})
    node.add_group("g", "a")
    described = document(ROUTES)
    for path in ("/v1/status", "/v1/health", "/v1/topics", "/v1/topics/{name}", "/v1/groups", "/v1/groups/{name}"):
        body = await (await client.get(path.replace("{name}", "a" if "topics" in path else "g"))).json()
        content = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        schema = described["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        assert set(schema["required"]) <= set(body) <= set(schema["properties"]), path


# --- listening -------------------------------------------------------------------------------------------------------


async def test_an_address_in_use_is_named(make_node: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await AdminServer(make_node(1, admin__port=port)).start()
    assert str(caught.value).splitlines()[:2] == [
        f"admin.port: cannot listen at 127.0.0.1:{port}",
        "another process listens there",
    ]


async def test_start_and_close(make_node: Any, unused_tcp_port: int) -> None:
    node = make_node(1, admin__port=unused_tcp_port)
    server = AdminServer(node)
    await server.start()
    with socket.create_connection(("127.0.0.1", node.config.admin.port), timeout=at_most(5)):
        pass
    await server.close()
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", node.config.admin.port), timeout=at_most(5))


# --- docs/http-api.md ------------------------------------------------------------------------------------------------


def test_the_page_of_the_api_names_every_route_and_error() -> None:
    text = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    rows = re.findall(r"^\| (GET|POST|PUT|DELETE) \| `(\S+)` \| (\w+) \|", text, re.MULTILINE)
    words = {Serves.ANY: "any", Serves.READ: "read", Serves.LEADER: "leader", Serves.MEMBER: "member"}
    words |= {Serves.LEADER_ALONE: "alone", Serves.CONFIRMED: "confirmed"}
    assert words.keys() == SERVED
    assert sorted(rows) == sorted((route.method, route.path, words[route.serves]) for route in ROUTES)
    assert {word for *_, word in rows} == set(re.findall(r"^- \*(\w+)\*: ", text, re.MULTILINE)), "words are explained"
    codes = {
        code: int(status)
        for status, cell in re.findall(r"^\| (\d{3}) \| (.*) \|$", text, re.MULTILINE)
        for code in re.findall(r"`([a-z_]+)`", cell)
    }
    assert codes == STATUS


# --- what the fuzzer found -------------------------------------------------------------------------------------------


async def test_a_body_nested_too_deeply_is_no_json(client: Any) -> None:
    deep = b'{"name":' + b"[" * 3000 + b"]" * 3000 + b"}"
    answer = await client.post("/v1/topics", data=deep, headers={"Content-Type": "application/json"})
    assert await error_of(answer) == (400, "bad_json")


@pytest.mark.parametrize(
    "sent", [b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"]
)
async def test_what_is_no_http_is_logged_in_one_line(
    client: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(sent)
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    (record,) = [each for each in caplog.records if each.name == "aiohttp.server"]
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "\n" not in record.getMessage()


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure_of_the_node(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner = web.AppRunner(build_app(node))  # as a node runs it: the test server cancels its handlers instead
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await asyncio.sleep(0.05)
    await runner.cleanup()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == []


@pytest.mark.parametrize(
    ("changed", "says"), [({}, "are there twice"), ({"path": "/v1/new", "needs": None}, "no rights")]
)
def test_a_route_that_is_there_twice_or_names_no_rights_is_refused(changed: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        routes_of(ROUTES, [ROUTES[0]._replace(**changed)])
