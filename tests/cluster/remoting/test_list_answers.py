"""Answers with as many rows as there are: made in steps that charge what they do, and the same as in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from cluster.remoting.connection.connection_memory import sizes
from cluster.requests.table import ROWS, VERBS
from cluster.requests.verb import Cost, Verb
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.codes import ResponseCode
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from tests.support.rows import each_row

TOPICS, GROUPS, WIDE = 600, 200, 900
SHARE = 300
STEP_MAX = 1_000
"""Units of one step beside the share of a turn."""

ASKED: list[tuple[Code, dict[str, str]]] = [
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    (Code.GET_TOPIC_STATS_INFO, {"topic": "wide"}),
    (Code.GET_CONSUME_STATS, {"consumerGroup": "g0007"}),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "wide"}),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
]
SUMS: list[tuple[Code, dict[str, str]]] = [
    (Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "wide"}),
]
"""What has a small answer, but as many rows to read."""
ELSEWHERE = {
    Code.QUERY_MESSAGE: "its rows are messages, each with its bytes: test_query.py",
    Code.GET_CONSUMER_CONNECTION_LIST: "its rows are clients: test_group_stats.py",
    Code.GET_PRODUCER_CONNECTION_LIST: "its rows are clients: test_broker_stats.py",
    Code.AUTH_LIST_USER: "it needs users, who sign: tests/cluster/sim/test_sim_users.py",
    Code.AUTH_LIST_ACL: "it needs users, who sign: tests/cluster/sim/test_sim_users.py",
}
"""Code of a request that reads much and has a large answer -> why it is not asked for here."""


def unasked(rows: Iterable[Verb]) -> set[int]:
    """Returns the codes of requests with large answers that nobody asks for here, and that have no reason."""
    large = {verb.code for verb in rows if verb.cost is Cost.READS_MUCH and verb.answer_bytes is not None}
    return large - {code for code, _ in (*ASKED, *SUMS)} - ELSEWHERE.keys()


def test_every_large_answer_is_asked_for_or_has_a_reason() -> None:
    assert unasked(ROWS) == set()
    assert ELSEWHERE.keys().isdisjoint(code for code, _ in (*ASKED, *SUMS))
    assert ELSEWHERE.keys() <= {verb.code for verb in ROWS if verb.answer_bytes is not None}
    planted = VERBS[Code.GET_CONSUME_STATS]._replace(code=700_099, name="PLANTED")
    assert unasked([*ROWS, planted]) == {700_099}


def fill(node: Any) -> Any:
    for number in range(TOPICS):
        node.create_topic(f"t{number:04}", 1, order=number < 3)
    node.create_topic("wide", WIDE)
    for number in range(GROUPS):
        node.command(PutGroup({"name": f"g{number:04}"}, True))
    node.command(Subscribe("g0007", [("wide", "TAG", "*", 1)]))
    node.command(CommitOffsets([("g0009", node.state.topics["wide"].id, 5, 0)]))
    return node


def asked(node: Any, code: Code, fields: dict[str, str]) -> Any:
    """The answer, in whichever turn it comes."""
    request = node.ask(code, **fields)
    while not request.replies:
        node.next_turn()
    assert request.answer.code == ResponseCode.SUCCESS
    return request.answer


@each_row(("code", "fields"), [*ASKED, *SUMS])
def test_no_step_is_long(node_with: Any, code: Code, fields: dict[str, str]) -> None:
    node = fill(node_with(SHARE))
    for number in range(300):
        node.store("wide", b"m", queue_id=number % 3)
    node.longest = 0
    answer = asked(node, code, fields)
    other = fill(node_with())
    for number in range(300):
        other.store("wide", b"m", queue_id=number % 3)
    assert answer.body == asked(other, code, fields).body
    assert 0 < node.longest <= SHARE + STEP_MAX


def test_what_the_lists_have(node: Any) -> None:
    fill(node)
    topics = json.loads(asked(node, *ASKED[0]).body)["topicList"]
    assert topics == [*(f"t{number:04}" for number in range(TOPICS)), "wide"]
    assert list(json.loads(asked(node, *ASKED[1]).body)["table"]) == ["t0000", "t0001", "t0002"]
    groups = asked(node, *ASKED[2])
    assert groups.ext == {"totalGroupNum": str(GROUPS)}
    assert list(json.loads(groups.body)["subscriptionGroupTable"]) == [f"g{number:04}" for number in range(GROUPS)]
    assert asked(node, *ASKED[3]).body.count(b"maxOffset") == WIDE
    assert asked(node, *ASKED[4]).body.count(b"brokerOffset") == WIDE
    assert json.loads(asked(node, *ASKED[5]).body) == {"groupList": ["g0007", "g0009"]}
    assert json.loads(asked(node, *ASKED[6]).body)["topicList"] == topics


@pytest.mark.parametrize(("code", "fields"), ASKED, ids=lambda value: value.name if isinstance(value, Code) else "")
def test_room_for_an_answer_is_promised_before_it_is_made(node: Any, code: Code, fields: dict[str, str]) -> None:
    if code is not Code.GET_KVLIST_BY_NAMESPACE:  # its rows are few: topics whose messages are in order
        fill(node)
        promised = sizes(node.state, lambda: node.config.limits)[code]()
        assert len(asked(node, code, fields).body) <= promised


def test_a_client_that_asks_for_much_does_not_keep_another_waiting(node_with: Any, connect: Any) -> None:
    node = fill(node_with(SHARE))
    busy, other = connect(), connect()
    many = [node.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, connection=busy) for _ in range(50)]
    small = node.ask(Code.GET_TOPIC_STATS_INFO, connection=other, topic="t0000")
    while not small.replies:
        node.next_turn()
    assert sum(bool(request.replies) for request in many) <= 3
