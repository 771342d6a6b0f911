"""/v1/groups."""

from __future__ import annotations

from typing import Any

from cluster.admin.port import MemberView
from statemachine.commands import COMMIT_OFFSETS, CREATE_TOPIC, DELETE_TOPIC


def fill(node: Any) -> None:
    node.apply([[CREATE_TOPIC, {"name": name, "read_queues": 2, "write_queues": 2}, True] for name in ("a", "b")])
    node.add_group("billing", "a")
    node.add_messages("a", 0, 10)
    node.add_messages("b", 1, 3)
    node.apply([[COMMIT_OFFSETS, [["billing", 1, 0, 4], ["billing", 2, 1, 9]]]])
    node.consumers["billing"] = [
        MemberView(client_id="c1", address="127.0.0.1:5", language="PYTHON", version=1, silent_ms=7)
    ]


async def test_list(client: Any, node: Any) -> None:
    fill(node)
    assert await (await client.get("/v1/groups")).json() == {
        "node": 1,
        "consistency": "local",
        "applied_index": node.state.applied.index,
        "groups": [{"name": "billing", "topics": ["a", "b"], "members": 1, "lag": 6}],
    }


async def test_describe(client: Any, node: Any) -> None:
    fill(node)
    group = await (await client.get("/v1/groups/billing")).json()
    assert group["subscriptions"] == [{"topic": "a", "expression_type": "TAG", "expression": "*", "version": 1}]
    assert group["members"] == [
        {"client_id": "c1", "address": "127.0.0.1:5", "language": "PYTHON", "version": 1, "silent_ms": 7}
    ]
    assert [
        (row["topic"], row["queue_id"], row["committed_offset"], row["max_offset"], row["lag"])
        for row in group["offsets"]
    ] == [("a", 0, 4, 10, 6), ("a", 1, None, 0, None), ("b", 1, 9, 3, 0)]
    assert group["lag"] == 6


async def test_offsets_of_deleted_topics_are_not_shown(client: Any, node: Any) -> None:
    fill(node)
    node.apply([[DELETE_TOPIC, "a"]])
    group = await (await client.get("/v1/groups/billing")).json()
    assert [row["topic"] for row in group["offsets"]] == ["b"]


async def test_an_unknown_group_names_the_nearest(client: Any, node: Any) -> None:
    fill(node)
    answer = await client.get("/v1/groups/biling")
    assert (answer.status, (await answer.json())["error"]["hint"]) == (404, "did you mean billing?")
