"""A topic that gets fewer queues: what that hides is counted everywhere, refused without `now`, and there again once
the topic has the queues again. An offset beyond the end of a queue is shown as what it is."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.groups.group_lag import each_lag
from cluster.broker.watches.group_watch import GroupWatch
from cluster.broker.watches.hidden_watch import HiddenWatch
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row

ORDERS = {"name": "orders", "if_exists": "update"}


@pytest.fixture
def orders(node: Any) -> None:
    """Four queues with ten messages each; the group billing has consumed queue 1, and half of queue 3."""
    node.apply([CreateTopic({"name": "orders", "read_queues": 4, "write_queues": 4}, True)])
    for queue_id in range(4):
        node.add_messages("orders", queue_id, 10)
    node.add_group("billing", "orders")
    node.apply([CommitOffsets([("billing", 1, 1, 10), ("billing", 1, 3, 5)])])


async def put(client: Any, **body: Any) -> tuple[int, Any]:
    answer = await client.post("/v1/topics", json=ORDERS | body)
    return answer.status, await answer.json()


async def get(client: Any, path: str) -> Any:
    return await (await client.get(path)).json()


@pytest.mark.usefixtures("orders")
async def test_fewer_queues_are_refused_if_that_hides_what_is_not_consumed(client: Any, node: Any) -> None:
    for asked, messages, queues in ((1, 15, "queues 1 to 3"), (2, 15, "queues 2 to 3"), (3, 5, "queue 3")):
        status, answer = await put(client, read_queues=asked)
        assert (status, answer["error"]["code"]) == (409, "refused")
        assert answer["error"]["message"].startswith(f"{messages} messages of topic orders that are not consumed lie")
        read = "queue 0" if asked == 1 else f"queues 0 to {asked - 1}"
        assert answer["error"]["message"].endswith(f"lie in {queues}, and consumers would read only {read}")
        assert "--now" in answer["error"]["hint"]
    assert node.state.topics["orders"].read_queues == 4
    node.apply([CommitOffsets([("billing", 1, 3, 10)])])
    status, answer = await put(client, queues=3)
    assert (status, answer["topic"]["read_queues"]) == (200, 3)


@pytest.mark.usefixtures("orders")
async def test_a_change_is_judged_without_being_made(client: Any, node: Any) -> None:
    """As each group of brokers is asked before the first one decides."""
    applied = node.state.applied
    for body, status, code in (
        ({"queues": 3}, 409, "refused"),
        ({"queues": 5}, 200, None),
        ({"queues": 1, "now": True}, 200, None),
        ({"queues": 1, "if_exists": "fail"}, 409, "exists"),
        ({"queues": 1, "name": "none"}, 404, "not_found"),
    ):
        answer = await client.post("/v1/topics?dry_run=true", json=ORDERS | body)
        told = await answer.json()
        assert (answer.status, told.get("error", {}).get("code")) == (status, code), body
        if code is None:
            assert (told["dry_run"], told["topic"]["read_queues"]) == (True, 4)
    assert node.state.applied == applied


@pytest.mark.usefixtures("orders")
async def test_every_group_that_reads_the_topic_counts(client: Any, node: Any) -> None:
    node.apply([CommitOffsets([("billing", 1, 3, 10)])])
    node.add_group("audit", "orders")
    status, answer = await put(client, queues=3)
    assert (status, answer["error"]["message"][:11]) == (409, "10 messages")
    node.apply([CommitOffsets([("audit", 1, 3, 99)])])
    assert (await put(client, queues=3))[0] == 200


async def test_what_no_group_reads_is_not_consumed(client: Any, node: Any) -> None:
    node.apply([CreateTopic({"name": "orders", "read_queues": 4, "write_queues": 4}, True)])
    node.add_messages("orders", 3, 7)
    status, answer = await put(client, queues=3)
    assert (status, answer["error"]["message"][:10]) == (409, "7 messages")


@pytest.mark.usefixtures("orders")
@each_row(
    "body",
    [{"queues": 5_000}, {"attributes": {"dedup": "maybe"}}, {"attributes": {"colour": "red"}}, {"write_queues": 1_025}],
)
async def test_a_change_that_cannot_be_is_not_said_to_be_one_that_would(client: Any, body: dict[str, Any]) -> None:
    """The answer to a dry run is the one that the change itself gets."""
    wanted = ORDERS | body
    told = [await client.post(f"/v1/topics{query}", json=wanted) for query in ("?dry_run=true", "")]
    assert [each.status for each in told] == [400, 400]
    assert (await told[0].json()) == (await told[1].json())


@pytest.mark.usefixtures("orders")
async def test_with_now_they_are_hidden_and_counted_and_more_queues_bring_them_back(client: Any) -> None:
    status, answer = await put(client, queues=1, now=True)
    assert (status, answer["topic"]["messages"], answer["topic"]["hidden"]) == (200, 40, 30)
    shown = await get(client, "/v1/topics/orders")
    assert (shown["topic"]["messages"], shown["topic"]["hidden"], shown["topic"]["bytes"]) == (40, 30, 40)
    assert [(queue["max_offset"], queue["hidden"]) for queue in shown["queues"]] == [(10, False), *[(10, True)] * 3]
    (listed,) = (await get(client, "/v1/topics"))["topics"]
    assert (listed["messages"], listed["hidden"]) == (40, 30)
    plan = await (await client.delete("/v1/topics/orders?dry_run=true")).json()
    assert (plan["topic"]["messages"], plan["topic"]["hidden"]) == (40, 30)
    group = await get(client, "/v1/groups/billing")
    assert (group["lag"], group["hidden"]) == (25, 15)
    assert [(row["lag"], row["hidden"]) for row in group["offsets"]] == [(10, False), (0, True), (10, True), (5, True)]
    (each,) = (await get(client, "/v1/groups"))["groups"]
    assert (each["lag"], each["hidden"]) == (25, 15)
    status, answer = await put(client, queues=4)
    assert (status, answer["topic"]["messages"], answer["topic"]["hidden"]) == (200, 40, 0)
    group = await get(client, "/v1/groups/billing")
    assert (group["lag"], group["hidden"]) == (25, 0)


@pytest.mark.usefixtures("orders")
async def test_pages_of_queues_end_behind_the_hidden_ones(client: Any) -> None:
    await put(client, queues=1, now=True)
    first = await get(client, "/v1/topics/orders?limit=2")
    rest = await get(client, f"/v1/topics/orders?limit=9&after={first['next']}")
    assert [each["queue_id"] for each in (*first["queues"], *rest["queues"])] == [0, 1, 2, 3]
    assert rest["next"] is None


@pytest.mark.usefixtures("orders")
async def test_an_import_hides_nothing_either(client: Any, node: Any) -> None:
    (topic,) = (await get(client, "/v1/metadata"))["topics"]
    fewer = {"topics": [topic | {"read_queues": 1}]}
    for dry_run in (True, False):
        answer = await client.post("/v1/metadata", json=fewer | {"dry_run": dry_run})
        assert (answer.status, (await answer.json())["error"]["message"][:11]) == (409, "15 messages")
    assert node.state.topics["orders"].read_queues == 4
    assert (await client.post("/v1/metadata", json=fewer | {"now": True})).status == 200
    assert node.state.topics["orders"].read_queues == 1
    told = await get(client, "/v1/metadata")
    assert told["ends"] == {"orders": [10, 10, 10, 10]}, "offsets in hidden queues can be imported"


@pytest.mark.usefixtures("orders")
def test_the_finding_names_the_number_and_the_command(node: Any) -> None:
    node.apply([CreateTopic({"name": f"t{at}", "read_queues": 1, "write_queues": 1}, True) for at in range(9)])
    assert list(HiddenWatch(node).look()) == []
    watch = HiddenWatch(node, steps_per_look=2)
    shrink = {"name": "orders", "read_queues": 1, "write_queues": 1}
    node.apply([CreateTopic(shrink, False)])
    looks = [list(watch.look()) for _ in range(20)]
    (condition,) = looks[-1]
    assert [] in looks, "topics are looked at in slices"
    assert (condition.code, condition.object) == ("messages_hidden", "topic orders")
    assert condition.says.startswith("15 messages of topic orders that are not consumed lie in queues 1 to 3, and")
    assert condition.do_now == "raftmq topic alter orders --queues 4"
    node.apply([CommitOffsets([("billing", 1, queue_id, 10) for queue_id in range(4)])])
    assert [list(watch.look()) for _ in range(20)][-1] == []
    node.apply([CommitOffsets([("billing", 1, 2, 1)])])
    assert [list(watch.look()) for _ in range(20)][-1]
    node.apply([DeleteTopic("orders")])
    assert list(watch.look()) == []


@pytest.mark.usefixtures("orders")
def test_only_the_leader_finds_hidden_messages(node: Any) -> None:
    node.apply([CreateTopic({"name": "orders", "read_queues": 1, "write_queues": 1}, False)])
    watch = HiddenWatch(node)
    assert list(watch.look())
    node.writes_open = lambda: False
    assert list(watch.look()) == []


@pytest.mark.usefixtures("orders")
def test_what_is_hidden_makes_no_group_stuck_or_without_consumers(node: Any) -> None:
    node.apply([CreateTopic({"name": "orders", "read_queues": 1, "write_queues": 1}, False)])
    node.apply([CommitOffsets([("billing", 1, 0, 10)])])
    assert sum(each.lag for each in each_lag(node.state, node.state.groups["billing"])) == 15
    assert list(node.group_watch.look(10 * node.config.health.queue_stuck_ms)) == []


# --- offsets beyond the end ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
async def test_an_offset_beyond_the_end_is_named(client: Any, node: Any) -> None:
    node.apply([CommitOffsets([("billing", 1, queue_id, 10) for queue_id in range(4)])])
    watch = GroupWatch(node, member_count=node.member_count, unread=node.unread, wall_ms=node.wall_ms)
    assert list(watch.look(0)) == []
    node.apply([CommitOffsets([("billing", 1, 2, 110)])])
    (condition,) = watch.look(0)
    assert (condition.code, condition.object) == ("offset_beyond_end", "queue orders/2 of billing")
    assert "group billing has committed offset 110 in queue 2 of orders, which ends at 10" in condition.says
    assert condition.do_now == "raftmq group reset billing --topic orders --queue 2 --to latest"
    assert condition.hold_ms, "ends of queues are published last"
    group = await get(client, "/v1/groups/billing")
    assert (group["lag"], group["beyond_end"]) == (0, 1)
    assert [row["beyond_end"] for row in group["offsets"]] == [0, 0, 100, 0]
    node.apply([CreateTopic({"name": "orders", "read_queues": 2, "write_queues": 2}, False)])
    (condition,) = watch.look(0)
    assert (condition.object, condition.do_now) == ("queue orders/2 of billing", "raftmq group describe billing")
    node.add_messages("orders", 2, 100)
    assert list(watch.look(0)) == []


@pytest.mark.usefixtures("orders")
async def test_a_reset_from_beyond_the_end_brings_no_message_again(client: Any, node: Any) -> None:
    node.apply([CommitOffsets([("billing", 1, 2, 110)])])
    body = {"topic": "orders", "to": "offset", "value": 8, "queue_id": 2, "dry_run": True}
    (row,) = (await (await client.post("/v1/groups/billing/reset", json=body)).json())["queues"]
    assert (row["before"], row["again"], row["skipped"]) == (110, 2, 0)


@pytest.mark.usefixtures("orders")
async def test_an_import_refuses_an_offset_beyond_the_end(client: Any, node: Any) -> None:
    good = {"group": "billing", "topic": "orders", "queue_id": 0, "offset": 10}
    for queue_id, offset in ((0, 11), (4, 1)):
        for dry_run in (True, False):
            body = {"offsets": [good, good | {"queue_id": queue_id, "offset": offset}], "dry_run": dry_run}
            answer = await client.post("/v1/metadata", json=body)
            assert answer.status == 409
            assert f"orders/{queue_id} lies beyond the end of the queue" in (await answer.json())["error"]["message"]
    assert node.state.offset("billing", 1, 0) is None
    assert (await client.post("/v1/metadata", json={"offsets": [good]})).status == 200
