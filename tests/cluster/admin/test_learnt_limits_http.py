"""/v1/quotas/learnt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from raftmq_wire.learnt_file import LearntFile, LearntOrigin, TopicLimits
from statemachine.access.learnt_limits import LearntHead, LearntMode, PutLearnt, SetLearnt, import_of
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.levels import LEVEL
from tests.support.rows import each_row

LATER_MS = 1 << 50


@pytest.fixture
def raised(node: Any) -> None:
    node.apply([Finalize(LEVEL)])


def made(node: Any, *topics: str, value: int = 7, **origin: Any) -> LearntFile:
    fields = {"cluster": node.status().cluster_id, "made_ms": 1, "first_ms": 1, "last_ms": 2, "expires_ms": LATER_MS}
    limits = {topic: TopicLimits([value] * 24, [value * 100] * 24) for topic in topics}
    return LearntFile(LearntOrigin(**{**fields, **origin}), limits)


async def put_part(client: Any, file: LearntFile, *topics: str, **fields: Any) -> tuple[int, Any]:
    rows = [{"topic": topic, "messages": file.topics[topic][0], "bytes": file.topics[topic][1]} for topic in topics]
    answer = await client.put(f"/v1/quotas/learnt/{file.digest}", json={"topics": rows, **fields})
    return answer.status, await answer.json()


async def put_head(client: Any, file: LearntFile, **fields: Any) -> tuple[int, Any]:
    origin = {name: getattr(file.origin, name) for name in file.origin.__struct_fields__}
    body = {"digest": file.digest, "origin": origin, "count": len(file.topics), **fields}
    answer = await client.put("/v1/quotas/learnt", json=body)
    return answer.status, await answer.json()


async def shown(client: Any) -> Any:
    answer = await client.get("/v1/quotas/learnt")
    assert answer.status == 200
    return await answer.json()


def put_in_force(node: Any, file: LearntFile, **fields: Any) -> None:
    rows = [(topic, each.messages, each.bytes) for topic, each in file.topics.items()]
    head = LearntHead(file.digest, len(rows), LearntMode.SHADOW, 1, 1, 2, LATER_MS, 3, "ann")._replace(**fields)
    node.apply([PutLearnt(import_of(file.digest), rows), SetLearnt(head.row())])


@pytest.mark.usefixtures("raised")
async def test_a_file_comes_in_parts_and_is_in_force_at_once(client: Any, node: Any) -> None:
    file = made(node, "a", "b")
    assert (await put_head(client, file, dry_run=True))[1]["changed"] is True
    assert (await put_part(client, file, "b", begins=True))[1]["there"] == 1
    status, told = await put_head(client, file)
    assert (status, told["error"]["code"]) == (409, "refused")
    assert told["error"]["message"].startswith("1 of 2 topics have come")
    assert (await shown(client))["in_force"] is None
    assert (await put_part(client, file, "a"))[1]["there"] == 2
    status, told = await put_head(client, file, mode="on", valid_days=3)
    assert (status, told["changed"]) == (200, True)
    found = (await shown(client))["in_force"]
    assert (found["digest"], found["topics"], found["mode"], found["expired"]) == (file.digest, 2, "on", False)
    assert found["ends_ms"] == node.services.log_time_ms() + 3 * 86_400_000
    answer = await client.delete("/v1/quotas/learnt?dry_run=true")
    assert ((await answer.json())["changed"], node.state.learnt.has_rows) == (True, True)
    assert (await (await client.delete("/v1/quotas/learnt")).json())["changed"] is True
    assert not node.state.learnt.has_rows
    assert (await (await client.delete("/v1/quotas/learnt")).json())["changed"] is False


@pytest.mark.usefixtures("raised")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_change_that_is_made_is_not_told_as_failed_because_of_what_another_file_left(
    client: Any, node: Any, method: str
) -> None:
    left, file = made(node, "left", "missing"), made(node, "a", value=8)
    await put_part(client, file, "a")
    await put_part(client, left, "left")

    def lose_the_majority(commands: list[Command]) -> None:
        node.fate = Outcome.FAIL

    node.before_apply = lose_the_majority  # what is proposed now is the last that is decided
    if method == "PUT":
        status, told = await put_head(client, file)
    else:
        answer = await client.delete("/v1/quotas/learnt")
        status, told = answer.status, await answer.json()
    assert (node.state.learnt.in_force is not None) == (method == "PUT")
    assert node.state.learnt.coming
    assert (status, told["error"]["code"]) == (504, "unknown_outcome")
    assert told["error"]["message"].startswith("a part of it was done: the limits ")


@pytest.mark.usefixtures("raised")
async def test_what_another_file_left_behind_goes(client: Any, node: Any) -> None:
    first, second = made(node, "a", "b"), made(node, "a", value=8)
    put_in_force(node, first)
    await put_part(client, made(node, "x", "y", value=9), "x")
    assert node.state.learnt.coming == 1
    await put_part(client, second, "a", begins=True)
    assert node.state.learnt.coming == 1
    await put_head(client, second)
    assert (node.state.learnt.coming, list(node.state.learnt.in_force.rows)) == (0, ["a"])


@pytest.mark.usefixtures("raised")
@pytest.mark.parametrize(
    ("origin", "fields", "status", "why"),
    [
        ({"cluster": "another"}, {}, 409, "the file was learnt from cluster another"),
        ({"expires_ms": 0}, {}, 409, "the file has expired"),
        ({}, {"digest": "f" * 64}, 409, "0 of 1 topics have come"),
        ({}, {"digest": "f" * 63}, 400, ""),
        ({}, {"count": 2}, 409, "1 of 2 topics have come"),
        ({"made_ms": 5}, {}, 409, "1 of 1 topics have come, or not as the file has them"),
        ({}, {"mode": "off"}, 400, ""),
        ({}, {"valid_days": 0}, 400, ""),
        ({}, {"valid_days": 367}, 400, ""),
    ],
)
async def test_files_that_are_not_taken(
    client: Any, node: Any, origin: Any, fields: Any, status: int, why: str
) -> None:
    file = made(node, "a")
    await put_part(client, file, "a")
    found = file._replace(origin=made(node, **origin).origin)
    digest = {"digest": file.digest} if "made_ms" in origin else {}
    was, told = await put_head(client, found, **{**digest, **fields})
    assert was == status
    assert told["error"]["message"].startswith(why)
    assert node.state.learnt.in_force is None


@pytest.mark.usefixtures("raised")
@each_row(
    "topics",
    [
        [],
        [{"topic": "a b", "messages": [1] * 24, "bytes": [1] * 24}],
        [{"topic": "a", "messages": [1] * 25, "bytes": [1] * 25}],
        [{"topic": "a", "messages": [1] * 24, "bytes": [-1] * 24}],
        [{"topic": "a", "messages": [1] * 24, "bytes": [2**63] * 24}],
        [{"topic": f"t{n}", "messages": [1] * 24, "bytes": [1] * 24} for n in range(65)],
    ],
)
async def test_parts_that_are_none(client: Any, node: Any, topics: Any) -> None:
    answer = await client.put(f"/v1/quotas/learnt/{'a' * 64}", json={"topics": topics})
    assert answer.status == 400
    answer = await client.put(
        "/v1/quotas/learnt/no", json={"topics": [{"topic": "a", "messages": [1] * 24, "bytes": [1] * 24}]}
    )
    assert answer.status == 400
    assert not node.state.learnt.has_rows


async def test_below_the_level_they_are_refused(client: Any, node: Any) -> None:
    file = made(node, "a")
    for status, told in (await put_part(client, file, "a"), await put_head(client, file, dry_run=True)):
        assert (status, told["error"]["code"]) == (409, "refused")
    assert (await client.delete("/v1/quotas/learnt")).status == 409
    assert node.proposed == []


@pytest.mark.usefixtures("raised")
async def test_topics_over_their_limits_are_shown(client: Any, node: Any) -> None:
    put_in_force(node, made(node, "a", "b", "c"), ends_ms=0)
    found = await shown(client)
    assert (found["in_force"]["expired"], found["topics"]) == (True, [])
    put_in_force(node, made(node, "a", "b", "c", value=8), mode=LearntMode.ON)
    node.learnt.look(1, 0, overloaded=False)
    a, b, none = [SimpleNamespace(name=name, topic_id=number) for number, name in enumerate(("a", "b", "none"), 1)]
    one = SimpleNamespace(body=b"x" * 5)
    sends = [
        SimpleNamespace(slot=a, batch=(one, one), body=b""),
        *[SimpleNamespace(slot=each, batch=(), body=b"x" * 10) for each in (b, none)],
    ]
    for at_ms in range(0, 30_000, 100):
        node.learnt.came(sends, at_ms)
    node.learnt.look(1, 30_000, overloaded=True)
    found = await shown(client)
    assert [(each["topic"], each["seen"], each["demoted"]) for each in found["topics"]] == [
        ("a", 600, True),
        ("b", 300, False),
    ]
    first, second = found["topics"]
    assert 250 < first["over"] < 320
    assert (second["over"], second["limit_messages"], second["limit_bytes"]) == (0, 8, 800)
    assert (found["seen"], found["over"]) == (900, first["over"])
    assert 15 < first["messages_per_s"] < 25
