"""Who gets in over HTTP: modes, tokens, cookies, passes between nodes, and what proves nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.admin import access as access_module
from cluster.admin.access import ADDRESSES_MAX, SLOW_AFTER
from cluster.admin.errors import ApiError
from cluster.admin.forward import FOR_HEADER, HOPS_HEADER
from cluster.admin.signed_identity import PASS_HEADER, TOOL, WINDOW_MS, Passes, operator_pass
from cluster.peer.keyring import Keyring
from statemachine.access.access_commands import (
    ChangeUser,
    Origin,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    SetAuthMode,
    SetRules,
)
from statemachine.access.user_rows import Mode
from tests.support.fake_raw import CLUSTER
from tests.support.rows import each_row

PATH = "/v1/status"
ASKED = Origin(1_700_000_000_000, "", "")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def told(answer: Any) -> tuple[int, str]:
    return answer.status, (await answer.json()).get("error", {}).get("code", "")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a node would have logged: it has no access log, the test's server has one."""
    names = ("cluster", "aiohttp.server", "aiohttp.web")
    return [record.getMessage() for record in caplog.records if record.name.startswith(names)]


# --- modes -----------------------------------------------------------------------------------------------------------


async def test_what_each_mode_does_with_a_stranger(client: Any, node: Any, caplog: pytest.LogCaptureFixture) -> None:
    node.add_user("root", is_super=True)
    assert (await client.get(PATH)).status == 200
    assert node.denials == []
    node.set_mode("observe")
    assert (await client.get(PATH)).status == 200
    assert node.denials == [False]
    node.set_mode("enforce")
    answer = await client.get(PATH)
    assert await told(answer) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "raftmq login" in (await answer.json())["error"]["hint"]
    assert node.denials == [False, True]
    assert sum("would be denied" in text for text in caplog.messages) == 1


async def test_a_node_that_cannot_know_says_so(client: Any, node: Any) -> None:
    token = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    node.stale = "it has heard no leader for 20 s"
    assert await told(await client.get(PATH, headers=bearer(token))) == (503, "cannot_judge")
    assert (await client.get("/v1/health/live")).status == 200
    assert node.denials == []


@pytest.mark.parametrize("lacks", ["the user", "the right", "nothing"])
async def test_a_follower_makes_sure_before_it_denies(client: Any, node: Any, lacks: str) -> None:
    """A change that was acknowledged counts here, too, although this node has not applied it yet."""
    node.add_user("root", is_super=True)
    rule = ("Cluster:*", ["Get"])
    token = "token-of-shop-00000002"
    if lacks != "the user":
        assert node.add_user("shop", *([rule] if lacks == "nothing" else [])) == token
    node.set_mode("enforce")
    asked: list[str] = []

    def catch_up(done: Any) -> None:
        asked.append(lacks)
        if lacks == "the user":
            assert node.add_user("shop", rule) == token
        elif lacks == "the right":
            node.apply([SetRules(ASKED, 2, [(1, *rule, (), True)])])
        done(True)

    node.confirmed.is_possible, node.confirmed.ask = True, catch_up
    assert (await client.get(PATH, headers=bearer(token))).status == 200
    assert asked[:1] == ([] if lacks == "nothing" else [lacks])
    assert node.denials == []
    assert (await client.get(PATH)).status == 401  # who names nobody is not helped by any change
    node.confirmed.ask = lambda done: done(False)
    assert await told(await client.post("/v1/topics", json={"name": "t"}, headers=bearer(token))) == (
        503,
        "cannot_judge",
    )
    assert node.denials == [True]


async def test_a_denial_is_logged_once(client: Any, node: Any, caplog: pytest.LogCaptureFixture) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    for _ in range(20):
        await client.get(PATH)
    assert sum("denied" in text for text in caplog.messages) == 1
    assert len(node.denials) == 20


