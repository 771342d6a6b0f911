"""/v1/groups."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cluster.admin.findings.watch import FindingsWatch
from cluster.admin.handler_request import Call
from cluster.admin.handlers.groups import list_groups
from cluster.admin.node_interface import MemberView
from cluster.broker.groups.group_lag import SERIES_MAX, LagMetrics
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.samples import samples


def fill(node: Any) -> None:
    node.apply([CreateTopic({"name": name, "read_queues": 2, "write_queues": 2}, True) for name in ("a", "b")])
    node.add_group("billing", "a")
    node.add_messages("a", 0, 10)
    node.add_messages("b", 1, 3)
    node.apply([CommitOffsets([("billing", 1, 0, 4), ("billing", 2, 1, 9)])])
    node.consumers["billing"] = [
        MemberView(client_id="c1", address="127.0.0.1:5", language="PYTHON", version=1, silent_ms=7)
    ]


async def test_list(client: Any, node: Any) -> None:
    fill(node)
    wrong = {"hidden": 0, "beyond_end": 1}  # in b, where it has committed 9 of 3
    group = {"name": "billing", "topics": ["a", "b"], "members": 1, "lag": 6, **wrong, "lag_ms": node.wall_ms()}
    assert await (await client.get("/v1/groups")).json() == {
        "node": 1,
        "consistency": "local",
        "applied_index": node.state.applied.index,
        "groups": [group],
        "next": None,
    }


async def test_commits_on_their_way_count_at_the_leader(client: Any, node: Any) -> None:
    """A group that has just caught up does not seem behind, as by remoting (208)."""
    fill(node)
    node.commits["billing"] = [("billing", 1, 0, 10)]
    lags = [
        (await (await client.get(f"/v1/groups/billing{query}")).json())["lag"]
        for query in ("", "?consistency=linearizable")
    ]
    assert lags == [6, 0]


async def test_others_are_served_while_many_groups_are_listed(node: Any) -> None:
    node.turns.share = 500
    names = [f"g{number:04}" for number in range(640)]
    node.apply([PutGroup({"name": name}, True) for name in names])
    listing = asyncio.ensure_future(list_groups(Call(node, FindingsWatch(node), {}, None, "local")))
    turns = 0
    while not listing.done():
        turns += 1
        await asyncio.sleep(0)
    assert [group["name"] for group in json.loads(b"".join(listing.result().parts))["groups"]] == names
    assert turns >= 10


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
    ] == [("a", 0, 4, 10, 6), ("a", 1, None, 0, 0), ("b", 1, 9, 3, 0)]
    assert group["lag"] == 6
    assert ([row["beyond_end"] for row in group["offsets"]], group["beyond_end"]) == ([0, 0, 6], 1)
    assert [row["owner"] for row in group["offsets"]] == ["c1", "c1", "c1"]
    assert [row["lag_ms"] for row in group["offsets"]] == [node.wall_ms(), 0, 0], "the messages are from 1970"
    node.idle["b"] = {"c1"}
    group = await (await client.get("/v1/groups/billing")).json()
    assert [row["owner"] for row in group["offsets"]] == ["c1", "c1", None], "it does not read what falls to it"


async def test_a_group_that_never_committed_lags_from_the_first_message_that_is_kept(client: Any, node: Any) -> None:
    fill(node)
    node.add_group("new", "a")
    group = await (await client.get("/v1/groups/new")).json()
    assert [(row["committed_offset"], row["lag"]) for row in group["offsets"]] == [(None, 10), (None, 0)]
    node.state.min_offset = lambda topic_id, queue: 7 if queue == 0 else 0
    group = await (await client.get("/v1/groups/new")).json()
    assert (group["offsets"][0]["lag"], group["lag"]) == (3, 3)
    listed = await (await client.get("/v1/groups")).json()
    assert {row["name"]: row["lag"] for row in listed["groups"]}["new"] == 3


async def test_lag_is_a_metric_of_the_leader(client: Any, node: Any) -> None:
    fill(node)
    node.add_group("new", "a")

    def figures(*, leads: bool, series_max: int = SERIES_MAX) -> dict[tuple[str, ...], float]:
        metrics = LagMetrics(node.state, lambda: leads, lambda: 10_000, series_max)
        for _ in metrics.look_in_steps():
            pass
        return {(name, *labels.values()): value for name, labels, value in samples(metrics)}

    assert figures(leads=True) == {
        ("rocketmq_consumer_lag_messages", "billing", "a"): 6,
        ("rocketmq_consumer_lag_messages", "billing", "b"): 0,
        ("rocketmq_consumer_lag_messages", "new", "a"): 10,
        ("raftmq_group_lag_messages", "billing"): 6,
        ("raftmq_group_lag_messages", "new"): 10,
        ("raftmq_group_queue_lag_messages", "billing", "a", "0"): 6,
        ("raftmq_group_queue_lag_messages", "new", "a", "0"): 10,
        ("rocketmq_consumer_lag_latency", "billing", "a"): 10_000,
        ("rocketmq_consumer_lag_latency", "billing", "b"): 0,
        ("rocketmq_consumer_lag_latency", "new", "a"): 10_000,
        ("raftmq_group_lag_left_out",): 0,
    }
    assert figures(leads=False) == {("raftmq_group_lag_left_out",): 0}
    assert figures(leads=True, series_max=2) == {
        ("rocketmq_consumer_lag_messages", "billing", "a"): 6,
        ("rocketmq_consumer_lag_messages", "billing", "b"): 0,
        ("raftmq_group_lag_messages", "billing"): 6,
        ("raftmq_group_queue_lag_messages", "billing", "a", "0"): 6,
        ("rocketmq_consumer_lag_latency", "billing", "a"): 10_000,
        ("rocketmq_consumer_lag_latency", "billing", "b"): 0,
        ("raftmq_group_lag_left_out",): 1,
    }
    text = await (await client.get("/metrics")).text()
    assert "raftmq_group_lag_left_out" in text


async def test_offsets_of_deleted_topics_are_not_shown(client: Any, node: Any) -> None:
    fill(node)
    node.apply([DeleteTopic("a")])
    group = await (await client.get("/v1/groups/billing")).json()
    assert [row["topic"] for row in group["offsets"]] == ["b"]


async def test_an_unknown_group_names_the_nearest(client: Any, node: Any) -> None:
    fill(node)
    answer = await client.get("/v1/groups/biling")
    assert (answer.status, (await answer.json())["error"]["hint"]) == (404, "did you mean billing?")
