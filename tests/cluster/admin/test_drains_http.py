"""/v1/broker-groups/{group}/drain: what is left in a group of brokers, and how its drain begins and ends
(docs/adr/0113)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.admin.findings.rules import own_conditions
from cluster.replication.outcome import Outcome
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup, RetireBrokerGroup
from statemachine.cluster_wide.closed_log import LogEnd
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.levels import DRAINS_LEVEL, GATHERS_LEVEL
from statemachine.tier import MoveSegment, SegmentSpan, TierPart, TierState
from statemachine.topics.topics import CreateTopic
from tests.cluster.admin.conftest import FakeNode, Serve
from tests.cluster.admin.test_finding_rules import NOW_MS
from tests.statemachine.conftest import LogBuilder
from tests.support.fake_raw import CLUSTER
from tests.support.rows import each_row
from tests.support.truth_kit import SECOND, BrokerLog, copy

NewLog = Callable[[], LogBuilder]
PATH = "/v1/broker-groups/2/drain"
RETIRE = "/v1/broker-groups/2/retire"


class SecondGroup(FakeNode):
    """Node 1 of the second group, which leads. The first group decides at once, and this one copies."""

    log_of = 2
    retires = True
    """True if the first group hears of it that this one's log is closed."""

    def __init__(self, new_log: NewLog, level: int = DRAINS_LEVEL) -> None:
        others = {"cluster__id": str(CLUSTER), "cluster__first_group": ["127.0.0.1:10912"]}
        super().__init__(1, cluster__group=2, peer__secret_file="/SECRET", **others)
        self.first = BrokerLog(new_log())
        self.first.run(SECOND, AddBrokerGroup(3, "c", None))
        self.apply([Finalize(level)])
        self.copy()

    def copy(self) -> None:
        page = self.first.state.truth.after(self.state.truth.copied, 1 << 20)
        FakeNode.apply(self, [copy(page, self.state.truth.copied)])

    def apply(self, commands: list[Command]) -> list[Any]:
        if not all(command.OF_TRUTH for command in commands):
            results = super().apply(commands)
            if self.retires and self.state.closed_log.is_closed:  # as `cluster.truth.retirement` does
                self.first.run(RetireBrokerGroup(2))
                self.copy()
            return results
        self.before_apply(commands)
        results = self.first.run(*commands)
        self.copy()
        return results


@pytest.fixture
def new_log() -> NewLog:
    return LogBuilder


@pytest.fixture
def node(new_log: NewLog) -> SecondGroup:
    made = SecondGroup(new_log)
    place(made, "both", [2, 3])
    return made


def place(node: SecondGroup, name: str, groups: list[int], **fields: Any) -> None:
    (result,) = node.apply([CreateTopic({"name": name, "place": [[group, 2, 2] for group in groups], **fields}, False)])
    assert result.ok, result