async def test_a_body_is_judged_by_the_topic_that_it_names(client: Any, node: Any) -> None:
    token = node.add_user("shop", ("Topic:shop-*", ["Create"]))
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    answer = await client.post("/v1/topics", json={"name": "shop-1"}, headers=bearer(token))
    assert answer.status == 201
    answer = await client.post("/v1/topics", json={"name": "other"}, headers=bearer(token))
    assert await told(answer) == (403, "denied")
    assert set(node.state.topics) == {"shop-1"}


async def test_a_consumer_cannot_delete_its_retry_topic(client: Any, node: Any) -> None:
    """Sub on a group reads its retry topic and its dead letters; deleting them needs Delete."""
    token = node.add_user("shop", ("Group:g", ["Sub"]))
    owner = node.add_user("owner", ("Group:g", ["Delete"]))
    node.add_user("root", is_super=True)
    for name in ("%25RETRY%25g", "%25DLQ%25g"):
        node.set_mode("off")
        await client.post("/v1/topics", json={"name": name.replace("%25", "%")})
        node.set_mode("enforce")
        assert await told(await client.delete(f"/v1/topics/{name}", headers=bearer(token))) == (403, "denied")
        assert (await client.delete(f"/v1/topics/{name}", headers=bearer(owner))).status == 200


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ended", "revoked", "disabled", "removed", "made again", "rules"])
async def test_a_token_ends_with_what_it_stands_on(client: Any, node: Any, how: str) -> None:
    node.add_user("root", is_super=True)
    token = node.add_user("shop", ("Cluster:*", ["Get"]))
    node.set_mode("enforce")
    assert (await client.get(PATH, headers=bearer(token))).status == 200
    user = node.state.access.users["shop"]
    expected = (401, "unauthenticated")
    match how:
        case "ended":
            node.now_ms += 3_600_000
        case "revoked":
            node.apply([RemoveToken(ASKED, user.tokens[0])])
        case "disabled":
            node.apply([ChangeUser(ASKED, user.id, {"enabled": False})])
            expected = (403, "denied")
        case "removed":
            node.apply([RemoveUser(ASKED, user.id)])
        case "made again":
            node.apply([RemoveUser(ASKED, user.id)])
            node.add_user("shop", ("Cluster:*", ["Get"]))
        case _:
            node.apply([RemoveRules(ASKED, user.id, None, None)])
            expected = (403, "denied")
    assert await told(await client.get(PATH, headers=bearer(token))) == expected


@each_row(
    "given", ["Basic cm9vdDpyb290", "Bearer", "Bearer ", "Bearer short", "Bearer " + "x" * 4000, "Bearer a b", ""]
)
async def test_a_header_that_is_no_token_names_nobody(client: Any, node: Any, given: str) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    assert await told(await client.get(PATH, headers={"Authorization": given})) == (401, "unauthenticated")


