"""A node's memory beyond a request: caches are bounded in bytes, names, groups and clients in number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.broker.filters import subscription
from cluster.broker.groups.group_members import MemberBounds
from cluster.broker.refusal import Refused
from cluster.config.service_sections import LimitsSection
from cluster.replication import message_head
from cluster.replication.command_queue import NameLimits, UnacceptableError
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.replication.send_identity import Identity, RetryMemory
from statemachine.commands import Command
from statemachine.consuming.groups import PutGroup
from statemachine.topics.topics import CreateTopic, TopicConfig
from tests.support.kept_memory import bytes_kept

OK = ProposeResult(Outcome.OK, [], None, "")


class State:
    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.groups: dict[str, Any] = {}
        self.queue_count = 0
        self.broker_groups = SimpleNamespace(own=1)


def beat(client_id: str, groups: list[str], text: str = "*") -> bytes:
    consumers = [
        {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": text, "subVersion": 1}]}
        for group in groups
    ]
    return msgspec.json.encode({"clientID": client_id, "consumerDataSet": consumers})


def test_long_subscriptions_and_tags_are_not_remembered() -> None:
    def use_long_ones() -> None:
        for number in range(8):
            subscription.tag_hashes(f"tag{number}" + "x" * (subscription.TEXT_MAX - 10))
            message_head.tag_hash(b"%d" % number + b"x" * 30_000)

    assert bytes_kept(use_long_ones) < subscription.TEXT_MAX
    assert subscription.tag_hashes("a || b") == subscription.tag_hashes("a||b")
    assert subscription.tag_hashes("a || b") is subscription.tag_hashes("a || b"), "a short one is"
    with pytest.raises(Refused, match="too long"):
        subscription.tag_hashes("x" * (subscription.TEXT_MAX + 1))


def test_long_keys_of_unanswered_sends_are_remembered_by_their_digest() -> None:
    memory = RetryMemory()
    key, identity = "k" * 30_000, Identity(b"p", 1, 1)
    assert bytes_kept(lambda: memory.remember(0, "T", "l" * 30_000, b"body", identity, 0)) < 10_000
    memory.remember(0, "T", key, b"body", identity, 0)
    assert memory.claim(0, "T", key[:-1] + "l", b"body", 1) is None
    assert memory.claim(0, "T", key, b"body", 1) == identity


def test_names_are_bounded_however_they_are_made() -> None:
    state = State()
    names = NameLimits(LimitsSection(topics_max=3, groups_max=2), state)  # type: ignore[arg-type]

    def make(*made: str) -> list[Command]:
        return [(PutGroup if name[0] == "g" else CreateTopic)({"name": name}, if_absent=True) for name in made]

    first = names.admit(make("a", "b", "g1"), lambda _: None)
    with pytest.raises(UnacceptableError, match=r"limits\.topics_max is 3"):
        names.admit(make("c", "d"), lambda _: None)
    names.admit(make("c", "a"), lambda _: None)
    state.topics = dict.fromkeys("ab")
    state.groups = {"g1": None}
    first(OK)
    names.admit(make("a", "b", "g1"), lambda _: None)  # what there is may change
    with pytest.raises(UnacceptableError, match=r"limits\.groups_max is 2"):
        names.admit(make("g2", "g3"), lambda _: None)


def test_queues_are_bounded_over_all_topics_whoever_adds_them() -> None:
    state = State()
    names = NameLimits(LimitsSection(queues_max=30), state)  # type: ignore[arg-type]

    def make(name: str, **queues: int) -> list[Command]:
        return [CreateTopic({"name": name} | {f"{kind}_queues": count for kind, count in queues.items()}, False)]

    first = names.admit(make("a", read=10, write=4), lambda _: None)
    with pytest.raises(UnacceptableError, match=r"there are 10 queues .* 21 more .* limits\.queues_max is 30"):
        names.admit(make("b", write=21), lambda _: None)
    state.topics["a"], state.queue_count = TopicConfig(1, "a", 10, 4), 10
    first(OK)
    default = names.admit(make("c"), lambda _: None)
    names.admit(make("a", read=22), lambda _: None)
    with pytest.raises(UnacceptableError, match=r"there are 30 queues .* 8 more"):
        names.admit(make("d"), lambda _: None)
    names.admit(make("a", read=1), lambda _: None)  # fewer may always be
    names.admit([CreateTopic({"name": "a", "read_queues": 99}, True)], lambda _: None)  # it is there: no change
    default(OK)
    names.admit(make("d"), lambda _: None)


def test_a_place_on_its_way_is_free_again_when_it_was_not_made() -> None:
    names = NameLimits(LimitsSection(topics_max=1), State())  # type: ignore[arg-type]
    done = names.admit([CreateTopic({"name": "a"}, True)], lambda _: None)
    with pytest.raises(UnacceptableError):
        names.admit([CreateTopic({"name": "b"}, True)], lambda _: None)
    done(ProposeResult(Outcome.FAIL, [], None, ""))
    names.admit([CreateTopic({"name": "b"}, True)], lambda _: None)


def test_heartbeats_keep_a_bounded_number_of_groups_and_bytes(node_with: Any, connect: Any) -> None:
    node = node_with(bounds={"members": MemberBounds(connection_groups=5, memberships=12)})
    connections = [connect() for _ in range(3)]
    assert node.ask(34, connection=connections[0], body=beat("c", [f"g{n}" for n in range(6)])).answer.code == 29
    for number, connection in enumerate(connections[:2]):
        for _ in range(3):
            groups = [f"g{number}-{n}" for n in range(5)]
            assert node.ask(34, connection=connection, body=beat("c", groups)).answer.code == 0
    assert node.members.count == 10
    assert node.ask(34, connection=connections[2], body=beat("c", ["h1", "h2", "h3"])).answer.code == 2
    assert node.ask(35, connection=connections[0], clientID="c", consumerGroup="g0-0").answer.code == 0
    assert node.ask(34, connection=connections[2], body=beat("c", ["h1", "h2", "h3"])).answer.code == 0
    for connection in connections:
        connection.close()
    assert node.members.count == 0
    assert node.ask(34, body=beat("c" * 2000, ["g"])).answer.code == 29


def test_what_groups_subscribe_to_is_bounded_in_bytes(node_with: Any, connect: Any) -> None:
    node = node_with(bounds={"members": MemberBounds(text_bytes=300_000)})
    connection = connect()
    assert node.ask(34, connection=connection, body=beat("c", ["g1", "g2"], "x" * 30_000)).answer.code == 0
    assert node.ask(34, connection=connection, body=beat("c", ["g3"], "x" * 30_000)).answer.code == 2
    assert node.ask(34, connection=connection, body=beat("c", ["g3"])).answer.code == 0
    assert node.ask(34, connection=connection, body=beat("c", ["g4"], "x" * 40_000)).answer.code == 23
    connection.close()
    assert node.ask(34, connection=connect(), body=beat("c", ["g3", "g4"], "x" * 30_000)).answer.code == 0


def test_large_pulls_that_wait_are_bounded_in_bytes(node_with: Any, connect: Any) -> None:
    node = node_with(
        **{
            "limits.node_inflight_bytes_max": 100_000,
            "limits.connection_inflight_bytes_max": 100_000,
            "limits.frame_bytes_max": 100_000,
            "limits.message_bytes_max": 1000,
        }
    )
    node.create_topic("T")
    connection = connect()

    def pull(text: str) -> Any:
        return node.ask(
            11,
            connection=connection,
            consumerGroup="g",
            topic="T",
            queueId=0,
            queueOffset=0,
            maxMsgNums=1,
            sysFlag=6,
            commitOffset=0,
            suspendTimeoutMillis=9000,
            subscription=text,
            expressionType="TAG",
        )

    waiting = [pull("x" * 30_000) for _ in range(3)]
    refused = pull("x" * 30_000)
    assert refused.answer.code == 2
    assert "limits.node_inflight_bytes_max = 100000" in (refused.answer.remark or "")
    usual = pull("*")
    node.advance(9_500)
    assert [request.answer.code for request in (*waiting, usual)] == [19] * 4
    again = pull("x" * 30_000)
    connection.close()
    assert not again.replies
