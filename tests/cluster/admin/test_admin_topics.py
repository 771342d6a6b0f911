"""/v1/topics."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.name_rules import AUTO_CREATE_NAMES, FORBIDDEN_TOPICS, SYSTEM_TOPICS
from cluster.replication.outcome import Outcome
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row


async def create(client: Any, **body: Any) -> tuple[int, Any]:
    answer = await client.post("/v1/topics", json=body)
    return answer.status, await answer.json()


async def test_create_then_list_and_describe(client: Any, node: Any) -> None:
    status, made = await create(client, name="orders", queues=2, attributes={"dedup": "off"})
    assert (status, made["result"], made["term"], made["index"]) == (201, "created", 3, node.state.applied.index)
    node.add_messages("orders", 1, 5)
    listed = await (await client.get("/v1/topics")).json()
    topic = {
        "name": "orders",
        "id": 1,
        "read_queues": 2,
        "write_queues": 2,
        "perm": 6,
        "order": False,
        "attributes": {"dedup": "off"},
        "created_ms": None,
        "changed_ms": None,
        "changed_by": None,
        "groups": [],
        "queues_in_groups": [],
        "messages": 5,
        "hidden": 0,
        "evicted": 0,
        "bytes": 5,
        "bytes_exact": True,
    }
    applied = node.state.applied.index
    about = {"node": 1, "consistency": "local", "applied_index": applied, "bytes_applied_index": applied}
    assert listed == {**about, "topics": [topic], "next": None}
    detail = await (await client.get("/v1/topics/orders")).json()
    assert detail["topic"] == topic
    assert detail["queues"] == [
        {"queue_id": 0, "min_offset": 0, "max_offset": 0, "hidden": False},
        {"queue_id": 1, "min_offset": 0, "max_offset": 5, "hidden": False},
    ]


async def test_a_new_topic_has_the_configured_number_of_queues(client: Any) -> None:
    _, made = await create(client, name="orders")
    assert (made["topic"]["read_queues"], made["topic"]["write_queues"]) == (8, 8)


async def test_an_existing_topic_is_not_changed_unless_asked(client: Any, node: Any) -> None:
    await create(client, name="orders", queues=2)
    status, answer = await create(client, name="orders", queues=4)
    assert (status, answer["error"]["code"]) == (409, "exists")
    assert '"if_exists": "update"' in answer["error"]["hint"]
    status, answer = await create(client, name="orders", queues=4, if_exists="keep")
    assert (status, answer["result"], answer["topic"]["read_queues"]) == (200, "kept", 2)
    status, answer = await create(client, name="orders", write_queues=4, if_exists="update")
    assert (status, answer["result"]) == (200, "updated")
    assert (answer["topic"]["read_queues"], answer["topic"]["write_queues"]) == (2, 4)


async def test_delete(client: Any, node: Any) -> None:
    await create(client, name="orders")
    answer = await client.delete("/v1/topics/orders")
    body = await answer.json()
    assert (answer.status, body["result"], body["index"]) == (200, "deleted", node.state.applied.index)
    assert not node.state.topics
    answer = await client.delete("/v1/topics/orders")
    assert answer.status == 404


async def test_an_unknown_topic_names_the_nearest(client: Any) -> None:
    await create(client, name="orders")
    for method in ("get", "delete"):
        answer = await getattr(client, method)("/v1/topics/order")
        assert answer.status == 404
        assert (await answer.json())["error"] == {
            "code": "not_found",
            "message": "there is no topic order",
            "hint": "did you mean orders?",
        }


async def test_names_in_the_path_are_decoded(client: Any, node: Any) -> None:
    await create(client, name="%RETRY%billing")
    answer = await client.get("/v1/topics/%25RETRY%25billing")
    assert (await answer.json())["topic"]["name"] == "%RETRY%billing"


@each_row(
    ("body", "message", "hint"),
    [
        ({}, "field name is missing", "add it"),
        ({"nmae": "a"}, "unknown field nmae", "did you mean name?"),
        ({"name": 5}, "field name is not valid: expected str, got int", "correct it; nothing was changed"),
        ({"name": "a", "queues": 0}, "field queues is not valid: expected int >= 1", "correct it; nothing was changed"),
        (
            {"name": "a", "attributes": {"x": 1}},
            "field attributes[...] is not valid: expected str, got int",
            "correct it; nothing was changed",
        ),
        (
            {"name": "a", "if_exists": "x"},
            "field if_exists is not valid: invalid enum value 'x'",
            "correct it; nothing was changed",
        ),
    ],
)
async def test_wrong_bodies(client: Any, node: Any, body: Any, message: str, hint: str) -> None:
    status, answer = await create(client, **body)
    assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert (answer["error"]["message"], answer["error"]["hint"]) == (message, hint)
    assert node.proposed == []


async def test_what_no_topic_may_be_is_a_bad_field(client: Any, node: Any) -> None:
    status, answer = await create(client, name="a b")
    assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert "may hold only letters" in answer["error"]["message"]
    status, answer = await create(client, name="a", attributes={"dedup": "sometimes"})
    assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert "dedup cannot be sometimes" in answer["error"]["message"]
    for wrong in ({"queues": 1025}, {"perm": 8}, {"attributes": {"colour": "red"}}):
        status, answer = await create(client, name="a", **wrong)
        assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert not node.state.topics
    assert node.proposed == []


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS | FORBIDDEN_TOPICS))
async def test_system_topics_are_neither_created_nor_imported(client: Any, node: Any, name: str) -> None:
    status, answer = await create(client, name=name, if_exists="update")
    assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert answer["error"]["message"] == f"topic {name} is a system topic; choose another name"
    assert not node.state.topics
    record = {"name": name, "read_queues": 1, "write_queues": 1, "perm": 6, "order": False, "sys_flag": 0}
    answer = await client.post("/v1/metadata", json={"topics": [{**record, "attributes": {}}]})
    made_by_a_send = name in SYSTEM_TOPICS - FORBIDDEN_TOPICS - set(AUTO_CREATE_NAMES)
    assert (answer.status, name in node.state.topics) == ((200, True) if made_by_a_send else (409, False))


async def test_what_a_topic_has_already_is_not_judged_again(client: Any, node: Any) -> None:
    """A change over HTTP repeats it; a topic of an earlier release may have more than can be asked for now."""
    wide = {"read_queues": 2000, "write_queues": 2000, "attributes": {"colour": "red"}}
    node.apply([CreateTopic({"name": "wide", **wide}, True)])
    status, _ = await create(
        client, name="wide", queues=2000, attributes={"colour": "red", "dedup": "off"}, if_exists="update"
    )
    assert status == 200
    status, _ = await create(client, name="wide", queues=2001, if_exists="update")
    assert status == 400


@pytest.mark.parametrize(
    ("fate", "status", "code"), [(Outcome.FAIL, 503, "failed"), (Outcome.UNKNOWN, 504, "unknown_outcome")]
)
async def test_outcomes(client: Any, node: Any, fate: Outcome, status: int, code: str) -> None:
    node.fate = fate
    got, answer = await create(client, name="orders")
    assert (got, answer["error"]["code"]) == (status, code)
    assert "as the test wants it" in answer["error"]["message"]


async def test_the_configured_length_of_names(make_node: Any, serve: Any) -> None:
    node = make_node(1, limits__topic_length_max=6)
    client = await serve(node)
    assert (await create(client, name="orders"))[0] == 201
    status, answer = await create(client, name="orders2")
    assert (status, answer["error"]["code"]) == (400, "bad_field")
    assert set(node.state.topics) == {"orders"}


async def test_a_dry_run_of_a_deletion_deletes_nothing(client: Any, node: Any) -> None:
    await client.post("/v1/topics", json={"name": "a"})
    node.add_messages("a", 0, 3)
    answer = await client.delete("/v1/topics/a?dry_run=true")
    view = await answer.json()
    assert (answer.status, view["dry_run"], view["topic"]["messages"]) == (200, True, 3)
    assert "a" in node.state.topics
    assert (await client.delete("/v1/topics/a?dry_run=maybe")).status == 400
