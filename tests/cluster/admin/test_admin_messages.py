"""/v1/topics/{name}/messages/{key} and /v1/messages/{position}."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def places(node: Any) -> list[int]:
    node.consistency = SimpleNamespace(fenced=False)
    node.apply([["create_topic", {"name": "orders"}, True]])
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