@pytest.mark.parametrize("name", ["token", "access_token", "secret", "password", "Authorization", "raftmq_token"])
async def test_a_token_in_an_address_is_refused_and_not_logged(
    client: Any, node: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    token = node.add_user("root", is_super=True)
    for path in (PATH, "/v1/topics", "/", "/v1/health/live", "/v1/events/stream"):
        answer = await client.get(path, params={name: token})
        assert await told(answer) == (400, "token_in_address")
        assert token not in await answer.text()
    assert token not in "\n".join(said(caplog))


@pytest.mark.parametrize("line", [b"GET /v1/status?token=%b HTTP/9.9", b"GET /v1/status\r\nAuth\x00: %b", b"%b"])
async def test_a_request_that_cannot_be_read_is_logged_without_its_text(
    client: Any, node: Any, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    token = node.add_user("root", is_super=True)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(line % token.encode() + b"\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n")
    answer = await reader.read(4096)
    writer.close()
    assert b"400" in answer
    assert any("Error handling request" in text for text in said(caplog))
    assert token not in "\n".join(said(caplog))


async def is_late(node: Any, address: str) -> bool:
    """Whether the next wrong token of that address is answered late."""
    answering = asyncio.ensure_future(node.access.slow_down(address))
    await asyncio.sleep(0)
    is_late = not answering.done()
    answering.cancel()
    return is_late


async def test_wrong_tokens_of_many_addresses_hold_little_memory(node: Any) -> None:
    """Of ADDRESSES_MAX addresses they are counted; the one whose last is oldest is forgotten for another."""
    first = "10.1.0.1"
    assert [await is_late(node, first) for _ in range(SLOW_AFTER + 1)] == [False] * SLOW_AFTER + [True]
    for more, late in ((ADDRESSES_MAX - 1, True), (ADDRESSES_MAX, False)):
        for number in range(more):
            await node.access.slow_down(f"10.{more % 256}.{number // 256}.{number % 256}")
        assert await is_late(node, first) == late


# --- cookies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "status"), [(None, 200), ("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401)]
)
async def test_a_cookie_counts_for_its_own_pages(client: Any, node: Any, site: str | None, status: int) -> None:
    """A page on another port of this host is of the same site: the browser sends the cookie along."""
    token = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    headers = {"Cookie": f"{node.access.cookie}={token}"} | ({"Sec-Fetch-Site": site} if site else {})
    assert (await client.get(PATH, headers=headers)).status == status


async def test_a_cookie_of_another_cluster_names_nobody(client: Any, node: Any) -> None:
    token = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    assert (await client.get(PATH, headers={"Cookie": f"raftmq_ffffffff={token}"})).status == 401


async def test_a_cookie_changes_nothing_for_a_page_of_another_origin(client: Any, node: Any) -> None:
    token = node.add_user("root", is_super=True)
    headers = {"Cookie": f"{node.access.cookie}={token}", "Origin": f"http://{client.host}:1"}
    assert await told(await client.post("/v1/topics", json={"name": "a"}, headers=headers)) == (403, "cross_origin")
    assert not node.proposed


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "revoked", "rules"])
async def test_a_stream_ends_with_the_right_to_it(client: Any, node: Any, how: str) -> None:
    node.add_user("root", is_super=True)
    token = node.add_user("shop", ("Cluster:*", ["Get"]))
    node.set_mode("enforce")
    answer = await client.get("/v1/events/stream", headers=bearer(token))
    assert await answer.content.readline() == b": events\n"
    user = node.state.access.users["shop"]
    node.apply(
        [
            {
                "removed": RemoveUser(ASKED, user.id),
                "revoked": RemoveToken(ASKED, user.tokens[0]),
                "rules": RemoveRules(ASKED, user.id, None, None),
            }[how]
        ]
    )
    node.events.note_change("topic a", "happened after the change")
    assert b"happened after" not in await answer.content.read()
    assert node.events.watchers == 0


async def test_a_stream_of_a_stranger_ends_when_enforcing_begins(client: Any, node: Any) -> None:
    node.add_user("root", is_super=True)
    answer = await client.get("/v1/events/stream")
    assert await answer.content.readline() == b": events\n"
    node.set_mode("enforce")
    assert await answer.content.read() == b"\n"


# --- from node to node -----------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(make_node: Any, serve: Any) -> Any:
    """(leader, follower, the leader's client, the follower's client)."""
    leader = make_node(1)
    leader_client = await serve(leader)
    peers = [{"id": 1, "port": 1, "admin": f"127.0.0.1:{leader_client.port}"}, {"id": 2, "port": 2}]
    follower = make_node(2, peers=peers)
    return leader, follower, leader_client, await serve(follower)


def same(nodes: tuple[Any, ...], name: str, *rules: Any, is_super: bool = False) -> str:
    """The user exists on both."""
    tokens = {node.add_user(name, *rules, is_super=is_super) for node in nodes}
    (token,) = tokens
    return token


