"""/v1/quotas."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.admin.handlers.quotas import PER_REQUEST
from cluster.admin.request_parsing import BODY_BYTES_MAX
from statemachine.access.quotas import QUOTAS_MAX, ROWS_PER_COMMAND, SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row


@pytest.fixture
def raised(node: Any) -> None:
    node.apply([Finalize(LEVEL)])


async def put(client: Any, limits: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    rows = [{"subject": subject, "limits": given} for subject, given in limits.items()]
    answer = await client.put("/v1/quotas", json={"quotas": rows, **fields})
    return answer.status, await answer.json()


async def listed(client: Any, query: str = "") -> Any:
    answer = await client.get(f"/v1/quotas{query}")
    assert answer.status == 200
    return await answer.json()


@pytest.mark.usefixtures("raised")
async def test_quotas_are_set_listed_and_taken_away(client: Any, node: Any) -> None:
    node.apply([CreateTopic({"name": "orders"}, True)])
    one = {"send_messages": 5}
    status, told = await put(client, {"topic=orders": one, "topic=gone": one, "user=*": {"send_bytes": 9}})
    assert (status, told["changed"]) == (200, ["topic=orders", "topic=gone", "user=*"])
    found = (await listed(client))["quotas"]
    assert [(each["subject"], each["limits"], each["exists"]) for each in found] == [
        ("topic=gone", one, False),
        ("topic=orders", one, True),
        ("user=*", {"send_bytes": 9}, True),
    ]
    assert (await put(client, {"topic=orders": one}))[1]["changed"] == []
    answer = await client.delete("/v1/quotas/topic=gone?dry_run=true")
    assert (await answer.json())["changed"] == ["topic=gone"]
    assert "topic=gone" in node.state.quotas.by_subject
    assert (await client.delete("/v1/quotas/topic=gone")).status == 200
    assert sorted(node.state.quotas.by_subject) == ["topic=orders", "user=*"]
    status, told = await put(client, {"topic=orders": None, "user=*": {"send_bytes": 8}}, dry_run=True)
    assert (told["changed"], told["dry_run"]) == (["topic=orders", "user=*"], True)
    assert sorted(node.state.quotas.by_subject) == ["topic=orders", "user=*"]


async def test_the_list_comes_in_pages(client: Any, node: Any) -> None:
    node.apply([SetQuotas([(f"topic=t{n}", {"send_bytes": 1}) for n in range(5)], 1, "ann")])
    first = await listed(client, "?limit=3")
    assert ([each["subject"][6:] for each in first["quotas"]], first["next"]) == (["t0", "t1", "t2"], "topic=t2")
    last = await listed(client, "?limit=3&after=topic%3Dt2")
    assert ([each["subject"][6:] for each in last["quotas"]], last["next"]) == (["t3", "t4"], None)


@pytest.mark.usefixtures("raised")
@each_row(
    ("limits", "status", "says"),
    [
        ({"user": {"send_bytes": 1}}, 400, "'user' is no subject"),
        ({"user=a": {}}, 400, "user=a has no limit"),
        ({"user=a": {"send_bytes": 0}}, 400, "quotas[0].limits.send_bytes"),
        ({"user=a": {"send_bytes": 2**62}}, 400, "quotas[0].limits.send_bytes"),
        ({"user=a": {"sends": 1}}, 400, "sends"),
        ({"user=a": {"send_bytes": "1"}}, 400, "send_bytes"),
        ({"topic=t,user=a": {"send_bytes": 1}, "user=a,topic=t": {"send_bytes": 1}}, 400, "is there twice"),
        ({"x" * 401: {"send_bytes": 1}}, 400, "subject"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(
    client: Any, node: Any, limits: dict[str, Any], status: int, says: str
) -> None:
    found, told = await put(client, {"topic=t": {"send_bytes": 1}, **limits})
    assert found == status
    assert says.replace("[0]", "[1]") in told["error"]["message"]
    assert node.state.quotas.by_subject == {}


@pytest.mark.usefixtures("raised")
async def test_there_is_a_most_of_them(client: Any, node: Any) -> None:
    one = {"send_bytes": 1}
    others = [(f"topic=t{at}", one) for at in range(QUOTAS_MAX - 1)]
    for at in range(0, len(others), ROWS_PER_COMMAND):
        node.apply([SetQuotas(others[at : at + ROWS_PER_COMMAND], 0, "ann")])
    assert (await put(client, {"topic=a": one}))[0] == 200
    status, told = await put(client, {"topic=c": one})
    assert (status, told["error"]["message"]) == (409, f"a cluster has at most {QUOTAS_MAX} quotas")
    assert (await put(client, {"topic=a": None, "topic=c": one}))[0] == 200


@pytest.mark.usefixtures("raised")
async def test_ten_thousand_rules_come_in_several_requests(client: Any, node: Any) -> None:
    """A request with as many as are allowed fits into the largest body, and what is more names the limit."""
    usual = {"send_messages": 1_000_000, "send_bytes": 1_000_000_000}
    rows = {f"user=application-{number:05},topic=orders-of-{number:05}": usual for number in range(2 * PER_REQUEST)}
    status, told = await put(client, dict(list(rows.items())[:PER_REQUEST]))
    assert (status, len(told["changed"])) == (200, PER_REQUEST)
    short = {f"topic={number}": {"send_bytes": 1} for number in range(PER_REQUEST + 1)}
    status, told = await put(client, short)
    assert (status, told["error"]["code"]) == (400, "bad_field")
    assert str(PER_REQUEST) in str(told["error"])
    status, told = await put(client, rows)
    assert (status, told["error"]["code"]) == (413, "too_large")
    assert str(BODY_BYTES_MAX) in str(told["error"])
    assert len(node.state.quotas.by_subject) == PER_REQUEST


async def test_one_that_is_not_there_names_the_nearest(client: Any, node: Any) -> None:
    node.apply([SetQuotas([("topic=orders", {"send_bytes": 1})], 1, "ann")])
    answer = await client.delete("/v1/quotas/topic=order")
    assert answer.status == 404
    assert (await answer.json())["error"]["hint"] == "did you mean topic=orders?"


async def test_below_the_level_nothing_is_set(client: Any) -> None:
    status, told = await put(client, {"topic=a": {"send_bytes": 1}})
    assert (status, told["error"]["hint"]) == (409, "raftmq upgrade finalize")


async def test_topics_and_groups_over_http_take_from_the_quota_of_who_asks(client: Any, node: Any) -> None:
    node.apply([SetQuotas([("address=*", {"new_topics": 2, "new_groups": 1})], 1, "ann")])

    async def post(path: str, **body: Any) -> tuple[int, Any]:
        answer = await client.post(path, json=body)
        told = await answer.json()
        return answer.status, answer.headers.get("Retry-After") or told

    assert [(await post("/v1/topics", name=f"t{n}"))[0] for n in range(2)] == [201, 201]
    assert await post("/v1/topics", name="t2") == (429, "30")
    assert "t2" not in node.state.topics
    assert (await post("/v1/topics", name="t0", if_exists="keep"))[0] == 200
    assert (await post("/v1/groups", name="g"))[0] == 201
    assert await post("/v1/groups", name="h") == (429, "60")
    assert await post("/v1/groups/h/clone", source="g") == (429, "60")
    assert "h" not in node.state.groups
    found = await (await client.get("/v1/quotas/refused")).json()
    assert {each["limit"]: each["refused"] for each in found["owners"]} == {"new_topics": 1, "new_groups": 2}


@pytest.mark.usefixtures("raised")
async def test_a_limit_is_given_only_where_it_means_something(client: Any, node: Any) -> None:
    status, told = await put(client, {"user=a,topic=t": {"send_bytes": 1, "new_topics": 1}})
    assert (status, told["error"]["message"]) == (
        400,
        "quotas: new_topics cannot be a limit of user=a,topic=t: it may be given to user=NAME and address=IP",
    )
    assert node.state.quotas.by_subject == {}


async def test_who_is_over_one(client: Any, node: Any) -> None:
    node.apply([SetQuotas([("topic=*", {"send_messages": 1})], 1, "ann")])
    node.paced.look()
    for topic, refused in (("a", 1), ("b", 3), ("c", 0)):
        (bucket,) = node.paced.buckets.of(0, "10.0.0.1", topic, 0)
        for _ in range(refused):
            bucket.refuse(node.monotonic_ms())
    found = await (await client.get("/v1/quotas/refused")).json()
    assert [(each["owner"], each["subject"], each["limit"], each["refused"]) for each in found["owners"]] == [
        ("topic=b", "topic=*", "send_messages", 3),
        ("topic=a", "topic=*", "send_messages", 1),
    ]
    assert (found["waiting"], found["waiting_bytes"]) == (0, 0)
    (bucket,) = node.paced.buckets.of(0, "10.0.0.1", "c", 0)
    for at_ms in range(0, 12_000, 100):
        bucket.take(node.monotonic_ms() + at_ms, 2, 10)
    bucket.measure(12_000, 0)
    first, *others = (await (await client.get("/v1/quotas/refused")).json())["busiest"]
    assert (first["owner"], first["limit"], first["value"], first["asked_per_s"]) == (
        "topic=c",
        "send_messages",
        1,
        20.0,
    )
    assert (first["refused"], first["refused_ms_ago"]) == (0, None)
    assert [each["owner"] for each in others] == ["topic=a", "topic=b"]
