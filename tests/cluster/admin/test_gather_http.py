"""`POST /v1/topics` with `gather`: a topic takes new messages in fewer groups of brokers (docs/adr/0114)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.topics import SPREAD_HOME
from statemachine.cluster_wide.broker_groups import DrainBrokerGroup
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.cluster.admin.conftest import Serve
from tests.cluster.admin.test_drains_http import SecondGroup, ask
from tests.statemachine.conftest import LogBuilder

PATH = "/v1/topics"
WISH = {"name": "both", "groups": [1], "move_keys": True, "gather": True}


@pytest.fixture
def node() -> SecondGroup:
    made = SecondGroup(LogBuilder, GATHERS_LEVEL)
    config = {"name": "both", "place": [[1, 2, 2], [2, 3, 3], [3, 2, 2]], "attributes": {SPREAD_HOME: "1"}}
    made.apply([CreateTopic(config, False)])
    return made


async def post(node: SecondGroup, serve: Serve, path: str = PATH, **body: Any) -> tuple[int, dict[str, Any]]:
    return await ask(await serve(node), "POST", path, **(WISH | body))


async def test_queues_in_other_groups_are_only_read(node: SecondGroup, serve: Serve) -> None:
    status, told = await post(node, serve, f"{PATH}?dry_run=true")
    assert (status, told["dry_run"], told["topic"]["write_queues"]) == (200, True, 3)
    status, told = await post(node, serve)
    assert (status, told["result"], told["dry_run"]) == (200, "updated", False)
    assert [(row["group"], row["read_queues"], row["write_queues"]) for row in told["topic"]["queues_in_groups"]] == [
        (1, 2, 2),
        (2, 3, 0),
        (3, 2, 0),
    ]
    assert told["topic"]["attributes"] == {}, "a person has said where it is"
    before = node.first.state.truth_journal.version
    assert (await post(node, serve))[0] == 200, "again"
    assert node.first.state.truth_journal.version == before
    status, told = await post(node, serve, gather=False, if_exists="update", groups=[1, 2])
    assert (status, node.state.topics["both"].place) == (
        200,
        {1: (2, 2), 2: (3, 2), 3: (2, 0)},
    ), "it is spread again, and what is unread there stays to be seen"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"groups": [4]}, 400, "bad_field"),
        ({"groups": None}, 400, "bad_field"),
        ({"move_keys": False}, 409, "refused"),
        ({"name": "none"}, 404, "not_found"),
    ],
)
async def test_it_says_what_it_wants(
    node: SecondGroup, serve: Serve, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await post(node, serve, **body)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code), answer
    assert node.state.topics["both"].written_groups == {1, 2, 3}


async def test_it_stays_in_no_group_that_drains(node: SecondGroup, serve: Serve) -> None:
    node.apply([DrainBrokerGroup(3, draining=True)])
    status, answer = await post(node, serve, groups=[3])
    assert (status, answer["error"]["message"]) == (
        400,
        "groups: topic both can stay in the groups in which it takes messages: 1, 2",
    )


async def test_below_its_level_there_is_no_way_back(serve: Serve) -> None:
    node = SecondGroup(LogBuilder, GATHERS_LEVEL - 1)
    node.apply([CreateTopic({"name": "both", "place": [[1, 2, 2], [2, 3, 3]]}, False)])
    status, answer = await post(node, serve)
    assert (status, "gathers" in answer["error"]["message"]) == (409, True), answer


async def test_a_person_who_spreads_a_topic_decides_where_it_is(node: SecondGroup, serve: Serve) -> None:
    node.apply([CreateTopic({"name": "both", "place": [[2, 3, 0]]}, False)])
    assert node.state.topics["both"].attributes == {SPREAD_HOME: "1"}
    status, _ = await post(node, serve, gather=False, if_exists="update", groups=[2])
    assert (status, node.state.topics["both"].attributes) == (200, {})