async def test_the_leader_judges_a_user_that_a_follower_names(pair: Any) -> None:
    leader, follower, _, client = pair
    same((leader, follower), "root", is_super=True)
    token = same((leader, follower), "shop", ("Topic:*", ["Create", "Delete"]))
    for node in (leader, follower):
        node.set_mode("enforce")
    answer = await client.post("/v1/topics", json={"name": "a"}, headers=bearer(token))
    assert answer.status == 201
    user = leader.state.access.users["shop"]
    leader.apply([RemoveRules(ASKED, user.id, None, None)])
    answer = await client.post("/v1/topics", json={"name": "b"}, headers=bearer(token))
    assert await told(answer) == (403, "denied")
    leader.apply([RemoveUser(ASKED, user.id)])
    answer = await client.post("/v1/topics", json={"name": "b"}, headers=bearer(token))
    assert await told(answer) == (401, "unauthenticated")


async def test_the_trace_names_the_user_the_client_and_the_node_between(pair: Any) -> None:
    leader, follower, _, client = pair
    token = same((leader, follower), "root", is_super=True)
    await client.post("/v1/topics", json={"name": "a"}, headers=bearer(token))
    await client.delete("/v1/topics/a", headers=bearer(token))
    says = leader.events.kept()[-1].says
    assert says.endswith("asked for over HTTP by user root at 127.0.0.1 by way of node 2")


async def test_neither_token_nor_cookie_goes_to_the_address_of_another_node(make_node: Any, serve: Any) -> None:
    """A member was moved to the address of a stranger, who writes down all that comes."""
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(repr(request.headers) + request.raw_path + repr(await request.read()))
        return web.json_response({"error": {"code": "denied", "message": "no", "hint": ""}}, status=403)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", listen)
    stranger = TestServer(app)
    await stranger.start_server()
    peers = [{"id": 1, "port": 1, "admin": f"127.0.0.1:{stranger.port}"}, {"id": 2, "port": 2}]
    node = make_node(2, peers=peers)
    token = node.add_user("root", is_super=True)
    node.set_mode("enforce")
    client = await serve(node)
    cookie = {"Cookie": f"{node.access.cookie}={token}"}
    for headers in (bearer(token), cookie):
        await client.post("/v1/topics", json={"name": "a"}, headers=headers)
        await client.get("/v1/topics?consistency=linearizable", headers=headers)
        await client.get("/v1/members/1/status", headers=headers)
        await client.get("/v1/findings", headers=headers)
    await stranger.close()
    assert len(heard) >= 6
    assert any(PASS_HEADER in each for each in heard), "the search could have found something"
    assert not [each for each in heard if token in each or "Authorization" in each or "Cookie" in each]


@pytest.mark.parametrize("how", ["Authorization", "Cookie"])
async def test_no_redirect_with_a_token(pair: Any, how: str) -> None:
    leader, follower, _, client = pair
    token = same((leader, follower), "root", is_super=True)
    headers = bearer(token) if how == "Authorization" else {"Cookie": f"{follower.access.cookie}={token}"}
    answer = await client.post(
        "/v1/topics", json={"name": "a"}, headers=headers | {"Prefer": "redirect"}, allow_redirects=False
    )
    assert await told(answer) == (400, "bad_request")
    assert "Location" not in answer.headers


async def test_headers_of_a_client_prove_nothing(client: Any, node: Any) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    user = node.state.access.users["root"]
    for headers in (
        {HOPS_HEADER: "1"},
        {HOPS_HEADER: "1", FOR_HEADER: "10.0.0.1"},
        {"X-RaftMQ-User": "root", "X-Forwarded-User": "root", "Remote-User": "root"},
        {"X-RaftMQ-User-Id": str(user.id)},
    ):
        assert await told(await client.get(PATH, headers=headers)) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "claims",
    [
        {HOPS_HEADER: "1"},
        {HOPS_HEADER: "1", FOR_HEADER: "10.0.0.7"},
        {"X-Forwarded-For": "10.0.0.7", "Forwarded": "for=10.0.0.7", "X-Real-IP": "10.0.0.7"},
        {"X-RaftMQ-User": "root", "X-Forwarded-User": "root", "Remote-User": "root"},
    ],
    ids=str,
)
async def test_a_user_stays_itself_whatever_its_headers_say(client: Any, node: Any, claims: dict[str, str]) -> None:
    headers = bearer(node.add_user("shop", ("Topic:*", ["Create", "Delete"]))) | claims
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    assert await told(await client.get("/v1/users", headers=headers)) == (403, "denied")
    assert (await client.post("/v1/topics", json={"name": "a"}, headers=headers)).status == 201
    assert (await client.delete("/v1/topics/a", headers=headers)).status == 200
    (deleted,) = [event.says for event in node.events.kept() if event.object == "topic a"]
    assert deleted.endswith("asked for over HTTP by user shop at 127.0.0.1")


