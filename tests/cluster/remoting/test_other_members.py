"""38 while a group of brokers has not heard of all members of a consumer group: it is answered with all that the groups
of brokers of its topics know together, or not at all. A Java client that gets a list without others takes their queues;
one that gets no list keeps its own."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgpack
import pytest

from cluster.broker.groups.other_members import ANSWER_MS, ASKED_MAX, FRESH_MS, PAYLOAD_MAX
from cluster.runtime.peer_frames import Kind, WireError
from tests.support.rows import each_row


class Link(NamedTuple):
    """A connection to a node of group 2."""

    sent: list[tuple[int, list[Any], bytes]]
    group: int = 2

    def send(self, kind: int, header: list[Any], payload: bytes = b"") -> bool:
        self.sent.append((kind, header, payload))
        return True


ID_LENGTH = 512
"""The length of the longest client id."""


def heartbeat(node: Any, client: str, topic: str = "both", **more: Any) -> None:
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1}]
    data = {"groupName": "g", "subscriptionDataSet": subscriptions, **more}
    assert node.ask(34, json.dumps({"clientID": client, "consumerDataSet": [data]}).encode()).answer.code == 0


def listed(request: Any) -> list[str]:
    assert request.answer.code == 0, request.answer
    found: list[str] = json.loads(request.answer.body)["consumerIdList"]
    return found


def answer(node: Any, number: int, ids: list[str], group: int = 2, *, complete: bool = True) -> None:
    node.group_links.handlers[Kind.MEMBERS_REPLY](Link([], group), [number, complete], msgpack.packb(ids))


def test_members_of_whom_another_group_has_heard_are_listed_too(two: Any) -> None:
    heartbeat(two, "m")
    asked = two.ask(38, consumerGroup="g")
    assert two.group_links.sent == [(2, Kind.MEMBERS, [1, "g"], b"")]
    assert asked.replies == []
    answer(two, 1, ["z", "a", "m"])
    assert listed(asked) == ["a", "m", "z"], "in the order of all lists"
    answer(two, 1, ["late"])
    assert len(asked.replies) == 1


def test_after_two_intervals_of_heartbeats_the_own_list_is_whole(two: Any) -> None:
    heartbeat(two, "m")
    two.advance(FRESH_MS - 1)
    heartbeat(two, "n")
    two.ask(38, consumerGroup="g")
    assert len(two.group_links.sent) == 1
    two.advance(1)
    assert listed(two.ask(38, consumerGroup="g")) == ["m", "n"]
    assert len(two.group_links.sent) == 1


@pytest.mark.parametrize("how", ["not reached", "no answer", "too many", "too many wait"])
def test_without_the_others_there_is_no_list(two: Any, how: str) -> None:
    heartbeat(two, "m")
    two.group_links.is_open = how != "not reached"
    if how == "too many wait":
        assert not any(two.ask(38, consumerGroup="g").replies for _ in range(ASKED_MAX))
    asked = two.ask(38, consumerGroup="g")
    if how == "too many":
        answer(two, 1, [], complete=False)
    elif how == "no answer":
        assert asked.replies == []
        answer(two, 1, ["x"], group=3)
        answer(two, 2, ["x"])
        assert asked.replies == []
        two.advance(ANSWER_MS)
    code, remark = asked.answer[:2]
    assert (code, "has not heard of all members yet" in remark) == (14, True)
    answer(two, 1, ["x"])
    assert len(asked.replies) == 1


def test_who_needs_nobody_else_asks_nobody(two: Any) -> None:
    assert two.ask(38, consumerGroup="g").answer.code == 1, "nobody is connected"
    heartbeat(two, "m", topic="here")
    assert listed(two.ask(38, consumerGroup="g")) == ["m"], "the topic is here alone"
    heartbeat(two, "m", topic="both", raftmqByTopic=True)
    assert listed(two.ask(38, consumerGroup="g")) == ["m"], "our client asks all groups itself"
    heartbeat(two, "n", topic="both")
    two.ask(38, consumerGroup="g")
    assert len(two.group_links.sent) == 1


def test_a_cluster_of_one_group_asks_nobody(node: Any) -> None:
    node.create_topic("both")
    heartbeat(node, "m")
    assert listed(node.ask(38, consumerGroup="g")) == ["m"]
    assert node.group_links.sent == []


def test_a_node_tells_others_of_whom_it_has_heard(two: Any) -> None:
    for client in ("b", "a"):
        heartbeat(two, client)
    link = Link([])
    for name in ("g", "nobody"):
        two.group_links.handlers[Kind.MEMBERS](link, [7, name], b"")
    for number in range(PAYLOAD_MAX // ID_LENGTH + 1):
        heartbeat(two, f"{number:0{ID_LENGTH}}")
        two.advance(0)
    two.group_links.handlers[Kind.MEMBERS](link, [8, "g"], b"")
    assert link.sent == [
        (Kind.MEMBERS_REPLY, [7, True], msgpack.packb(["a", "b"])),
        (Kind.MEMBERS_REPLY, [7, True], b"\x90"),
        (Kind.MEMBERS_REPLY, [8, False], b"\x90"),
    ]


@each_row(
    ("kind", "header", "payload"),
    [
        (Kind.MEMBERS, [], b""),
        (Kind.MEMBERS, [-1, "g"], b""),
        (Kind.MEMBERS, [1, 2], b""),
        (Kind.MEMBERS_REPLY, [1], b"\x90"),
        (Kind.MEMBERS_REPLY, [1, 1], b"\x90"),
        (Kind.MEMBERS_REPLY, [1, True], b""),
        (Kind.MEMBERS_REPLY, [1, True], b"\x80"),
        (Kind.MEMBERS_REPLY, [1, True], b"\x91\x01"),
        (Kind.MEMBERS_REPLY, [1, True], msgpack.packb(["x" * 1_025])),
        (Kind.MEMBERS_REPLY, [1, True], bytes(PAYLOAD_MAX + 1)),
    ],
)
def test_frames_that_are_none(two: Any, kind: Kind, header: list[Any], payload: bytes) -> None:
    with pytest.raises(WireError):
        two.group_links.handlers[kind](Link([]), header, payload)
