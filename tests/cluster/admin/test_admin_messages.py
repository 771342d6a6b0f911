"""Stored messages: by key, by position, and a page of a queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.name_rules import check_queue
from cluster.broker.refusal import Reason, Refused
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row


@pytest.fixture
def places(node: Any) -> list[int]:
    node.consistency = SimpleNamespace(fenced=False)
    node.apply([CreateTopic({"name": "orders"}, True)])
    return [node.add_message("orders", body, keys) for body, keys in ((b"one", "k1 red"), (b"\xff", "k2 red"))]


async def get(client: Any, path: str) -> tuple[int, Any]:
    answer = await client.get(path)
    return answer.status, await answer.json()


async def test_by_key(client: Any, node: Any, places: list[int]) -> None:
    status, found = await get(client, "/v1/topics/orders/messages/red")
    assert (status, found["consistency"], found["more"]) == (200, "local", False)
    assert found["applied_index"] == node.state.applied.index
    assert [one["position"] for one in found["messages"]] == places[::-1]
    binary, text = found["messages"]
    assert (binary["body_base64"], text["body"]) == ("/w==", "one")
    assert "body" not in binary
    assert text["properties"] == {"KEYS": "k1 red"}
    assert text["id"].endswith(f"{places[0]:016X}")
    assert (await get(client, "/v1/topics/orders/messages/blue"))[1]["messages"] == []
    status, found = await get(client, "/v1/topics/orders/messages/k1?consistency=linearizable")
    assert (status, len(found["messages"]), node.reads_confirmed) == (200, 1, 1)


async def test_by_position(client: Any, places: list[int]) -> None:
    status, found = await get(client, f"/v1/messages/{places[0]}")
    assert (status, found["message"]["body"], found["message"]["queue_offset"]) == (200, "one", 0)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/messages/1", 404, "not_found"),
        ("/v1/messages/x", 400, "bad_field"),
        ("/v1/messages/-1", 400, "bad_field"),
        (f"/v1/messages/{10**18}", 404, "not_found"),
        ("/v1/topics/order/messages/k1", 404, "not_found"),
    ],
)
async def test_what_is_not_there(client: Any, places: list[int], path: str, status: int, code: str) -> None:
    got, answer = await get(client, path)
    assert (got, answer["error"]["code"]) == (status, code)


async def test_bytes_that_have_changed_are_not_shown(client: Any, node: Any, places: list[int]) -> None:
    node.log[places[0] + 92] ^= 1
    status, answer = await get(client, "/v1/topics/orders/messages/k1")
    assert (status, answer["error"]["code"]) == (503, "failed")
    assert str(places[0]) in answer["error"]["message"]
    assert (await get(client, f"/v1/messages/{places[0]}"))[0] == 404


async def test_a_node_whose_rows_are_wrong_shows_no_messages(client: Any, node: Any, places: list[int]) -> None:
    node.consistency.fenced = True
    for path in ("/v1/topics/orders/messages/k1", f"/v1/messages/{places[0]}"):
        status, answer = await get(client, path)
        assert (status, answer["error"]["code"]) == (503, "failed")


# --- a page of a queue -----------------------------------------------------------------------------------------------

QUEUE = "/v1/topics/orders/queues/0/messages"


@pytest.fixture
def many(node: Any) -> list[int]:
    node.consistency = SimpleNamespace(fenced=False)
    node.apply([CreateTopic({"name": "orders"}, True)])
    return [node.add_message("orders", f"body {n}".encode(), f"k{n}") for n in range(40)]


async def test_the_newest_of_a_queue(client: Any, node: Any, many: list[int]) -> None:
    status, page = await get(client, QUEUE)
    assert (status, page["applied_index"], page["min_offset"], page["max_offset"]) == (
        200,
        node.state.applied.index,
        0,
        40,
    )
    assert [one["queue_offset"] for one in page["messages"]] == list(range(8, 40))
    assert [one["position"] for one in page["messages"]] == many[8:]
    assert (page["next_offset"], page["unreadable"]) == (40, [])


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("offset=3&count=2", [3, 4], 5),
        ("offset=38", [38, 39], 40),
        ("offset=40", [], 40),
        ("offset=4000", [], 40),
        ("count=1", [39], 40),
        ("count=0&offset=3", [], 3),
        ("time_ms=7&count=2", [0, 1], 2),
        ("time_ms=8", [], 40),
        ("time_ms=7&offset=39", [39], 40),
        ("time_ms=8&offset=1", [], 40),
    ],
)
async def test_where_a_page_begins(
    client: Any, many: list[int], query: str, offsets: list[int], next_offset: int
) -> None:
    status, page = await get(client, f"{QUEUE}?{query}")
    assert (status, [one["queue_offset"] for one in page["messages"]], page["next_offset"]) == (
        200,
        offsets,
        next_offset,
    )


async def test_the_next_page_is_of_the_same_topic(client: Any, node: Any, many: list[int]) -> None:
    page = (await get(client, f"{QUEUE}?offset=0&count=3"))[1]
    following = f"{QUEUE}?offset={page['next_offset']}&counted_in={page['counted_in']}"
    assert [one["queue_offset"] for one in (await get(client, following))[1]["messages"]][:2] == [3, 4]
    node.apply([DeleteTopic("orders"), CreateTopic({"name": "orders"}, True)])
    for _ in range(5):
        node.add_message("orders", b"new", "k")
    status, error = await get(client, following)
    assert (status, error["error"]["code"]) == (409, "refused")
    assert "offset 3 means nothing in topic orders: it counts in the topic with id" in error["error"]["message"]
    assert len((await get(client, f"{QUEUE}?offset=0"))[1]["messages"]) == 5
    status, error = await get(client, f"{QUEUE}?offset=3&counted_in=orders")
    assert (status, error["error"]["code"]) == (400, "bad_query")


async def test_long_bodies_are_cut_where_the_request_says_so(client: Any, node: Any, places: list[int]) -> None:
    text = "ä<script>alert(1)</script>"
    position = node.add_message("orders", text.encode(), "k3")
    for path in (f"{QUEUE}?offset=2&body_bytes=1", "/v1/topics/orders/messages/k3?body_bytes=1"):
        (message,) = (await get(client, path))[1]["messages"]
        assert (message["body"], message["body_bytes"], message["body_cut"]) == ("", len(text.encode()), True)
    whole = (await get(client, f"/v1/messages/{position}"))[1]["message"]
    assert (whole["body"], whole["body_bytes"], "body_cut" in whole) == (text, len(text.encode()), False)
    (binary,) = (await get(client, f"{QUEUE}?offset=1&count=1&body_bytes=0"))[1]["messages"]
    assert (binary["body_base64"], binary["body_bytes"], binary["body_cut"]) == ("", 1, True)


async def test_a_message_that_cannot_be_read_does_not_hide_the_others(client: Any, node: Any, many: list[int]) -> None:
    node.log[many[2] + 92] ^= 1
    page = (await get(client, f"{QUEUE}?offset=1&count=3"))[1]
    assert ([one["queue_offset"] for one in page["messages"]], page["unreadable"], page["next_offset"]) == (
        [1, 3],
        [2],
        4,
    )


@each_row(
    ("path", "status", "code"),
    [
        (f"{QUEUE}?offset=-1", 400, "bad_query"),
        (f"{QUEUE}?count=33", 400, "bad_query"),
        (f"{QUEUE}?time_ms=x", 400, "bad_query"),
        ("/v1/topics/orders/queues/x/messages", 400, "bad_field"),
        ("/v1/topics/orders/queues/900/messages", 404, "not_found"),
        ("/v1/topics/order/queues/0/messages", 404, "not_found"),
    ],
)
async def test_pages_that_are_not_there(client: Any, many: list[int], path: str, status: int, code: str) -> None:
    got, answer = await get(client, path)
    assert (got, answer["error"]["code"]) == (status, code)


async def test_a_queue_that_is_not_there_is_refused_as_on_the_clients_ports(
    client: Any, node: Any, many: list[int]
) -> None:
    queues = node.state.stored_queues(node.state.topics["orders"])
    _, answer = await get(client, f"/v1/topics/orders/queues/{queues}/messages")
    with pytest.raises(Refused) as refused:
        check_queue(node.state, node.state.topics["orders"], queues)
    assert refused.value.reason is Reason.NO_QUEUE
    assert (
        answer["error"]["message"] == refused.value.remark == f"topic orders has queues 0 to {queues - 1}, not {queues}"
    )


async def test_a_fenced_node_shows_no_page(client: Any, node: Any, many: list[int]) -> None:
    node.consistency = SimpleNamespace(fenced=True)
    assert (await get(client, QUEUE))[0] == 503
