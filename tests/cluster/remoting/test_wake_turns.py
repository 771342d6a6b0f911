"""Many pulls that wait are woken, looked at again and forgotten in turns: nobody is lost, and none served twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.types import NodeId
from statemachine.removal_slices import DeleteTopic

SHARE = 1_000


@pytest.fixture
def node(node_with: Any) -> Any:
    node = node_with(SHARE)
    node.create_topic("T")
    return node


def hold(node: Any, connection: Any, offset: int = 0, tag: str = "*", queue_id: int = 0, wait_ms: int = 15000) -> Any:
    """A pull that waits from now on: it came in a turn of its own."""
    request = ask(node, connection, offset, tag, queue_id, wait_ms)
    node.advance(0)
    return request


def ask(node: Any, connection: Any, offset: int = 0, tag: str = "*", queue_id: int = 0, wait_ms: int = 15000) -> Any:
    return node.ask(
        11,
        connection=connection,
        consumerGroup="g",
        topic="T",
        queueId=queue_id,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=6,
        commitOffset=0,
        suspendTimeoutMillis=wait_ms,
        subVersion=0,
        subscription=tag,
        expressionType="TAG",
    )


def codes(requests: list[Any]) -> list[int | None]:
    return [request.answer.code if request.replies else None for request in requests]


def is_empty(node: Any) -> bool:
    polls = node.pulls.long_polls
    tables = (polls._by_queue, polls._slots, polls._filters._pulls, polls._woken._waiting, polls._woken._turns)
    return not polls.count and not any(tables) and not polls._bytes.taken


def test_many_pulls_of_a_queue_make_no_turn_long(node: Any, connect: Callable[[], Any]) -> None:
    clients = [connect() for _ in range(4)]
    requests = [hold(node, client) for _ in range(250) for client in clients]
    node.longest = 0
    node.store("T", b"m")
    assert codes(requests).count(None) > 900
    node.advance(10)
    assert codes(requests) == [0] * 1000
    assert 0.9 * SHARE < node.longest < 1.5 * SHARE
    assert is_empty(node)


def test_a_client_with_many_pulls_does_not_hold_up_another(node: Any, connect: Callable[[], Any]) -> None:
    greedy, honest = connect(), connect()
    many = [hold(node, greedy) for _ in range(500)]
    one = hold(node, honest)
    node.store("T", b"m")
    assert not one.replies, "the turn that applies is the driver's"
    node.next_turn()
    assert one.answer.code == 0, "it is the second to be served, though it came last"
    count = len(many) - codes(many).count(None)
    assert 0 < count < 100
    assert codes(many[:count]) == [0] * count, "the longest wait first"
    node.advance(10)
    assert codes(many) == [0] * 500


def test_few_pulls_are_woken_at_once(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect(), queue_id=queue) for queue in (0, 1) for _ in range(4)]
    node.store("T", b"m")
    node.store("T", b"m", queue_id=1)
    assert codes(requests) == [0] * 8


def test_who_parks_again_during_a_wake_is_woken_by_the_next(node: Any, connect: Callable[[], Any]) -> None:
    client = connect()
    first = [hold(node, client) for _ in range(300)]
    node.store("T", b"m")
    node.next_turn()
    done = [request for request in first if request.replies]
    assert 0 < len(done) < 300
    again = [ask(node, client, 1) for _ in range(5)]
    while client.works:
        node.next_turn()
    assert None in codes(first), "the wake goes on"
    second = node.store("T", b"n")[0]
    later = [ask(node, client, 2) for _ in range(5)]
    node.advance(10)
    assert codes(first) == [0] * 300
    assert [request.answer.body for request in again] == [second] * 5
    assert codes(later) == [None] * 5, "nothing came for them"
    node.store("T", b"o")
    node.advance(10)
    assert codes(later) == [0] * 5
    assert is_empty(node)


def test_a_wake_attempts_a_pull_once(node: Any, connect: Callable[[], Any]) -> None:
    attempts: list[Any] = []
    polls, attempt = node.pulls.long_polls, node.pulls.long_polls._attempt

    def counted(pull: Any) -> bool:
        attempts.append(pull)
        return bool(attempt(pull))

    polls._attempt = counted
    client = connect()
    requests = [hold(node, client, tag="x") for _ in range(200)]
    node.store("T", b"m", tag="y")
    node.advance(100)
    assert (len(attempts), len(set(attempts))) == (200, 200)
    assert (polls.count, codes(requests)) == (200, [None] * 200), "they wait on"
    node.store("T", b"m", tag="x")
    node.advance(100)
    assert codes(requests) == [0] * 200


def test_a_connection_that_closes_during_a_wake(node: Any, connect: Callable[[], Any]) -> None:
    gone, stays = connect(), connect()
    lost = [hold(node, gone) for _ in range(300)]
    kept = [hold(node, stays) for _ in range(300)]
    node.store("T", b"m")
    before = codes(lost)
    gone.close()
    node.advance(10)
    assert codes(lost) == before
    assert codes(kept) == [0] * 300
    assert is_empty(node)


def test_a_connection_with_many_pulls_closes_in_turns(node: Any, connect: Callable[[], Any]) -> None:
    client, other = connect(), connect()
    requests = [hold(node, client, queue_id=number % 4) for number in range(2000)]
    hold(node, other)
    node.longest = 0
    client.close()
    assert node.pulls.long_polls.count > 1000
    node.advance(10)
    assert node.pulls.long_polls.count == 1
    assert node.longest < 1.5 * SHARE
    assert codes(requests) == [None] * 2000


def test_a_topic_that_is_deleted_during_a_wake(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect()) for _ in range(300)]
    node.store("T", b"m")
    node.next_turn()
    node.command(DeleteTopic("T"))
    node.advance(10)
    assert set(codes(requests)) == {0, 17}
    assert is_empty(node)


def test_a_role_that_is_lost_during_a_wake(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect()) for _ in range(300)]
    node.store("T", b"m")
    node.leader = NodeId(1)
    node.advance(10)
    assert codes(requests) == [0] * 300, "any node serves what it has applied"


def test_deadlines_of_many_come_in_turns(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect(), wait_ms=7000) for _ in range(500)]
    node.longest = 0
    node.advance(6_900)
    assert codes(requests) == [None] * 500, "looked at after 5 s, nothing there"
    node.advance(300)
    assert codes(requests) == [19] * 500
    assert node.longest < 1.5 * SHARE
    assert is_empty(node)


def test_messages_that_come_while_deadlines_are_told(
    node: Any, connect: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    requests = [hold(node, client, wait_ms=7000) for _ in range(500)]
    while not requests[0].replies:
        node.next_turn()
    told = len(requests) - codes(requests).count(None)
    assert 0 < told < 500
    node.store("T", b"m")
    node.advance(10)
    assert codes(requests)[:told] == [19] * told
    assert set(codes(requests)) == {19, 0}
    assert is_empty(node)
    assert not caplog.records


def test_who_was_looked_at_during_a_wake_is_not_served_by_it_again(node: Any, connect: Callable[[], Any]) -> None:
    client = connect()
    requests = [hold(node, client) for _ in range(200)]
    attempts: list[Any] = []
    polls = node.pulls.long_polls
    polls._attempt = lambda pull: attempts.append(pull) is not None
    node.advance(1_000)
    node.store("T", b"m")
    node.next_turn()
    assert 0 < len(attempts) < 200
    node.now_ms += 4_100  # the wake has had no turn since
    polls._tick()
    node.next_turn()
    node.next_turn()
    node.next_turn()
    node.next_turn()
    assert (len(attempts), len(set(attempts))) == (200, 200)
    assert codes(requests) == [None] * 200


def test_a_node_that_leaves_tells_all_of_them(node: Any, connect: Callable[[], Any]) -> None:
    client = connect()
    requests = [hold(node, client) for _ in range(500)]
    other = [hold(node, connect(), queue_id=1) for _ in range(300)]
    node.store("T", b"m")
    node.longest = 0

    async def leave() -> None:
        task = asyncio.ensure_future(node.pulls.long_polls.release())
        while not task.done():
            await asyncio.sleep(0)
            if node.timers and not task.done():
                node.next_turn()
        await task

    asyncio.run(leave())
    node.advance(10)
    assert set(codes(requests)) <= {0, 19}, "the wake went on meanwhile"
    assert codes(other) == [19] * 300
    assert hold(node, client, 1).answer.code == 19, "nobody waits any more"
    assert is_empty(node)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_everybody_is_answered_once(
    node_with: Any, connect: Callable[[], Any], caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Parks, messages, closed connections and passing time in any order; `FakeRequest` fails on a second answer."""
    draw = random.Random(seed)
    node = node_with(draw.choice([60, 300, 2000]))
    node.create_topic("T")
    clients = [connect() for _ in range(4)]
    requests: list[Any] = []
    highs = [0] * 4
    for _ in range(400):
        what = draw.random()
        if what < 0.7:
            queue = draw.randrange(4)
            tag = draw.choice(["*", "a", "b"])
            client = draw.choice(clients)
            if not client.closed:
                wait_ms = draw.choice([300, 6000, 15000])
                requests.append(ask(node, client, draw.choice([0, highs[queue]]), tag, queue, wait_ms))
        elif what < 0.85:
            queue = draw.randrange(4)
            count = draw.randrange(1, 40)
            node.store("T", *[b"m"] * count, queue_id=queue, tag=draw.choice("abc"))
            highs[queue] += count
        elif what < 0.87:
            clients.append(connect())
            draw.choice(clients).close()
        elif node.timers:
            for _ in range(draw.randrange(3)):
                node.next_turn()
    node.advance(70_000)
    silent = [request for request in requests if not request.replies and not request.connection.closed]
    assert not silent, f"seed {seed}"
    assert is_empty(node), f"seed {seed}"
    assert all(client.works == 0 for client in clients)
    assert not caplog.records
