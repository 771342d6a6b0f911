"""The judge of what the registry tells clients: a queue that is missing, a leader of long ago, and what is allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jepsen_like.live.probes.route_probe import STALE_S, Route, RouteProbe, is_stale, missing_queues, read_route
from raftmq_wire.codes import ResponseCode
from tests.support.rows import each_row

WHOLE = {"raftmq": (4, 4), "raftmq-g02": (4, 4)}
LEADERS = {"raftmq": "127.0.0.1:1", "raftmq-g02": "127.0.0.1:11"}
PLACES = {"127.0.0.1:1": (1, 1), "127.0.0.1:2": (1, 2), "127.0.0.1:11": (2, 1)}


def route(asked_s: float = 100.0, **changes: Any) -> Route:
    return Route(1, asked_s, asked_s + 0.1, WHOLE, LEADERS)._replace(**changes)


def probe(*routes: Route) -> RouteProbe:
    made = RouteProbe({1: 1}, "t", dict, PLACES.get)
    made._whole = WHOLE
    made.routes = list(routes)
    made.history = {1: [(0.0, (1, 2)), (10.0, (2, 1))], 2: [(0.0, (1, 1))]}
    return made


def test_a_route_is_read_as_nodes_write_it() -> None:
    body = {
        "brokerDatas": [
            {"brokerName": "raftmq", "brokerAddrs": {"0": "127.0.0.1:1", "2": "127.0.0.1:2"}},
            {"brokerName": "raftmq-g02", "brokerAddrs": {"1": "127.0.0.1:11"}},
        ],
        "queueDatas": [{"brokerName": "raftmq", "readQueueNums": 4, "writeQueueNums": 3, "perm": 6}],
    }
    found = read_route(3, 1.0, 2.0, json.dumps(body).encode())
    assert found == Route(3, 1.0, 2.0, {"raftmq": (4, 3)}, {"raftmq": "127.0.0.1:1"})
    assert missing_queues(found, WHOLE) == [
        "raftmq has 4 queues to read and 3 to write, not 4 and 4",
        "raftmq-g02 has 0 queues to read and 0 to write, not 4 and 4",
    ]
    assert missing_queues(route(queues=WHOLE | {"more": (9, 9)}), WHOLE) == []


@each_row(
    ("node", "asked_s", "stale"),
    [
        (1, 100.0, False),
        (2, 10.0 + STALE_S - 1, False),
        (2, 10.0 + STALE_S + 1, True),
        (3, 100.0, True),
        (1, 9.0, True),
        (2, 5.0, False),
    ],
)
def test_who_was_replaced_for_long_is_no_leader(node: int, asked_s: float, stale: bool) -> None:
    history = [(0.0, (1, 2)), (10.0, (2, 1)), (20.0, (1, 2))]
    assert is_stale(history, node, asked_s, asked_s + 0.1) is stale, "a leader of an older term replaces nobody"


def test_all_that_is_right_is_allowed() -> None:
    made = probe(route(), route(9.0, leaders=LEADERS | {"raftmq": "127.0.0.1:2"}), route(leaders={}))
    made.refusals = [(1.0, ResponseCode.SYSTEM_ERROR, "name server not ready")]
    assert made.wrong() == []
    assert made.first_route_after(50.0) == 100.1
    assert made.first_route_after(500.0) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (route(queues={"raftmq": (4, 4)}), "without queues: raftmq-g02 has 0"),
        (route(leaders=LEADERS | {"raftmq": "127.0.0.1:2"}), "the leader of raftmq, long after another"),
        (route(leaders=LEADERS | {"raftmq": "10.0.0.9:1"}), "is no node"),
    ],
)
def test_what_is_wrong_is_said(wrong: Route, said: str) -> None:
    (told,) = probe(route(), wrong).wrong()
    assert said in told


def test_no_such_topic_is_never_an_answer() -> None:
    made = probe()
    made.refusals = [(1.0, ResponseCode.TOPIC_NOT_EXIST, "no topic")]
    assert made.wrong() == ["a route was answered with 17: no topic"]
