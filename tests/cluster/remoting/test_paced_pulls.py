"""Pulls over their quota wait like long polls, get what there is in their order, and are never refused for it."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq_wire.codes import ResponseCode
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import QUOTAS_LEVEL

BODY = b"x" * 100


@pytest.fixture
def quota(node: Any) -> Any:
    """Sets a quota of topic T; None takes it away."""
    node.create_topic("T")
    node.create_topic("other")
    node.command(Finalize(QUOTAS_LEVEL))

    def put(**limits: int) -> None:
        node.command(SetQuotas([("topic=T", limits or None)], 0, "op"))

    return put


def pull(node: Any, offset: int, connection: Any = None, topic: str = "T", **fields: Any) -> Any:
    ext = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subVersion": 0,
        "subscription": "*",
        "expressionType": "TAG",
    }
    return node.ask(11, connection=connection, **(ext | fields))


def got(request: Any) -> int:
    """The number of messages of an answer."""
    reply = request.answer
    assert reply.code == 0, reply.remark
    return int(reply.ext["nextBeginOffset"]) - int(request.ext["queueOffset"])


def test_a_consumer_gets_the_rate_and_a_second_at_first(node: Any, quota: Any) -> None:
    quota(pull_messages=10)
    for _ in range(10):
        node.store("T", *[BODY] * 20)
    offset, times, began = 0, [], node.now_ms
    request = pull(node, offset)
    while node.now_ms < began + 10_000:
        if request.replies:
            offset += got(request)
            times.append(node.now_ms - began)
            request = pull(node, offset)
        node.advance(50)
    assert 95 <= offset <= 115
    assert times[0] == 0
    assert not pull(node, 0, topic="other").replies
    request = pull(node, 0)
    assert not request.replies
    quota()
    node.advance(100)
    assert got(request) == 32, "without a quota it goes on at once"


def test_who_waits_goes_on_in_order_and_nobody_overtakes(node: Any, quota: Any) -> None:
    node.store("T", *[BODY] * 100)
    quota(pull_messages=4)
    assert got(pull(node, 0)) == 4
    waiting = [pull(node, number) for number in range(5)]
    assert not any(request.replies for request in waiting)
    done: list[int] = []
    for _ in range(60):
        node.advance(50)
        done += [at for at, request in enumerate(waiting) if request.replies and at not in done]
    assert done == [0, 1, 2, 3, 4]
    assert [got(request) for request in waiting] == [1] * 5


def test_what_comes_to_the_queue_of_the_first_takes_no_place_from_him(node: Any, quota: Any) -> None:
    for queue in (0, 1):
        node.store("T", *[BODY] * 10, queue_id=queue)
    quota(pull_messages=1)
    assert got(pull(node, 0)) == 1
    first, second = pull(node, 1), pull(node, 1, queueId=1)
    node.store("T", BODY)
    node.advance(1_100)
    assert [len(each.replies) for each in (first, second)] == [1, 0]


def test_who_comes_when_there_is_room_waits_behind_those_who_wait(node: Any, quota: Any) -> None:
    node.store("T", *[BODY] * 100)
    quota(pull_messages=3)
    assert got(pull(node, 0)) == 3
    waiting = [pull(node, 1), pull(node, 2)]
    node.advance(340)
    assert not waiting[0].replies, "there is room since 7 ms, and nobody has looked yet"
    late = pull(node, 3)
    assert not late.replies
    node.advance(20)
    assert [len(each.replies) for each in (*waiting, late)] == [1, 0, 0]


def test_bytes_are_counted_and_one_message_always_goes(node: Any, quota: Any) -> None:
    node.store("T", *[b"y" * 5_000] * 4)
    quota(pull_bytes=1_000)
    assert got(pull(node, 0)) == 1
    request = pull(node, 1)
    node.advance(3_000)
    assert not request.replies
    node.advance(2_500)
    assert got(request) == 1


def test_a_pull_that_does_not_wait_for_messages_is_not_told_that_there_are_none(node: Any, quota: Any) -> None:
    node.store("T", *[BODY] * 10)
    quota(pull_bytes=200)
    for _ in range(2):
        assert got(pull(node, 0, sysFlag=4)) == 1
    first, second, third = (pull(node, 1, sysFlag=4) for _ in range(3))
    assert not first.replies
    node.advance(1_200)
    assert got(first) == 1
    assert [each.answer.code for each in (second, third)] == [ResponseCode.SYSTEM_BUSY] * 2
    assert "topic=T may have 200 bytes pulled a second" in second.answer.remark
    at_end = pull(node, 10, sysFlag=4)
    node.advance(1_200)
    assert at_end.answer.code == ResponseCode.PULL_NOT_FOUND, "and one that may go on is told so at the end"


def test_a_long_poll_ends_in_its_time_and_says_that_nothing_came(node: Any, quota: Any) -> None:
    node.store("T", *[b"z" * 50_000] * 2)
    quota(pull_bytes=1_000)
    assert got(pull(node, 0)) == 1
    request = pull(node, 1, suspendTimeoutMillis=2_000)
    node.advance(1_900)
    assert not request.replies
    node.store("T", BODY)
    assert not request.replies, "what comes to the queue wakes nobody who is over his quota"
    assert [number for _, number in node.pulls.paced.waiting()] == [1], "it stands in its line once"
    node.advance(200)
    assert request.answer.code == ResponseCode.PULL_NOT_FOUND
    assert int(request.answer.ext["nextBeginOffset"]) == 1


def test_who_waits_for_messages_is_woken_and_then_waits_for_his_quota(node: Any, quota: Any) -> None:
    node.store("T", BODY)
    quota(pull_messages=1)
    waiting = [pull(node, 1) for _ in range(3)]
    node.store("T", *[BODY] * 3)
    node.advance(0)
    assert [bool(each.replies) for each in waiting] == [True, False, False]
    node.advance(1_200)
    assert [bool(each.replies) for each in waiting] == [True, True, False]
    node.advance(1_000)
    assert [got(each) for each in waiting] == [1, 1, 1]


def test_a_client_that_goes_leaves_the_line(node: Any, quota: Any, connect: Any) -> None:
    node.store("T", *[BODY] * 10)
    quota(pull_messages=1)
    assert got(pull(node, 0)) == 1
    gone = connect()
    for number in range(3):
        pull(node, number, connection=gone)
    last = pull(node, 5)
    gone.close()
    node.advance(1_200)
    assert got(last) == 1
    assert node.pulls.long_polls.count == 0
    node.advance(200)
    assert node.timers == 0, "nothing looks any more"


@pytest.mark.parametrize("limits", [{}, {"limits.long_polls_max": 1}], ids=["time is over", "may not wait"])
def test_who_waits_no_longer_stands_in_no_line(node_with: Any, limits: dict[str, int]) -> None:
    """A line whose first waits for long would keep all that came meanwhile, and count them as asking."""
    node = node_with(**limits)
    node.create_topic("T")
    node.command(Finalize(QUOTAS_LEVEL))
    node.store("T", *[b"z" * 50_000] * 2)
    node.command(SetQuotas([("topic=T", {"pull_bytes": 1_000})], 0, "op"))
    assert got(pull(node, 0)) == 1
    first = pull(node, 1)
    for _ in range(20):
        pull(node, 1, suspendTimeoutMillis=100)
    node.advance(1_000)
    assert not first.replies
    assert node.pulls.long_polls.count == 1
    assert [number for _, number in node.pulls.paced.waiting()] == [1]
    assert [len(line) for line in node.pulls.paced._lines.values()] == [1]


def test_many_that_wait_are_served_in_turns(node_with: Any) -> None:
    node = node_with(1_000)
    node.create_topic("T")
    node.command(Finalize(QUOTAS_LEVEL))
    node.store("T", *[BODY] * 10)
    node.command(SetQuotas([("topic=T", {"pull_messages": 1})], 0, "op"))
    assert got(pull(node, 0)) == 1
    clients = [node.client() for _ in range(50)]
    waiting = [pull(node, 1, connection=client) for client in clients for _ in range(20)]
    node.command(SetQuotas([("topic=T", None)], 0, "op"))
    node.longest = 0
    for _ in range(200):
        node.advance(50)
    assert all(each.answer.code == 0 for each in waiting)


def test_messages_before_a_damaged_one_count(node: Any, quota: Any) -> None:
    node.store("T", *[BODY] * 8)
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 8)
    node.rotten = {items[2].position + 70}
    quota(pull_messages=4)
    assert got(pull(node, 0)) == 2, "up to the damaged one"
    assert got(pull(node, 3)) == 2, "what is left of the first second's four"
