"""POST /v1/groups/{name}/reset."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.admin.forward import FOR_HEADER, HOPS_HEADER
from cluster.broker.services import PART_MAX
from cluster.peer.keyring import Keyring
from cluster.replication.outcome import Outcome
from statemachine.consuming.consumer_offsets import CommitOffsets, ResetOffsets
from statemachine.consuming.offset_resets import OffsetReset
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row


@pytest.fixture
def filled(node: Any) -> Any:
    """The group `billing` has consumed four of ten messages of queue 0."""
    node.apply([CreateTopic({"name": "a", "read_queues": 2, "write_queues": 2}, True)])
    node.add_group("billing", "a")
    node.add_messages("a", 0, 10)
    node.apply([CommitOffsets([("billing", 1, 0, 4)])])
    return node


async def reset(client: Any, name: str = "billing", **body: Any) -> tuple[int, Any]:
    answer = await client.post(f"/v1/groups/{name}/reset", json={"topic": "a", **body})
    return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        ({"to": "earliest"}, {0: 0, 1: 0}),
        ({"to": "latest"}, {0: 10, 1: 0}),
        ({"to": "time", "value": 1}, {0: 10, 1: 0}),
        ({"to": "time", "value": 0, "queue_id": 0}, {0: 0}),
        ({"to": "offset", "value": 7, "queue_id": 0}, {0: 7}),
    ],
)
async def test_where_it_goes(client: Any, filled: Any, body: dict[str, Any], offsets: dict[int, int]) -> None:
    status, answer = await reset(client, **body)
    assert status == 200
    queues = answer.pop("queues")
    assert answer == {"node": 1, "group": "billing", "topic": "a", "dry_run": False}
    assert {row["queue_id"]: row["offset"] for row in queues} == offsets
    assert filled.state.resets_of_group("billing") == {
        (1, queue): OffsetReset(offset, 0) for queue, offset in offsets.items()
    }


@pytest.mark.parametrize("to", [{"to": "latest"}, {"to": "time", "value": 1}])
async def test_many_queues_are_looked_at_in_many_turns_and_proposed_in_parts(
    client: Any, node: Any, to: dict[str, Any]
) -> None:
    count = 2 * PART_MAX + 1
    node.apply([CreateTopic({"name": "a", "read_queues": count, "write_queues": count}, True)])
    node.add_group("billing", "a")
    node.turns.share = 1
    asked = len(node.proposed)
    waited = list[bool]()
    node.turns.begun = lambda: waited.append(len(node.proposed) == asked)
    status, answer = await reset(client, **to)
    assert (status, len(answer["queues"])) == (200, count)
    sizes = [len(command.rows) for command in node.proposed if isinstance(command, ResetOffsets)]
    assert sizes == [PART_MAX, PART_MAX, 1]
    assert waited == [True], "not in the turn of the request"
    assert len(node.state.resets_of_group("billing")) == count


@pytest.mark.parametrize(
    ("where", "row"),
    [
        ({"to": "earliest"}, {"offset": 0, "before": 4, "again": 4, "skipped": 0}),
        ({"to": "latest"}, {"offset": 10, "before": 4, "again": 0, "skipped": 6}),
    ],
)
async def test_a_dry_run_counts_messages_and_changes_nothing(
    client: Any, filled: Any, where: dict[str, Any], row: dict[str, int]
) -> None:
    status, answer = await reset(client, queue_id=0, dry_run=True, **where)
    assert (status, answer["dry_run"], answer["queues"]) == (200, True, [{"queue_id": 0, **row}])
    assert (filled.state.offset("billing", 1, 0), filled.state.has_resets) == (4, False)
    status, answer = await reset(client, queue_id=0, **where)
    assert (answer["dry_run"], answer["queues"]) == (False, [{"queue_id": 0, **row}])


@each_row(
    ("name", "body", "status"),
    [
        ("billing", {"to": "time"}, 400),
        ("billing", {"to": "offset", "queue_id": 0}, 400),
        ("billing", {"to": "latest", "value": 1}, 400),
        ("billing", {"to": "offset", "value": 11, "queue_id": 0}, 400),
        ("billing", {"to": "offset", "value": 7}, 400),
        ("billing", {"to": "latest", "queue_id": 2}, 400),
        ("billing", {"to": "end"}, 400),
        ("billing", {"to": "offset", "value": 1 << 63, "queue_id": 0}, 400),
        ("billing", {"to": "latest", "topic": "none"}, 404),
        ("biling", {"to": "latest"}, 404),
    ],
)
async def test_what_is_refused(client: Any, filled: Any, name: str, body: dict[str, Any], status: int) -> None:
    assert (await reset(client, name, **body))[0] == status
    assert (filled.state.offset("billing", 1, 0), filled.state.has_resets) == (4, False)


@pytest.mark.parametrize(("fate", "status"), [(Outcome.FAIL, 503), (Outcome.UNKNOWN, 504)])
async def test_a_reset_that_is_not_decided(client: Any, filled: Any, fate: Outcome, status: int) -> None:
    filled.fate = fate
    assert (await reset(client, to="latest"))[0] == status


async def test_an_unconfirmed_leader(client: Any, filled: Any) -> None:
    filled.confirms = False
    assert (await reset(client, to="latest"))[0] == 503


async def test_a_reset_leaves_a_trace_of_who_asked_and_a_dry_run_none(
    client: Any, filled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cluster.runtime.events")
    await reset(client, to="offset", value=7, queue_id=0, dry_run=True)
    assert filled.events.kept() == []
    await reset(client, to="offset", value=7, queue_id=0)
    (event,) = filled.events.kept()
    says = "its offsets in 1 queues of a were reset to offset 7, asked for over HTTP by 127.0.0.1"
    assert (event.kind, event.object, event.says) == ("change", "group billing", says)
    assert f"group billing: {says}" in caplog.messages
    await client.delete("/v1/groups/billing")
    assert filled.events.kept()[-1].says.startswith("the group was deleted with its ")


@pytest.mark.parametrize("secret", [False, True])
async def test_a_deleted_topic_leaves_a_trace_of_who_asked_whichever_node_was_asked(
    client: Any, filled: Any, secret: bool
) -> None:
    """Without a secret nothing can be proven, and the trace shows what is told; with one, a header proves nothing."""
    if not secret:
        filled.keyring = Keyring()
    await client.delete("/v1/topics/a?dry_run=true")
    assert filled.events.kept() == []
    await client.delete("/v1/topics/a", headers={HOPS_HEADER: "1", FOR_HEADER: "10.0.0.7"})
    (event,) = filled.events.kept()
    who = "127.0.0.1" if secret else "10.0.0.7 by way of 127.0.0.1"
    says = f"the topic was deleted with its 10 messages, asked for over HTTP by {who}"
    assert (event.kind, event.object, event.says) == ("change", "topic a", says)
