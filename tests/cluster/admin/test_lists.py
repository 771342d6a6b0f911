"""Lists over HTTP come in pages: cheap ones, each bounded, and together everything once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.admin.handlers.groups import QUEUES_PER_PAGE
from cluster.admin.node_interface import MemberView
from cluster.admin.route import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.levels import LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic


async def pages_of(client: Any, path: str, field: str, query: str = "") -> list[Any]:
    """The lists of all pages."""
    found, after = [], ""
    while True:
        answer = await client.get(f"{path}?{query}{after}")
        body = await answer.read()
        assert answer.status == 200, body
        assert len(body) <= PAGE_BYTES_MAX + 100_000
        page = json.loads(body)
        found.append(page[field])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def add_topics(node: Any, count: int, **config: Any) -> list[str]:
    names = [f"t{number:05}" for number in range(count)]
    node.apply([CreateTopic({"name": name, "read_queues": 1, "write_queues": 1, **config}, True) for name in names])
    return names


async def test_all_topics_come_once_in_pages(client: Any, node: Any) -> None:
    names = add_topics(node, 2 * PAGE_ITEMS_MAX + 1)
    pages = await pages_of(client, "/v1/topics", "topics")
    assert [len(page) for page in pages] == [PAGE_ITEMS_MAX, PAGE_ITEMS_MAX, 1]
    assert [topic["name"] for page in pages for topic in page] == names
    pages = await pages_of(client, "/v1/topics", "topics", "limit=700&consistency=linearizable")
    assert [topic["name"] for page in pages for topic in page] == names
    assert [len(page) for page in pages] == [700, 700, 601]


async def test_a_page_of_long_topics_ends_when_its_json_is_full(client: Any, node: Any) -> None:
    names = add_topics(node, 40, attributes={f"a{n}": "\x01" * 4096 for n in range(4)})
    pages = await pages_of(client, "/v1/topics", "topics")
    assert len(pages) >= 4
    assert [topic["name"] for page in pages for topic in page] == names


async def test_a_page_goes_on_behind_a_topic_that_is_gone(client: Any, node: Any) -> None:
    names = add_topics(node, 30)
    first = await (await client.get("/v1/topics?limit=10")).json()
    node.apply([DeleteTopic(name) for name in names[5:15]])
    assert first["next"] == names[9]
    rest = await (await client.get(f"/v1/topics?after={first['next']}")).json()
    assert [topic["name"] for topic in rest["topics"]] == names[15:]


async def test_the_queues_of_a_topic_come_in_pages(client: Any, node: Any) -> None:
    node.apply([CreateTopic({"name": "wide", "read_queues": 2500, "write_queues": 1}, True)])
    pages = await pages_of(client, "/v1/topics/wide", "queues")
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [queue["queue_id"] for page in pages for queue in page] == list(range(2500))


async def test_all_groups_come_once_and_a_page_has_so_many_queues(client: Any, node: Any) -> None:
    count = QUEUES_PER_PAGE * 2 // 5
    node.apply([CreateTopic({"name": "wide", "read_queues": count, "write_queues": count}, True)])
    names = [f"g{number}" for number in range(7)]
    for name in names:
        node.add_group(name, "wide")
    pages = await pages_of(client, "/v1/groups", "groups")
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert [group["name"] for page in pages for group in page] == names


async def test_the_queues_of_a_group_come_in_pages_and_its_lag_is_of_all(client: Any, node: Any) -> None:
    node.apply([CreateTopic({"name": name, "read_queues": 4, "write_queues": 4}, True) for name in ("a", "b")])
    node.add_group("g", "a", "b")
    for queue in range(4):
        node.add_messages("b", queue, 5)
    pages = await pages_of(client, "/v1/groups/g", "offsets", "limit=3")
    queues = [(row["topic"], row["queue_id"]) for page in pages for row in page]
    assert queues == [(topic, queue) for topic in "ab" for queue in range(4)]
    assert (await (await client.get("/v1/groups/g?limit=1")).json())["lag"] == 20


async def test_members_of_a_group_are_counted_and_the_first_are_shown(client: Any, node: Any) -> None:
    node.apply([PutGroup({"name": "g"}, True)])
    node.consumers["g"] = [
        MemberView(client_id=f"c{n:05}", address="", language="", version=1, silent_ms=0) for n in range(1500)
    ]
    group = await (await client.get("/v1/groups/g")).json()
    assert (len(group["members"]), group["members_total"]) == (PAGE_ITEMS_MAX, 1500)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics?limit=0",
        "/v1/topics?limit=1001",
        "/v1/topics/t00000?after=x",
        "/v1/groups/g?after=x",
        "/v1/groups/g?after=a/",
    ],
)
async def test_pages_that_there_cannot_be(client: Any, node: Any, path: str) -> None:
    add_topics(node, 1)
    node.apply([PutGroup({"name": "g"}, True)])
    answer = await client.get(path)
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_query")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/topics/t{}0150x"), ("GET", "/v1/groups/t{}0150x"), ("DELETE", "/v1/quotas/topic=t{}0150x")],
)
async def test_a_name_that_is_not_there_is_compared_with_few_and_in_steps(
    client: Any, node: Any, method: str, path: str
) -> None:
    """Two long names take a third of a millisecond; whoever asks for names that are not there can ask again."""
    long = "of-a-shop-" * 10
    names = [f"t{long}{n:04}" for n in range(2000)]
    node.apply([Finalize(LEVEL)])
    node.apply([CreateTopic({"name": name}, True) for name in names])
    node.apply([PutGroup({"name": name}, True) for name in names])
    for at in range(0, len(names), 100):
        node.apply([SetQuotas([(f"topic={name}", {"send_bytes": 1}) for name in names[at : at + 100]], 1, "ann")])
    node.turns.spent_before.clear()
    answer = await (await client.request(method, path.format(long))).json()
    assert f"did you mean {path.rpartition('/')[2].format(long)[:-5]}" in answer["error"]["hint"]
    spent = node.turns.steps()
    assert 100 <= len(spent) <= 300
    assert 100 <= max(spent) <= 1_000


async def test_lists_are_made_in_steps_that_are_charged(client: Any, node: Any) -> None:
    """No step of any of them is longer than a tenth of a turn's share, whatever there is."""
    node.apply([CreateTopic({"name": "wide", "read_queues": 5000, "write_queues": 1}, True)])
    add_topics(node, 300)
    node.add_group("g", "wide")
    node.apply([CommitOffsets([("g", 1, queue, 0) for queue in range(0, 5000, 50)])])
    for path in ("/v1/topics", "/v1/topics/wide", "/v1/groups", "/v1/groups/g"):
        node.turns.spent_before.clear()
        await (await client.get(path)).read()
        spent = node.turns.steps()
        assert len(spent) >= 50, path
        assert max(spent) <= 2500, path
