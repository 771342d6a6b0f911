"""Health, status, metrics, leadership, failpoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cluster.admin.node_interface import NodeStatus
from cluster.repair.progress import InstallView
from raftlog.errors import NotLeaderError, ProposalDroppedError
from tests.support.codes import KEYS


async def test_status_is_what_the_node_says(client: Any, node: Any) -> None:
    answer = await client.get("/v1/status")
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert msgspec.json.decode(await answer.read(), type=NodeStatus) == node.status()
    assert (await answer.json())["schema"] == 1


async def test_a_healthy_node_may_have_warnings(client: Any) -> None:
    answer = await client.get("/v1/health")
    body = await answer.json()
    assert (answer.status, body["healthy"], body["reasons"]) == (200, True, [])
    assert body["warnings"] == ["node 2 is not connected"]


@pytest.mark.usefixtures("seeded")
async def test_ports_on_every_address_are_a_finding_and_healthy(client: Any, node: Any) -> None:
    """Containers bind so."""
    node.config = replace(node.config, admin=replace(node.config.admin, bind="0.0.0.0"))
    answer = await client.get("/v1/health")
    body = await answer.json()
    assert (answer.status, body["healthy"], body["reasons"]) == (200, True, [])
    (found,) = [each for each in body["findings"] if each["code"] == "ports_open"]
    assert found["severity"] == "info"
    assert "put these ports behind a firewall" in found["says"]
    assert (await client.get("/v1/health/ready")).status == 200


async def test_unhealthy_without_leader_or_after_a_failure(client: Any, node: Any, nobody: Any) -> None:
    node.leader = nobody
    node.failure = "fdatasync failed"
    answer = await client.get("/v1/health")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await answer.json())["reasons"] == [
        "the node has stopped taking part: fdatasync failed",
        "no leader is known in term 3",
    ]


async def test_unhealthy_until_writes_are_open(client: Any, node: Any) -> None:
    node.writes_open = lambda: False
    answer = await client.get("/v1/health")
    assert answer.status == 503
    assert "has not applied the first entry" in (await answer.json())["reasons"][0]


async def test_a_new_cluster_is_ready_once_it_has_its_configuration_and_level(
    client: Any, request: pytest.FixtureRequest
) -> None:
    answer = await client.get("/v1/health/ready")
    assert (answer.status, (await answer.json())["reasons"]) == (
        503,
        ["the cluster is new: its leader has not given it its first configuration yet"],
    )
    request.getfixturevalue("seeded")
    assert (await client.get("/v1/health/ready")).status == 200


@pytest.mark.usefixtures("seeded")
async def test_a_leader_whose_disk_refuses_sends_is_live_and_not_ready(client: Any, node: Any) -> None:
    assert (await client.get("/v1/health/ready")).status == 200
    own = node.status
    node.status = lambda: msgspec.structs.replace(own(), disk=SimpleNamespace(refusing=True, parked=""))
    answer = await client.get("/v1/health/ready")
    assert (answer.status, (await answer.json())["reasons"]) == (
        503,
        ["its disk is full: it refuses sends while it leads"],
    )
    assert (await client.get("/v1/health/live")).status == 200


@pytest.mark.usefixtures("seeded")
async def test_a_follower_that_catches_up_and_a_learner_are_live_and_not_ready(client: Any, node: Any) -> None:
    own, limit = node.status, node.config.health.follower_behind_entries

    async def reasons(**changed: Any) -> list[str]:
        node.status = lambda: msgspec.structs.replace(own(), **changed)
        answer = await client.get("/v1/health/ready")
        assert (await client.get("/v1/health/live")).status == 200
        body = await answer.json()
        assert (answer.status == 200) == body["ready"] == (not body["reasons"])
        return [reason.partition(" ")[2] for reason in body["reasons"]]

    assert await reasons(behind=limit - 1) == []
    (behind,) = await reasons(behind=limit)
    assert behind.startswith(f"catches up: {limit} committed entries are not applied here")
    assert await reasons(member="learner") == ["is a learner: it does not count in a majority"]
    for fetching in (InstallView(stage="state"), InstallView(stage="log"), InstallView(stage="restart")):
        assert await reasons(install=fetching) == ["fetches a copy of the state and the log from another node"]
    assert await reasons(install=InstallView(stage="backfill")) == []


async def test_alarms_are_shown_by_health_status_and_metrics(client: Any, node: Any) -> None:
    node.alarms.raise_alarm(KEYS["log_damage"], "positions 5 to 9 are damaged")
    answer = await client.get("/v1/health")
    body = await answer.json()
    assert (answer.status, "positions 5 to 9 are damaged" in body["warnings"]) == (200, True)
    assert [(alarm["key"], alarm["since_ms"]) for alarm in body["alarms"]] == [("log_damage", 1_700_000_000_000)]
    assert (await (await client.get("/v1/status")).json())["alarms"] == body["alarms"]
    assert 'raftmq_alarm{key="log_damage"} 1.0' in await (await client.get("/metrics")).text()
    node.alarms.raise_alarm(KEYS["log_damage"], "nothing is served", stops_service=True)
    answer = await client.get("/v1/health")
    assert (answer.status, (await answer.json())["reasons"]) == (503, ["nothing is served"])
    node.alarms.clear("log_damage")
    assert "raftmq_alarm{" not in await (await client.get("/metrics")).text()


async def test_metrics_show_the_state_of_this_moment(client: Any, node: Any) -> None:
    answer = await client.get("/metrics")
    text = await answer.text()
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in (
        "raftmq_raft_term 3.0",
        "raftmq_raft_role 3.0",
        "raftmq_raft_leader_id 1.0",
        f"raftmq_raft_last_index {float(node.status().last_index)}",
        'raftmq_peer_lag_entries{peer="2"} 12.0',
        "raftmq_connections 50.0",
        "raftmq_inflight_bytes 300.0",
        "raftmq_client_inflight_bytes 200.0",
        "rocketmq_topic_number 0.0",
    ):
        assert line in text.splitlines()
    node.leader = 2
    assert 'peer="2"' not in await (await client.get("/metrics")).text()


async def test_transfer(client: Any, node: Any) -> None:
    answer = await client.post("/v1/leader/transfer", json={"to": 2})
    assert await answer.json() == {"node": 1, "leader": 2, "term": 3, "index": node.state.applied.index}
    assert node.leader == 2


async def test_transfer_to_the_leader_itself_is_done_already(client: Any, node: Any) -> None:
    node.transfer = lambda to: pytest.fail("nothing to do")
    assert (await (await client.post("/v1/leader/transfer", json={"to": 1})).json())["leader"] == 1


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [(NotLeaderError("x"), 503, "not_leader"), (ProposalDroppedError("it lags"), 503, "failed")],
)
async def test_transfer_refused(client: Any, node: Any, refusal: Any, status: int, code: str) -> None:
    node.refuses_transfer = refusal
    answer = await client.post("/v1/leader/transfer", json={"to": 2})
    assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)


async def test_transfer_to_nobody(client: Any) -> None:
    answer = await client.post("/v1/leader/transfer", json={"to": 9})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (409, "refused")
    assert error["hint"] == "use one of 1, 2, 3; raftmq node list shows them"


async def test_transfer_that_does_not_finish_is_unknown(client: Any, node: Any) -> None:
    node.waits = node.waits._replace(transfer_min_s=0.01)
    node.config = msgspec.structs.replace(node.config, raft=msgspec.structs.replace(node.config.raft, tick_ms=1))
    node.transfer = lambda to: None
    answer = await client.post("/v1/leader/transfer", json={"to": 2})
    assert (answer.status, (await answer.json())["error"]["code"]) == (504, "unknown_outcome")


async def test_failpoints_that_are_off_explain_themselves(client: Any) -> None:
    for answer in (
        await client.get("/v1/failpoints"),
        await client.put("/v1/failpoints", json={"name": "apply.batch", "action": "hold"}),
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (404, "failpoints_off")
        assert "RAFTMQ_FAILPOINTS__ENABLED=true" in error["hint"]


async def test_failpoints(make_node: Any, serve: Any) -> None:
    node = make_node(2, failpoints__enabled=True)  # a follower: failpoints are about the node that is asked
    client = await serve(node)
    answer = await client.put("/v1/failpoints", json={"name": "apply.batch", "action": "slow:20x"})
    assert answer.status == 200
    listed = (await (await client.get("/v1/failpoints")).json())["failpoints"]
    assert {point["name"]: point["action"] for point in listed if point["action"] != "off"} == {
        "apply.batch": "slow:20x"
    }
    assert (await (await client.get("/v1/health")).json())["warnings"] == ["failpoint apply.batch is slow:20x"]
    answer = await client.put("/v1/failpoints", json={"name": "apply.batsh", "action": "off"})
    assert (answer.status, (await answer.json())["error"]["hint"]) == (400, "did you mean apply.batch?")


async def test_a_member_is_asked_about_itself_by_its_id(client: Any, node: Any) -> None:
    assert await (await client.get("/v1/members/1/status")).json() == await (await client.get("/v1/status")).json()
    answer = await client.get("/v1/members/9/status")
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")


async def test_reading_from_a_member_that_does_not_answer_leaves_nothing_unknown(client: Any) -> None:
    answer = await client.get("/v1/members/2/status")
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "leader_unreachable")