@pytest.mark.parametrize("field", ["user", "address", "by", "raftmqClients"])
async def test_a_request_has_no_field_for_its_user(client: Any, node: Any, field: str) -> None:
    root = bearer(node.add_user("root", is_super=True))
    answer = await client.post("/v1/topics", json={"name": "a", field: "root"}, headers=root)
    assert await told(answer) == (400, "bad_field")
    assert await told(await client.get(f"/v1/topics?{field}=root", headers=root)) == (400, "bad_query")


FORGERIES = ["key", "proof", "who", "address", "target", "method", "path", "body", "late", "early", "twice", "form"]


@pytest.mark.parametrize("how", FORGERIES)
async def test_a_forged_pass_is_refused(pair: Any, how: str) -> None:
    leader, follower, client, _ = pair
    same((leader, follower), "root", is_super=True)
    same((leader, follower), "shop", ("Topic:*", ["All"]))
    leader.set_mode("enforce")
    caller = access_module.Caller(follower.state.access.users["root"], "10.0.0.7")
    if how == "key":
        follower.keyring = Keyring((b"x" * 32,), demanded=True)
    if how in ("late", "early"):
        follower.now_ms += (WINDOW_MS + 1) * (1 if how == "early" else -1)
    target, method, path, body = 1, "POST", "/v1/topics", b'{"name": "a"}'
    made = follower.access.pass_for(
        caller,
        3 if how == "target" else target,
        "PUT" if how == "method" else method,
        path + "x" if how == "path" else path,
        b"{}" if how == "body" else body,
    )[PASS_HEADER]
    words = made.split(" ")
    if how == "who":
        words[4] = str(leader.state.access.users["shop"].id)
    if how == "address":
        words[5] = "10.0.0.8"
    if how == "proof":
        words[-1] = "0" * 64
    if how == "form":
        words[0] = "2"
    headers = {PASS_HEADER: " ".join(words), "Content-Type": "application/json"}
    if how == "twice":
        assert (await client.post(path, data=body, headers=headers)).status == 201
    answer = await client.post(path, data=body, headers=headers)
    assert await told(answer) == (400, "bad_pass")
    assert set(leader.state.topics) == ({"a"} if how == "twice" else set())


async def test_a_pass_that_is_right_gets_in(pair: Any) -> None:
    leader, follower, client, _ = pair
    same((leader, follower), "root", is_super=True)
    leader.set_mode("enforce")
    caller = access_module.Caller(follower.state.access.users["root"], "10.0.0.7")
    body = b'{"name": "a"}'
    headers = follower.access.pass_for(caller, 1, "POST", "/v1/topics", body)
    answer = await client.post("/v1/topics", data=body, headers=headers | {"Content-Type": "application/json"})
    assert answer.status == 201


# --- the operator, who can read the cluster's secret -----------------------------------------------------------------


def as_operator(asked: Any, method: str, path: str, body: bytes = b"", **other: Any) -> dict[str, str]:
    """The headers of an operator's request to a node, `asked`; `other` replaces something in the proof."""
    given = {
        "key": asked.keyring.keys[0],
        "uuid": str(CLUSTER),
        "node": asked.config.node.id,
        "wall_ms": asked.now_ms,
        "nonce": asked.access.entropy(16),
    }
    made = operator_pass(method=method, path=path, body=body, **(given | other))
    return made | ({"Content-Type": "application/json"} if body else {})


