"""What a user with few rights learns from the HTTP API, and who a user with an odd name is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from yarl import URL

from tests.support.rows import each_row


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def hint_of(answer: Any) -> str:
    assert answer.status == 404
    hint: str = (await answer.json())["error"]["hint"]
    return hint


ASKED = [
    ("GET", "/v1/topics/payroll-202"),
    ("DELETE", "/v1/topics/payroll-202"),
    ("GET", "/v1/topics/payroll-202/messages/key"),
    ("GET", "/v1/topics/payroll-202/queues/0/messages"),
    ("GET", "/v1/groups/payroll-202"),
    ("DELETE", "/v1/groups/payroll-202"),
]


async def test_who_may_list_no_names_is_not_told_the_nearest(client: Any, node: Any) -> None:
    """Rights on a name that nothing has would otherwise tell what other users call theirs."""
    node.consistency = SimpleNamespace(fenced=False)
    root = bearer(node.add_user("root", is_super=True))
    lists = bearer(node.add_user("lists", ("*", ["All"])))
    few = bearer(node.add_user("few", ("Topic:payroll-202", ["All"]), ("Group:payroll-202", ["All"])))
    for kind in ("topics", "groups"):
        await client.post(f"/v1/{kind}", json={"name": "payroll-2026"})
    for method, path in ASKED:  # auth.mode off: everybody may list
        assert "payroll-2026" in await hint_of(await client.request(method, path)), (method, path)
    node.set_mode("enforce")
    for method, path in ASKED:
        assert "payroll-2026" not in await hint_of(await client.request(method, path, headers=few)), (method, path)
        for who in (root, lists):
            assert "payroll-2026" in await hint_of(await client.request(method, path, headers=who)), (method, path)


async def test_the_rules_of_a_user_who_is_called_test(client: Any, node: Any) -> None:
    """/v1/acl/test is an address of its own, and the rules of a user have theirs beside it."""
    root = bearer(node.add_user("root", is_super=True))
    node.add_user("test")
    rules = [{"resource": "Topic:orders", "actions": ["Pub"]}]
    assert (await client.put("/v1/acl/test", json={"rules": rules}, headers=root)).status == 200
    assert [rule["resource"] for rule in (await (await client.get("/v1/acl/test", headers=root)).json())["rules"]]
    asked = {"user": "test", "resource": "Topic:orders", "action": "Pub"}
    assert (await (await client.post("/v1/acl/test", json=asked, headers=root)).json())["allowed"]
    assert (await (await client.delete("/v1/acl/test", headers=root)).json())["rules"] == 0


@each_row(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/members/join", "GET,HEAD"),
        ("GET", "/v1/consistency/log", "POST"),
        ("PATCH", "/v1/acl/test", "DELETE,GET,HEAD,POST,PUT"),
    ],
)
async def test_other_methods_of_an_address_of_its_own(
    client: Any, node: Any, method: str, path: str, allowed: str
) -> None:
    answer = await client.request(method, path)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


@each_row("path", ["/v1/hot", "/v1/topics/a%2Fb%20c?dry_run=true"])
async def test_a_request_that_names_a_host_is_forwarded_to_the_leader(make_node: Any, serve: Any, path: str) -> None:
    """A proxy's form of a request, GET http://host/path: the host is none of its path."""
    leader = make_node(1)
    peers = [{"id": 1, "port": 1, "admin": f"127.0.0.1:{(await serve(leader)).port}"}, {"id": 2, "port": 2}]
    client = await serve(make_node(2, peers=peers))
    method = "DELETE" if "topics" in path else "GET"
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(f"{method} http://localhost{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    named = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    plain = await client.request(method, URL(path, encoded=True))
    assert named.startswith(f"HTTP/1.1 {plain.status} ")
    assert plain.status in (200, 404)
    assert named.endswith(await plain.text())
