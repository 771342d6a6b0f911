"""?broker_group=2: any node answers for another group of brokers, by asking it. The node there judges again, and what
is not for other groups is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from cluster.admin.forward import HOPS_HEADER
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.routes import ROUTES
from cluster.admin.server import build_app
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.placement.route_map import RouteMap
from cluster.requests.verb import Serves
from raftlog.types import NodeId
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.topics.topics import CreateTopic
from tests.cluster.admin.conftest import FakeNode
from tests.cluster.admin.test_names_of_further_groups import second as second

ADMIN = {"Content-Type": "application/json"}


@pytest.fixture
async def pair(second: FakeNode) -> AsyncIterator[tuple[FakeNode, FakeNode, Any]]:
    """Node 1 of the first group, node 2 of the second, which leads and whose node 1 is down, and a client of the
    former."""
    first = FakeNode(1)
    second.leader = second.config.node_id
    async with TestServer(build_app(second)) as server:  # type: ignore[arg-type]
        down, up = "127.0.0.1:1", f"127.0.0.1:{server.port}"
        members = [GroupMember(1, "127.0.0.1", 1, up, {}), GroupMember(2, "127.0.0.1", 2, down, {})]
        record = GroupRecord(2, "raftmq-g02", Epoch(3, 0), 1, members, [2])
        records = {2: record}
        first.routes = RouteMap(first.routes.own, lambda: records)
        first.records = records  # type: ignore[attr-defined]
        async with TestClient(TestServer(build_app(first))) as client:  # type: ignore[arg-type]
            yield first, second, client


async def told(client: Any, path: str, **asked: Any) -> tuple[int, dict[str, Any]]:
    answer = await client.request(asked.pop("method", "GET"), path, **asked)
    return answer.status, await answer.json()


async def told_in_time(client: Any, path: str) -> tuple[int, dict[str, Any]]:
    """The same of a question that is asked again: on a busy machine a connection may take longer than a node waits."""
    for _ in range(10):
        status, answer = await told(client, path)
        if status != 503 or answer["error"]["code"] != "leader_unreachable":
            break
    return status, answer


async def test_a_node_answers_for_another_group(pair: Any) -> None:
    first, second, client = pair
    for node, name in ((first, "here"), (second, "there")):
        node.apply([CreateTopic({"name": name}, True)])
    for group, name in ((1, "here"), (2, "there")):
        status, answer = await told(client, f"/v1/topics?limit=5&broker_group={group}")
        assert (status, [topic["name"] for topic in answer["topics"]]) == (200, [name])
        status, answer = await told(client, f"/v1/status?broker_group={group}")
        assert (status, answer["group"]) == (200, group)
    _, confirmed = await told(client, "/v1/topics?consistency=linearizable&broker_group=2")
    assert confirmed["consistency"] == "linearizable"
    status, health = await told(client, "/v1/health?broker_group=2")
    assert (status, health["group"]) == (200, 2)
    second.failure = "its disk"
    assert (await told(client, "/v1/health?broker_group=2"))[0] == 503, "the status is that of the other group's node"


async def test_a_member_of_another_group_answers_about_itself(pair: Any) -> None:
    _, _, client = pair
    status, answer = await told(client, "/v1/members/1/status?broker_group=2")
    assert (status, answer["group"], answer["node"]) == (200, 2, 1)
    status, answer = await told(client, "/v1/members/2/status?broker_group=2")
    assert (status, answer["error"]["code"]) == (503, "leader_unreachable")
    assert answer["error"]["message"].startswith("node 2/2 ")
    status, answer = await told(client, "/v1/members/9/status?broker_group=2")
    assert (status, answer["error"]["code"]) == (503, "unreachable")


async def test_a_change_is_made_in_the_group_that_is_named(pair: Any) -> None:
    first, second, client = pair
    body = b'{"name": "orders"}'
    status, _ = await told(client, "/v1/topics?broker_group=2", method="POST", data=body, headers=ADMIN)
    assert status == 201
    assert "orders" in second.state.topics
    assert "orders" not in first.state.topics


async def test_who_does_not_answer_is_asked_for_nothing_twice(pair: Any) -> None:
    first, second, client = pair
    first.records[2] = GroupRecord(2, "raftmq-g02", Epoch(4, 0), 2, first.records[2].members)  # the leader is down
    second.leader = NodeId(2)
    status, answer = await told_in_time(client, "/v1/status?broker_group=2")
    assert (status, answer.get("node")) == (200, 1), f"a question goes to another member: {answer}"
    status, answer = await told(
        client, "/v1/topics?broker_group=2", method="POST", data=b'{"name": "a"}', headers=ADMIN
    )
    assert (status, answer["error"]["code"]) == (503, "leader_unreachable"), "a change does not"
    assert answer["error"]["message"].startswith("node 2/2 cannot be reached")


@pytest.mark.parametrize(
    ("group", "code", "status"),
    [("3", "not_found", 404), ("0", "bad_query", 400), ("65", "bad_query", 400), ("x", "bad_query", 400)],
)
async def test_a_group_that_is_none_is_refused(pair: Any, group: str, code: str, status: int) -> None:
    *_, client = pair
    found, answer = await told(client, f"/v1/status?broker_group={group}")
    assert (found, answer["error"]["code"]) == (status, code)


async def test_a_request_is_passed_on_once(pair: Any) -> None:
    *_, client = pair
    status, answer = await told(client, "/v1/status?broker_group=2", headers={HOPS_HEADER: "1"})
    assert (status, answer["error"]["code"]) == (503, "unreachable")


async def test_the_other_group_judges_the_user_whom_the_node_names(pair: Any) -> None:
    first, second, client = pair
    for node in (first, second):
        node.add_user("root", is_super=True)
        node.set_mode("enforce")
    status, answer = await told(client, "/v1/status?broker_group=2")
    assert (status, answer["error"]["code"]) == (401, "unauthenticated")
    first.set_mode("off")
    status, answer = await told(
        client, "/v1/topics?broker_group=2", method="POST", data=b'{"name": "a"}', headers=ADMIN
    )
    assert status in (401, 403), "what the first one allows, the other one judges by its own rows"


async def test_the_groups_are_listed_with_their_nodes(pair: Any) -> None:
    first, _, client = pair
    first.apply([AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3))])
    first.apply([AddBrokerGroup(3, "raftmq-g03", None)])
    _, answer = await told(client, "/v1/broker-groups")
    assert (answer["group"], answer["leader"], answer["writes_open"]) == (1, 1, True)
    own, other, unheard = answer["groups"]
    assert (own["leader"], [each["id"] for each in own["members"]]) == (1, [1, 2, 3])
    assert [each["away"] for each in own["members"]] == [False, True, False]
    assert (other["leader"], [(each["id"], each["away"]) for each in other["members"]]) == (1, [(1, False), (2, True)])
    assert other["members"][0]["admin"].startswith("127.0.0.1:")
    assert (unheard["group"], unheard["leader"], unheard["members"]) == (3, None, [])


def test_secrets_streams_and_what_is_open_are_of_the_node_that_is_asked() -> None:
    of_any = {(route.method, route.path) for route in ROUTES if route.of_any_group and BROKER_GROUP in route.query}
    assert {("GET", "/v1/status"), ("GET", "/v1/members/{id}/events"), ("POST", "/v1/leader/transfer")} <= of_any
    apart = [route for route in ROUTES if (route.method, route.path) not in of_any]
    for route in apart:
        assert route.needs.is_open or route.streams or route.serves is Serves.LEADER_ALONE or route.path == "/metrics"
    assert {"/v1/session", "/v1/events/stream", "/v1/health/live"} <= {route.path for route in apart}
