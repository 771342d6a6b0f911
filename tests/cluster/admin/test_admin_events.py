"""/v1/events as a page and as a stream, /v1/clients."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from cluster.admin.handlers.events import STREAMS_MAX
from cluster.admin.node_interface import ClientGroup, ClientView
from cluster.runtime import logs
from tests.support.codes import KEYS
from tests.support.pace import at_most
from tests.support.rows import each_row


def fill(node: Any) -> None:
    for number in range(1, 6):
        node.events.note("election" if number == 3 else "link", "cluster", f"number {number}")


async def says(client: Any, query: str) -> list[int]:
    answer = await client.get(f"/v1/events{query}")
    assert answer.status == 200
    return [event["id"] for event in (await answer.json())["events"]]


async def test_pages_of_events(client: Any, node: Any) -> None:
    assert (await (await client.get("/v1/events")).json())["first_id"] == 0
    fill(node)
    assert await says(client, "") == [1, 2, 3, 4, 5]
    assert await says(client, "?limit=2") == [4, 5], "without since the newest"
    assert await says(client, "?since=3") == [4, 5]
    assert await says(client, "?since=5") == []
    assert await says(client, "?kind=election") == [3]
    assert await says(client, "?since=2023-11-14T22:13:20Z") == [1, 2, 3, 4, 5]
    assert await says(client, "?since=2023-11-14T22:13:21Z") == []
    page = await (await client.get("/v1/events?since=1&limit=2")).json()
    assert (page["last_id"], page["more"], page["first_id"]) == (3, True, 1)


@each_row("query", ["since=yesterday", "since=-1", "limit=0", "limit=1001", "limit=x", "kind=electoin"])
async def test_a_query_that_means_nothing_is_refused(client: Any, query: str) -> None:
    for path in ("/v1/events", "/v1/events/stream"):
        if not (path.endswith("stream") and "limit" in query):
            answer = await client.get(f"{path}?{query}")
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_query")


async def read_events(answer: Any, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(at_most(10)):
        while len(found) < count:
            line = (await answer.content.readline()).decode()
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
    return found


async def test_a_stream_goes_on_where_the_client_left_off(client: Any, node: Any) -> None:
    fill(node)
    answer = await client.get("/v1/events/stream?since=1", headers={"Last-Event-ID": "3"})
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert [event["id"] for event in await read_events(answer, 2)] == [4, 5]
    node.events.note("stall", "node 1", "it stood still")
    (event,) = await read_events(answer, 1)
    assert (event["id"], event["kind"], event["says"]) == (6, "stall", "it stood still")
    answer.close()


async def test_a_stream_without_since_begins_now(client: Any, node: Any) -> None:
    fill(node)
    answer = await client.get("/v1/events/stream?kind=stall")
    assert await answer.content.readline() == b": events\n"
    node.events.note("link", "link 1-2", "another kind")
    node.events.note("stall", "node 1", "it stood still")
    assert [event["id"] for event in await read_events(answer, 1)] == [7]
    answer.close()


async def test_only_so_many_streams(client: Any) -> None:
    streams = [await client.get("/v1/events/stream") for _ in range(STREAMS_MAX)]
    for stream in streams:
        await stream.content.readline()
    answer = await client.get("/v1/events/stream")
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "busy")
    for stream in streams:
        stream.close()


async def test_findings_are_events(client: Any, node: Any) -> None:
    node.alarms.raise_alarm(KEYS["disk_slow"], "appends are slow")
    await client.get("/v1/findings")
    node.alarms.clear("disk_slow")
    await client.get("/v1/findings")
    told = [(event.severity, event.says) for event in node.events.kept() if "disk_slow" in event.says]
    assert told == [("warning", "disk_slow: appends are slow"), ("info", "disk_slow has ended")]


def connected(address: str) -> ClientView:
    return ClientView(
        address=address,
        listener="broker",
        since="2023-11-14T22:13:20.000Z",
        language="JAVA",
        version=475,
        groups=[ClientGroup(name="orders", role="consumer", client_id="a@1")],
        received_bytes=10,
        sent_bytes=20,
        received_bytes_per_s=1.0,
        sent_bytes_per_s=2.0,
        unsent_bytes=0,
        inflight_bytes=0,
    )


async def test_clients_are_listed_and_disconnected(client: Any, node: Any) -> None:
    node.clients.connected = [connected("10.0.0.7:4000"), connected("[::1]:4001")]
    body = await (await client.get("/v1/clients")).json()
    assert (body["total"], [each["address"] for each in body["clients"]]) == (2, ["10.0.0.7:4000", "[::1]:4001"])
    assert body["clients"][0]["groups"] == [{"name": "orders", "role": "consumer", "client_id": "a@1"}]
    assert (await (await client.get("/v1/members/1/clients")).json())["total"] == 2
    answer = await client.delete("/v1/clients/10.0.0.7:4000")
    assert (answer.status, (await answer.json())["disconnected"]) == (200, True)
    assert (await client.delete("/v1/members/1/clients/[::1]:4001")).status == 200
    assert (await client.delete("/v1/clients/10.0.0.7:4000")).status == 404
    assert [event.kind for event in node.events.kept()] == ["client", "client"]


async def test_the_log_level_changes_while_the_node_runs(client: Any, node: Any) -> None:
    before = logs.level()
    try:
        answer = await client.put("/v1/log-level", json={"level": "debug"})
        assert await answer.json() == {"node": 1, "level": "debug", "configured": "info"}
        assert logging.getLogger("cluster.node.node").isEnabledFor(logging.DEBUG)
        await client.put("/v1/log-level", json={"level": "error"})
        assert not logging.getLogger("raftlog").isEnabledFor(logging.WARNING)
        assert (await (await client.get("/v1/log-level")).json())["level"] == "error"
        assert (await client.put("/v1/log-level", json={"level": "loud"})).status == 400
    finally:
        logs.set_level(before)
    assert [event.kind for event in node.events.kept()] == ["configuration", "configuration"]
