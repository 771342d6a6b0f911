"""POST /v1/members/{id}/maintenance, and what everybody then says of the node."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.admin.findings.finding import Finding
from cluster.admin.findings.merge import merged
from cluster.admin.findings.watch import Memory
from cluster.runtime.findings import Condition
from statemachine.cluster_wide.settings import Maintenance
from tests.support.codes import KEYS


async def post(client: Any, node: Any, **body: Any) -> tuple[int, Any]:
    answer = await client.post(f"/v1/members/{node}/maintenance", json=body)
    return answer.status, await answer.json()


async def test_it_begins_and_ends_with_an_entry(client: Any, node: Any) -> None:
    status, view = await post(client, 2, author="ops", reason="a new disk")
    assert (status, view["id"], view["maintenance"], view["author"]) == (200, 2, True, "ops")
    assert node.state.settings.maintenance == {2: Maintenance(0, "ops", "a new disk")}
    members = await (await client.get("/v1/members")).json()
    assert [member["maintenance"] for member in members["members"]] == [False, True, False]
    found = (await (await client.get("/v1/health")).json())["findings"]
    (said,) = [each for each in found if each["code"] == "node_maintenance"]
    assert (said["object"], said["severity"]) == ("node 2", "info")
    assert "a new disk" in said["says"]
    status, view = await post(client, 2, maintenance=False)
    assert (status, view["maintenance"]) == (200, False)
    assert node.state.settings.maintenance == {}


async def test_a_second_node_is_refused_because_the_first_counts_as_away(client: Any, node: Any) -> None:
    await post(client, 2)
    status, answer = await post(client, 3)
    assert (status, answer["error"]["code"]) == (409, "refused")
    assert "node 2 is in maintenance" in answer["error"]["message"]
    may = await (await client.get("/v1/members/3/can-stop")).json()
    assert (may["allowed"], may["do_now"]) == (False, "raftmq node maintenance off 2")
    assert (await (await client.get("/v1/members/2/can-stop")).json())["allowed"], "it does not stand in its own way"
    assert (await post(client, 2, reason="still"))[0] == 200, "the first may say it again"


async def test_a_dry_run_changes_nothing(client: Any, node: Any) -> None:
    status, view = await post(client, 2, dry_run=True)
    assert (status, view["maintenance"], view["dry_run"]) == (200, False, True)
    assert node.state.settings.maintenance == {}


@pytest.mark.parametrize("member", [9, "x", 0])
async def test_who_is_no_member_is_refused(client: Any, member: Any) -> None:
    assert (await post(client, member))[0] in (400, 404)


def test_what_is_about_the_node_wakes_nobody() -> None:
    def found(code: str, about: str) -> Finding:
        (finding,) = Memory(1).note([Condition(KEYS[code], about, "as the test says")], 1, 0)
        return finding

    views = {
        1: [found("node_stopped", "node 2"), found("link_suspect", "link 1-2"), found("disk_slow", "node 1")],
        2: [],
    }
    severities = {(each.code, each.object): each.severity for each in merged(views, (1, 2, 3), {2: None})}
    assert severities == {
        ("node_stopped", "node 2"): "info",
        ("link_suspect", "link 1-2"): "info",
        ("disk_slow", "node 1"): "warning",
    }