@pytest.mark.parametrize("mode", ["off", "observe", "enforce"])
async def test_the_operator_may_do_everything_in_every_mode(client: Any, node: Any, mode: str) -> None:
    node.add_user("root", is_super=True)
    node.set_mode(mode)
    node.stale = "it has heard no leader for an hour"
    answer = await client.get(PATH, headers=as_operator(node, "GET", PATH))
    assert answer.status == 200
    body = b'{"name": "a"}'
    answer = await client.post("/v1/topics", data=body, headers=as_operator(node, "POST", "/v1/topics", body))
    assert answer.status == 201
    assert node.denials == []


async def test_a_follower_names_the_operator_to_the_leader(pair: Any) -> None:
    leader, follower, _, client = pair
    for node in (leader, follower):
        node.add_user("root", is_super=True)
        node.set_mode("enforce")
    body = b'{"name": "a"}'
    answer = await client.post("/v1/topics", data=body, headers=as_operator(follower, "POST", "/v1/topics", body))
    assert answer.status == 201
    path = "/v1/topics/a"
    assert (await client.delete(path, headers=as_operator(follower, "DELETE", path))).status == 200
    says = leader.events.kept()[-1].says
    assert says.endswith("asked for over HTTP by the operator at 127.0.0.1 by way of node 2")


@pytest.mark.parametrize("how", ["key", "uuid", "node", "wall_ms", "method", "path", "body", "twice", "who", "from"])
async def test_a_forged_pass_of_the_operator_is_refused(client: Any, node: Any, how: str) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    body, nonce = b'{"name": "a"}', b"n" * 16
    other = {"key": b"x" * 32, "uuid": "f" * 36, "node": 2, "wall_ms": node.now_ms - WINDOW_MS - 1}
    headers = as_operator(
        node,
        "PUT" if how == "method" else "POST",
        "/v1/groups" if how == "path" else "/v1/topics",
        b'{"name": "b"}' if how == "body" else body,
        **({how: other[how]} if how in other else {}),
        nonce=nonce,
    )
    words = headers[PASS_HEADER].split(" ")
    if how == "who":
        words[4] = str(node.state.access.users["root"].id)
    if how == "from":
        words[2] = "2"
    if how == "twice":
        assert (await client.post("/v1/topics", data=body, headers=headers)).status == 201
    answer = await client.post("/v1/topics", data=body, headers=headers | {PASS_HEADER: " ".join(words)})
    assert await told(answer) == (400, "bad_pass")
    assert set(node.state.topics) == ({"a"} if how == "twice" else set())


def passes_of(node: Any, by: int, **limits: int) -> Passes:
    """Passes of another one that has the secret of the node's cluster, and the node's clock."""
    return Passes(
        node=by,
        uuid=lambda: str(CLUSTER),
        keyring=lambda: node.keyring,
        entropy=node.access.entropy,
        wall_ms=lambda: node.now_ms,
        **limits,
    )


async def test_a_tool_that_has_the_secret_speaks_for_no_user(client: Any, node: Any) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    user, tool = node.state.access.users["root"], passes_of(node, TOOL)
    for who in (str(user.id), "node", "none"):
        made = tool.made(who, "10.0.0.9", 1, "GET", PATH, b"")
        assert await told(await client.get(PATH, headers=made)) == (400, "bad_pass"), who


async def test_a_stream_of_the_operator_ends_with_the_secret(client: Any, node: Any) -> None:
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    path = "/v1/events/stream"
    answer = await client.get(path, headers=as_operator(node, "GET", path))
    assert await answer.content.readline() == b": events\n"
    node.keyring = Keyring((b"z" * 32,), demanded=True)
    assert await answer.content.read() == b"\n"


async def test_without_a_secret_there_is_no_operator(client: Any, node: Any) -> None:
    made = as_operator(node, "GET", PATH)
    node.keyring = Keyring()
    assert await told(await client.get(PATH, headers=made)) == (400, "bad_pass")


