"""/v1/groups: groups are created, changed, cloned and deleted."""

from __future__ import annotations

from typing import Any

from cluster.broker.services import PART_MAX
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.topics.topics import CreateTopic


def fill(node: Any) -> None:
    node.apply([CreateTopic({"name": name, "read_queues": 2, "write_queues": 2}, True) for name in ("a", "b")])
    node.add_messages("a", 0, 10)
    node.add_group("billing", "a")
    node.apply([CommitOffsets([("billing", 1, 0, 4), ("billing", 2, 1, 0)])])


async def test_create_change_keep(client: Any, node: Any) -> None:
    made = await client.post("/v1/groups", json={"name": "new", "retry_max_times": 3})
    view = await made.json()
    assert (made.status, view["result"], view["retry_max_times"], view["consume_enable"]) == (201, "created", 3, True)
    assert node.state.groups["new"].retry_max_times == 3
    again = await client.post("/v1/groups", json={"name": "new", "retry_max_times": 5})
    assert (again.status, (await again.json())["error"]["code"]) == (409, "exists")
    kept = await client.post("/v1/groups", json={"name": "new", "retry_max_times": 5, "if_exists": "keep"})
    assert ((await kept.json())["result"], node.state.groups["new"].retry_max_times) == ("kept", 3)
    changed = await client.post("/v1/groups", json={"name": "new", "consume_enable": False, "if_exists": "update"})
    assert (changed.status, (await changed.json())["result"]) == (200, "updated")
    assert (node.state.groups["new"].retry_max_times, node.state.groups["new"].consume_enable) == (3, False)
    for bad in ({"name": "no spaces"}, {"name": "n", "retry_max_times": -2}, {"name": "n", "more": 1}):
        assert (await client.post("/v1/groups", json=bad)).status == 400


async def test_delete_says_first_what_goes(client: Any, node: Any) -> None:
    fill(node)
    planned = await (await client.delete("/v1/groups/billing?dry_run=true")).json()
    assert (planned["offsets"], planned["lag"], planned["dry_run"]) == (2, 6, True)
    assert "billing" in node.state.groups
    gone = await client.delete("/v1/groups/billing")
    view = await gone.json()
    assert (gone.status, view["result"], view["offsets"], view["dry_run"]) == (200, "deleted", 2, False)
    assert view["index"] == node.state.applied.index
    assert "billing" not in node.state.groups
    assert list(node.state.offsets_of_group("billing")) == []
    missing = await client.delete("/v1/groups/billing")
    assert (missing.status, (await missing.json())["error"]["code"]) == (404, "not_found")


async def test_a_clone_of_many_offsets_is_proposed_in_parts(client: Any, node: Any) -> None:
    count = 2 * PART_MAX + 1
    node.apply([CreateTopic({"name": "a", "read_queues": count, "write_queues": count}, False)])
    node.add_group("billing")
    node.apply([CommitOffsets([("billing", 1, queue, queue) for queue in range(count)])])
    cloned = await client.post("/v1/groups/audit/clone", json={"source": "billing"})
    assert len((await cloned.json())["offsets"]) == count
    sizes = [len(command.rows) for command in node.proposed if isinstance(command, CommitOffsets)]
    assert sizes == [PART_MAX, PART_MAX, 1]
    assert node.state.offsets_of_group("audit") == node.state.offsets_of_group("billing")


async def test_a_clone_has_the_offsets_of_the_other(client: Any, node: Any) -> None:
    fill(node)
    node.add_group("audit")
    node.apply([CommitOffsets([("audit", 1, 0, 9)])])
    body = {"source": "billing", "topic": "a"}
    planned = await (await client.post("/v1/groups/audit/clone", json={**body, "dry_run": True})).json()
    assert planned["offsets"] == [{"topic": "a", "queue_id": 0, "offset": 4, "before": 9}]
    assert list(node.state.offsets_of_group("audit")) == [(1, 0, 9)]
    cloned = await client.post("/v1/groups/audit/clone", json=body)
    assert (cloned.status, (await cloned.json())["dry_run"]) == (200, False)
    assert list(node.state.offsets_of_group("audit")) == [(1, 0, 4)]
    everything = await client.post("/v1/groups/fresh/clone", json={"source": "billing"})
    assert len((await everything.json())["offsets"]) == 2
    assert sorted(node.state.offsets_of_group("fresh")) == [(1, 0, 4), (2, 1, 0)]
    for body, status in (({"source": "none"}, 404), ({"source": "billing", "topic": "none"}, 404), ({}, 400)):
        assert (await client.post("/v1/groups/audit/clone", json=body)).status == status
    for dry_run in (True, False):
        wanted = {"source": "billing", "dry_run": dry_run}
        assert (await client.post("/v1/groups/no%20spaces/clone", json=wanted)).status == 400, "a plan is judged alike"
