"""/v1/hot."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.hot_spots import WINDOW_MS, Window
from cluster.runtime.figures.heavy_hitters import Heavy
from statemachine.topics.topics import CreateTopic


@pytest.fixture
def hot(node: Any) -> None:
    node.apply([CreateTopic({"name": name}, True) for name in ("orders", "rest")])
    orders, rest = (node.state.topics[name].id for name in ("orders", "rest"))
    gone = 99
    queues = [Heavy((orders, 0), 600, 0), Heavy((rest, 2), 300, 100), Heavy((gone, 0), 90, 0), Heavy((orders, 1), 9, 9)]
    node.window = Window(WINDOW_MS, 0.9, 1_000, queues, [Heavy((orders, "k1"), 500, 0), Heavy((gone, "k2"), 100, 0)])


async def told(client: Any, **headers: str) -> Any:
    answer = await client.get("/v1/hot", headers=headers)
    assert answer.status == 200
    return await answer.json()


async def test_nothing_is_hot_where_no_message_comes(client: Any) -> None:
    found = await told(client)
    assert (found["window_ms"], found["topics"], found["queues"], found["keys"]) == (0, [], [], [])


@pytest.mark.usefixtures("hot")
async def test_topics_queues_and_keys_with_their_shares(client: Any) -> None:
    found = await told(client)
    assert (found["window_ms"], found["messages_per_s"]) == (WINDOW_MS, 200.0)
    assert [(each["topic"], each["share"], each["messages_per_s"]) for each in found["topics"]] == [
        ("orders", 0.6, 120.0),
        ("rest", 0.2, 40.0),
    ]
    assert [(each["topic"], each["queue_id"], each["share"]) for each in found["queues"]] == [
        ("orders", 0, 0.6),
        ("rest", 2, 0.2),
    ], "what may be a mistake of the sketch does not count, and a topic that is gone has no name"
    assert [(each["topic"], each["key"], each["share"]) for each in found["keys"]] == [("orders", "k1", 0.5)]


@pytest.mark.usefixtures("hot")
async def test_keys_are_told_to_those_who_may_read_the_topic(client: Any, node: Any) -> None:
    sees = node.add_user("sees", ("Cluster:*", ["Get"]))
    reads = node.add_user("reads", ("Cluster:*", ["Get"]), ("Topic:orders", ["Sub"]))
    node.add_user("root", is_super=True)
    node.set_mode("enforce")
    found = await told(client, Authorization=f"Bearer {sees}")
    assert (len(found["queues"]), found["keys"]) == (2, [])
    found = await told(client, Authorization=f"Bearer {reads}")
    assert [each["key"] for each in found["keys"]] == ["k1"]