async def test_a_node_asks_for_itself_what_is_no_change(pair: Any) -> None:
    leader, follower, client, _ = pair
    same((leader, follower), "root", is_super=True)
    leader.set_mode("enforce")
    assert (await client.get("/v1/findings", headers=follower.access.own_pass(1, "/v1/findings"))).status == 200
    made = follower.access.passes.made("node", "-", 1, "PUT", "/v1/failpoints", b"{}")
    answer = await client.put("/v1/failpoints", data=b"{}", headers=made | {"Content-Type": "application/json"})
    assert await told(answer) == (401, "unauthenticated")


def test_passes_that_are_remembered_hold_bounded_memory(node: Any) -> None:
    passes, other = passes_of(node, 1, nonces_max=3), passes_of(node, 2)

    def comes() -> None:
        (made,) = other.made("none", "10.0.0.9", 1, "GET", PATH, b"").values()
        passes.check(made, "GET", PATH, b"")

    for _ in range(2):
        for _ in range(3):
            comes()
        with pytest.raises(ApiError, match="3 requests were passed on to this node"):
            comes()
        node.now_ms += 2 * WINDOW_MS + 1


async def test_a_used_pass_does_not_count_again_after_a_restart(node: Any, make_node: Any, serve: Any) -> None:
    restarted = make_node(1, now_ms=node.now_ms + 1)
    restarted.keyring = node.keyring
    for each in (node, restarted):
        each.add_user("root", is_super=True)
    body = b'{"name": "a"}'
    headers = as_operator(node, "POST", "/v1/topics", body)
    assert (await (await serve(node)).post("/v1/topics", data=body, headers=headers)).status == 201
    client = await serve(restarted)
    for _ in range(2):
        assert await told(await client.post("/v1/topics", data=body, headers=headers)) == (400, "bad_pass")
    assert set(restarted.state.topics) == set()
    fresh = as_operator(restarted, "POST", "/v1/topics", body)
    assert (await client.post("/v1/topics", data=body, headers=fresh)).status == 201


async def test_a_clock_that_was_set_back_after_the_start_refuses_no_pass_for_long(node: Any, client: Any) -> None:
    node.now_ms -= 30_000
    for _ in range(2):
        assert (await client.get(PATH, headers=as_operator(node, "GET", PATH))).status == 200
    old = as_operator(node, "GET", PATH, wall_ms=node.now_ms - 1)
    assert await told(await client.get(PATH, headers=old)) == (400, "bad_pass")


async def test_without_a_secret_nodes_vouch_for_nobody(pair: Any) -> None:
    """Nothing is enforced then: `auth.mode` cannot be enforce (a right pass would be refused, too)."""
    leader, follower, client, _ = pair
    made = follower.access.own_pass(1, PATH)
    leader.keyring = follower.keyring = Keyring()
    assert follower.access.own_pass(1, PATH) == {}
    assert await told(await client.get(PATH, headers=made)) == (400, "bad_pass")


async def test_the_mode_is_a_change_like_any_other(node: Any) -> None:
    node.add_user("root", is_super=True)
    for mode in ("observe", "enforce", "off") * 3:
        node.apply([SetAuthMode(ASKED, mode)])
        assert node.state.access.mode == mode


@pytest.mark.parametrize("stays", [True, False])
async def test_a_request_whose_body_comes_late_is_judged_by_the_rules_of_then(
    make_node: Any, serve: Any, stays: bool
) -> None:
    """A Super who was removed meanwhile does not end the judging."""
    node = make_node()
    token, _ = node.add_user("eve", is_super=True), node.add_user("root", is_super=True)
    node.set_mode("enforce")
    client, began, goes_on = await serve(node), asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"mode":'
        began.set()
        await goes_on.wait()
        yield b'"off"}'

    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = asyncio.create_task(client.put("/v1/auth", data=body(), headers=headers))
    await began.wait()
    await asyncio.sleep(0.2)
    if not stays:
        node.apply([RemoveUser(ASKED, node.state.access.users["eve"].id)])
    goes_on.set()
    got = await asked
    assert (node.state.access.mode is Mode.OFF) == stays
    assert got.status == (200 if stays else 401)