async def ask(client: Any, method: str = "GET", path: str = PATH, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await client.request(method, path, json=body if method == "POST" else None)
    return answer.status, await answer.json()


async def test_a_drain_begins_and_is_cancelled(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    status, plan = await ask(client)
    assert (status, plan["state"], plan["since_ms"], plan["done"]) == (200, "active", None, True)
    assert (plan["other_groups"], plan["topics_shared"], plan["topics_alone"]) == ([1, 3], 1, [])
    status, dry = await ask(client, "POST", dry_run=True)
    assert (status, dry["dry_run"], dry["state"]) == (200, True, "active")
    status, begun = await ask(client, "POST")
    assert (status, begun["state"], begun["dry_run"]) == (200, "draining", False)
    assert begun["since_ms"] == node.state.broker_groups.by_number[2].since_ms
    version = node.first.state.truth_journal.version
    assert (await ask(client, "POST"))[1]["since_ms"] == begun["since_ms"], "it goes on"
    assert node.first.state.truth_journal.version == version
    listed = (await ask(client, path="/v1/broker-groups"))[1]["groups"]
    assert [(row["state"], row["since_ms"]) for row in listed] == [
        ("active", None),
        ("draining", begun["since_ms"]),
        ("active", None),
    ]
    status, ended = await ask(client, "DELETE")
    assert (status, ended["state"]) == (200, "active")
    assert node.state.broker_groups.by_number[2].is_active


async def test_topics_that_are_there_alone_need_queues_elsewhere_first(node: SecondGroup, serve: Serve) -> None:
    for name in ("a", "b", "c", "d"):
        place(node, name, [2])
    place(node, "%RETRY%g", [2])
    client = await serve(node)
    status, answer = await ask(client, "POST")
    assert (status, answer["error"]["code"]) == (409, "refused")
    assert answer["error"]["message"] == (
        "topics a, b, c and 1 more have queues in no other group that takes messages: nobody could write there"
    )
    assert node.state.broker_groups.by_number[2].is_active
    status, begun = await ask(client, "POST", spread=True)
    assert (status, begun["state"], begun["topics_alone"], begun["topics_shared"]) == (200, "draining", [], 5)
    assert node.state.topics["d"].queues_of_groups == {1: (2, 2), 2: (2, 2), 3: (2, 2)}
    assert node.state.topics["%RETRY%g"].queues_of_groups == {2: (2, 2)}


async def test_a_drain_that_is_done_in_part_does_not_say_that_nothing_was_changed(
    node: SecondGroup, serve: Serve
) -> None:
    place(node, "a", [2])

    def lose_the_majority(commands: list[Command]) -> None:
        node.fate = Outcome.FAIL

    node.before_apply = lose_the_majority  # the spread is the last that is decided
    status, answer = await ask(await serve(node), "POST", spread=True)
    assert node.state.topics["a"].queues_of_groups.keys() == {1, 2, 3}
    assert node.state.broker_groups.by_number[2].is_active
    assert (status, answer["error"]["code"]) == (504, "unknown_outcome")
    assert answer["error"]["message"].startswith("a part of it was done: ")
    status, answer = await ask(await serve(node), "POST", spread=True)
    assert (status, answer["error"]["code"]) == (503, "failed"), "nothing was changed this time"


@pytest.mark.parametrize("groups", [[2], [1, 2]])
async def test_keys_of_ordered_topics_move_only_if_that_is_said(
    node: SecondGroup, serve: Serve, groups: list[int]
) -> None:
    place(node, "o", groups, order=True)
    client = await serve(node)
    status, answer = await ask(client, "POST", spread=True)
    says = "topic o has queues here, and order: keys would come to other queues"
    assert (status, answer["error"]["message"]) == (409, says)
    assert (await ask(client, "POST", spread=True, move_keys=True))[1]["state"] == "draining"


async def test_what_is_left_is_named(node: SecondGroup, serve: Serve) -> None:
    for name in ("read", "nobodys", "%DLQ%g", "%RETRY%g"):
        place(node, name, [2, 3])
    node.apply([PutGroup({"name": "g"}, False), PutGroup({"name": "done"}, False)])
    FakeNode.apply(node, [Subscribe("g", [("read", "TAG", "*", 1)]), Subscribe("done", [("read", "TAG", "*", 1)])])
    for name, count in {"read": 3, "nobodys": 4, "%DLQ%g": 2}.items():
        node.add_messages(name, 0, count)
    topic = node.state.topics["read"].id
    FakeNode.apply(node, [CommitOffsets([("g", topic, 0, 1), ("done", topic, 0, 3)])])
    _, plan = await ask(await serve(node))
    unread = {"consumer_group": "g", "messages": 2, "topics": ["read"], "members": 0, "broadcasts": False}
    assert plan["unread"] == [unread]
    node.broadcasting.add("g")
    assert (await ask(await serve(node)))[1]["unread"] == [{**unread, "broadcasts": True}]
    assert (plan["unread_groups"], plan["unread_messages"], plan["done"]) == (1, 2, False)
    assert plan["unread_by_nobody"] == [{"topic": "nobodys", "messages": 4}]
    assert plan["dead_letters"] == [{"consumer_group": "g", "messages": 2}]
    FakeNode.apply(node, [CommitOffsets([("g", topic, 0, 3)])])
    _, plan = await ask(await serve(node))
    assert (plan["unread"], plan["unread_groups"], plan["done"]) == ([], 0, False), (
        "the others are still to be looked at"
    )


@each_row(
    ("path", "status", "says"),
    [
        ("/v1/broker-groups/1/drain", 409, "It cannot be drained"),
        ("/v1/broker-groups/3/drain", 409, "this node is of group 2"),
        ("/v1/broker-groups/4/drain", 404, "there is no group 4"),
        ("/v1/broker-groups/65/drain", 404, "there is no group 65"),
        ("/v1/broker-groups/two/drain", 404, "there is no group two"),
        ("/v1/broker-groups/-2/drain", 404, "there is no group -2"),
    ],
)
@each_row("method", ["GET", "POST", "DELETE"])
async def test_a_group_that_cannot_be_drained_here(
    node: SecondGroup, serve: Serve, method: str, path: str, status: int, says: str
) -> None:
    code, answer = await ask(await serve(node), method, path)
    assert (code, says in answer["error"]["message"]) == (status, True), answer


async def test_below_the_level_nothing_drains(new_log: NewLog, serve: Serve) -> None:
    node = SecondGroup(new_log, DRAINS_LEVEL - 1)
    code, answer = await ask(await serve(node), "POST")
    assert (code, answer["error"]["message"]) == (409, "the cluster has level 14, and drains need 15")


async def test_the_last_group_that_takes_messages_but_the_first_leaves_that_one(
    node: SecondGroup, serve: Serve
) -> None:
    client = await serve(node)
    assert (await ask(client, "POST"))[0] == 200
    assert (await ask(client))[1]["other_groups"] == [1, 3]


async def test_a_first_group_that_does_not_answer_changes_nothing(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    node.fate = Outcome.UNKNOWN
    assert (await ask(client, "POST"))[0] == 504
    assert node.state.broker_groups.by_number[2].is_active


async def test_topics_that_are_made_while_a_group_drains_are_in_the_others(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    await ask(client, "POST")
    assert (await ask(client, "POST", "/v1/topics", name="new"))[1]["topic"]["groups"] == [1, 3]
    status, answer = await ask(client, "POST", "/v1/topics", name="there", groups=[2, 3])
    assert (status, answer["error"]["message"]) == (409, "groups: group 2 is drained, and takes no further topic")
    body = {"name": "both", "if_exists": "update", "queues": 5, "groups": [2]}
    status, answer = await ask(client, "POST", "/v1/topics", now=True, **body)
    assert (status, answer["error"]["code"] if status >= 400 else "") == (200, ""), "it is there already"


@pytest.mark.parametrize("name", ["new", "%RETRY%g"])
async def test_metadata_with_a_topic_in_a_group_that_drains(serve: Serve, name: str) -> None:
    """Imported at the first group, from a document that was written before."""
    first = FakeNode()
    first.apply([Finalize(DRAINS_LEVEL), SECOND, DrainBrokerGroup(2, draining=True)])
    row = {"name": name, "read_queues": 1, "write_queues": 1, "perm": 6, "order": False, "sys_flag": 0}
    document = {"topics": [{**row, "attributes": {}, "place": [[1, 1, 1], [2, 1, 1]]}]}
    status, answer = await ask(await serve(first), "POST", "/v1/metadata", **document)
    if name.startswith("%"):
        assert (status, first.state.topics[name].queues_of_groups) == (200, {1: (1, 1), 2: (1, 1)})
    else:
        assert (status, answer["error"]["message"]) == (
            409,
            "topic new: group 2 is drained, and takes no further topic",
        )
        assert name not in first.state.topics


async def test_a_drain_is_a_finding_while_it_lasts(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)

    def said() -> list[tuple[str, int | None]]:
        found = own_conditions(node, node.status(), NOW_MS)  # type: ignore[arg-type]
        return [(each.says, each.since_ms) for each in found if each.code == "group_draining"]

    assert said() == []
    _, begun = await ask(client, "POST")
    assert said() == [("group 2 takes no new messages, and is read until nothing is left", begun["since_ms"])]
    await ask(client, "DELETE")
    assert said() == []


# -- retiring


async def test_a_group_that_is_done_retires_for_ever(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    status, answer = await ask(client, "POST", RETIRE)
    says = "group 2 takes messages, and is drained before it retires"
    assert (status, answer["error"]["message"]) == (409, says)
    await ask(client, "POST")
    status, dry = await ask(client, "POST", RETIRE, dry_run=True)
    assert (status, dry["dry_run"], dry["state"], dry["done"]) == (200, True, "draining", True)
    status, retired = await ask(client, "POST", RETIRE)
    assert (status, retired["state"], node.state.closed_log.is_closed) == (200, "retired", True)
    assert node.state.closed_log.end == LogEnd(0, dry["since_ms"], force=False)
    assert (await ask(client, "POST", RETIRE))[1]["state"] == "retired", "asked again"
    for method in ("POST", "DELETE"):
        status, answer = await ask(client, method)
        assert (status, answer["error"]["message"]) == (409, "group 2 has retired, for ever")
    join = {"uuid": "0" * 32, "cluster_id": str(CLUSTER), "host": "127.0.0.1", "port": 1}
    status, answer = await ask(client, "POST", "/v1/members", **join)
    assert (status, "has retired, and its nodes run no more" in answer["error"]["message"]) == (409, True), answer
    listed = (await ask(client, path="/v1/broker-groups"))[1]["groups"]
    assert [row["state"] for row in listed] == ["active", "retired", "active"]
    (topic,) = (await ask(client, path="/v1/topics"))[1]["topics"]
    document = (await ask(client, path="/v1/metadata"))[1]
    assert [row["group"] for row in topic["queues_in_groups"]] == [3]
    assert [(row["name"], row["place"]) for row in document["topics"]] == [("both", [[3, 2, 2]])]


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ("unread", "consumer group g has 3 messages to read"),
        ("nobodys", "topic both has 3 messages, and no consumer group reads it"),
        ("dead", "consumer group g has 3 dead letters"),
    ],
)
async def test_what_is_left_is_lost_only_by_force(node: SecondGroup, serve: Serve, left: str, says: str) -> None:
    topic = "%DLQ%g" if left == "dead" else "both"
    place(node, "%DLQ%g", [2])
    if left == "unread":
        node.apply([PutGroup({"name": "g"}, False)])
        FakeNode.apply(node, [Subscribe("g", [("both", "TAG", "*", 1)])])
        FakeNode.apply(node, [CommitOffsets([("g", node.state.topics["both"].id, 0, 0)])])
    node.add_messages(topic, 0, 3)
    client = await serve(node)
    await ask(client, "POST")
    status, answer = await ask(client, "POST", RETIRE)
    assert (status, answer["error"]["message"]) == (409, f"something is left in group 2: {says}")
    assert not node.state.closed_log.is_closed
    status, retired = await ask(client, "POST", RETIRE, force=True)
    end = node.state.closed_log.end
    assert (status, retired["state"], end is not None and end.force) == (200, "retired", True)


async def test_clients_with_a_route_of_before_are_waited_for(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    await ask(client, "POST")
    node.grace_ms = 1_500
    status, answer = await ask(client, "POST", RETIRE)
    says = "clients with a route of before may send to group 2 for 2 s more"
    assert (status, answer["error"]["message"]) == (409, says)
    assert (await ask(client, "POST", RETIRE, force=True))[1]["state"] == "retired"


async def test_a_message_that_comes_meanwhile_keeps_the_log_open(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    await ask(client, "POST")
    node.before_apply = lambda commands: node.add_messages("both", 0, 1)
    status, answer = await ask(client, "POST", RETIRE)
    assert (status, "nothing was changed: a message was stored in entry" in answer["error"]["message"]) == (409, True)


async def test_a_log_that_is_closed_is_told_until_the_first_group_knows(node: SecondGroup, serve: Serve) -> None:
    node.waits = node.waits._replace(retired_s=0.05)
    node.retires = False
    client = await serve(node)
    await ask(client, "POST")
    assert (await ask(client, "POST", RETIRE))[1]["state"] == "closed"
    status, answer = await ask(client, "DELETE")
    assert (status, answer["error"]["message"]) == (409, "group 2 has retired, for ever")


async def test_a_topic_that_is_made_while_a_drain_begins_gets_queues_elsewhere(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)

    def made_before(commands: list[Command]) -> None:
        if isinstance(commands[0], DrainBrokerGroup):
            node.apply([CreateTopic({"name": "fresh", "place": [[2, 2, 2]]}, False)])

    node.before_apply = made_before
    status, begun = await ask(client, "POST", spread=True)
    assert (status, begun["state"], begun["topics_alone"]) == (200, "draining", [])
    assert node.state.topics["fresh"].queues_of_groups.keys() == {1, 2, 3}


async def test_spreading_hides_no_queue_of_a_group_where_the_topic_is_being_read_out(
    new_log: NewLog, serve: Serve
) -> None:
    node = SecondGroup(new_log, GATHERS_LEVEL)
    place(node, "alone", [2])
    node.apply([CreateTopic({"name": "alone", "place": [[3, 5, 0]]}, False)])
    status, begun = await ask(await serve(node), "POST", spread=True)
    assert (status, begun["topics_alone"]) == (200, [])
    assert node.state.topics["alone"].queues_of_groups == {1: (2, 2), 2: (2, 2), 3: (5, 2)}


async def test_a_drain_that_is_under_way_spreads_when_it_is_asked_to(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    await ask(client, "POST")
    node.first.run(DrainBrokerGroup(2, draining=False), CreateTopic({"name": "late", "place": [[2, 2, 2]]}, False))
    node.first.run(DrainBrokerGroup(2, draining=True))
    node.copy()
    assert (await ask(client, "POST"))[1]["topics_alone"] == ["late"]
    assert (await ask(client, "POST", spread=True))[1]["topics_alone"] == []


async def test_segments_in_the_tier_are_named_and_hold_nothing_up(node: SecondGroup, serve: Serve) -> None:
    span = SegmentSpan(2048, 0, 1, 1, 1)
    part = TierPart("log/0", 2048, b"d" * 16, 1)
    FakeNode.apply(node, [MoveSegment(0, TierState.UPLOADING, 1, span, None)])
    FakeNode.apply(node, [MoveSegment(0, TierState.UPLOADED, 1, None, [part])])
    _, plan = await ask(await serve(node))
    assert (plan["tier_segments"], plan["tier_bytes"], plan["done"]) == (1, 2048, True)


async def test_a_group_that_has_retired_is_a_finding_while_its_nodes_run(node: SecondGroup, serve: Serve) -> None:
    client = await serve(node)
    await ask(client, "POST")
    await ask(client, "POST", RETIRE)
    found = {str(each.code): each for each in own_conditions(node, node.status(), NOW_MS)}  # type: ignore[arg-type]
    assert "group_draining" not in found
    assert found["group_retired"].do_now == "raftmq broker-group retire 2"
