"""Pulls that wait for the same and are woken together share what was read, and its encoded answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.remoting.request import SharedAnswer
from raftlog.types import NodeId
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, JSON, Header, encode_frame
from statemachine.consuming.consumer_offsets import ResetOffsets
from statemachine.consuming.groups import PutGroup

SHARE = 1_000


@pytest.fixture
def node(node_with: Any) -> Any:
    node = node_with(SHARE)
    node.create_topic("T")
    return node


def hold(node: Any, connection: Any, **changes: Any) -> Any:
    """A pull that waits from now on."""
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subVersion": 0,
        "subscription": "*",
        "expressionType": "TAG",
    }
    request = node.ask(11, connection=connection, **fields | changes)
    node.advance(0)
    assert not request.replies
    return request


def test_equal_pulls_of_a_step_read_once(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect()) for _ in range(200)]
    node.reads.clear()
    stored = node.store("T", b"m")
    node.advance(10)
    assert [request.answer.body for request in requests] == stored * 200
    assert all(request.answer.ext == requests[0].answer.ext for request in requests)
    assert 0 < len(node.reads) < 20


def test_a_later_step_sees_what_came_meanwhile(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect()) for _ in range(200)]
    first = node.store("T", b"m")
    node.next_turn()
    answered = [request for request in requests if request.replies]
    assert 0 < len(answered) < 200
    second = node.store("T", b"n")
    node.advance(10)
    assert {request.answer.body for request in answered} == set(first)
    waited = [request for request in requests if request not in answered]
    assert {request.answer.body for request in waited} == {b"".join(first + second)}
    assert {request.answer.ext["maxOffset"] for request in waited} == {"2"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"queueOffset": 1}, [1, 2]),
        ({"queueOffset": 2}, [2]),
        ({"maxMsgNums": 1}, [0]),
        ({"maxMsgBytes": 1}, [0]),
        ({"subscription": "b"}, [1]),
        ({"queueId": 1}, [3]),
        ({"topic": "U"}, [4]),
    ],
)
def test_pulls_that_want_something_else_get_it(
    node: Any, connect: Callable[[], Any], changes: dict[str, Any], wanted: list[int]
) -> None:
    node.create_topic("U")
    node.leader = NodeId(1)  # a node that follows lets an offset beyond the end wait
    requests = [(hold(node, connect()), hold(node, connect(), **changes)) for _ in range(10)]
    places = (("T", "a", 0), ("T", "b", 0), ("T", "a", 0), ("T", "a", 1), ("U", "a", 0))
    stored = [node.store(topic, b"m", tag=tag, queue_id=queue_id)[0] for topic, tag, queue_id in places]
    node.advance(10)
    for plain, changed in requests:
        assert plain.answer.body == b"".join(stored[:3])
        assert changed.answer.body == b"".join([stored[number] for number in wanted])


def test_a_group_that_was_reset_is_told_so(node: Any, connect: Callable[[], Any]) -> None:
    for group in ("g", "h"):
        node.command(PutGroup({"name": group}, True))
    node.store("T", b"m")
    requests = [
        (hold(node, connect(), queueOffset=1), hold(node, connect(), consumerGroup="h", queueOffset=1))
        for _ in range(10)
    ]
    node.command(ResetOffsets("h", node.now_ms, [(node.state.topics["T"].id, 0, 0)]))
    node.store("T", b"n")
    node.advance(10)
    assert [(plain.answer.code, reset.answer.code) for plain, reset in requests] == [(0, 21)] * 10


def test_each_waits_for_room_of_its_own(node: Any, connect: Callable[[], Any]) -> None:
    slow, quick = connect(), connect()
    requests = [(hold(node, slow), hold(node, quick)) for _ in range(100)]
    slow.has_room = False
    node.store("T", b"m")
    node.advance(10)
    assert [(bool(first.replies), second.answer.code) for first, second in requests] == [(False, 0)] * 100
    slow.has_room = True
    for again in slow.waiting:
        again()
    assert [first.answer.code for first, _ in requests] == [0] * 100


def test_what_is_shared_is_gone_when_the_step_ends(node: Any, connect: Callable[[], Any]) -> None:
    requests = [hold(node, connect()) for _ in range(200)]
    node.store("T", b"m")
    polls = node.pulls.long_polls
    while not all(request.replies for request in requests):
        assert polls.answers is None
        node.next_turn()
    assert polls.answers is None


# --- the request's side -----------------------------------------------------------------------------------------------


class Path:
    """A connection that keeps what it is given."""

    peer_address = ("10.9.9.9", 40000)

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.frames.append(data)

    def write_parts(self, head: bytes, body: bytes) -> None:
        self.frames.append(head + body)

    def unanswered(self) -> None: ...


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_shared_answers_are_written_as_others(kind: int) -> None:
    path = Path()
    answer = SharedAnswer(0, "FOUND", {"nextBeginOffset": "7", '"opaque":0': "x"}, b"body")
    for opaque in (0, 1, -1, 2**31 - 1):
        header = Header(11, opaque)
        request = RemotingRequest.of(Frame(cast(Any, path), kind, header, b"", b"", 0))
        request.reply_shared(answer)
        request.reply_shared(answer)
        assert path.frames == [
            encode_frame(
                0,
                opaque,
                FLAG_RESPONSE,
                ext=answer.ext,
                remark="FOUND",
                body=b"body",
                serialize_type=kind,
                language="JAVA",
            )
        ]
        path.frames.clear()


def test_a_oneway_request_has_no_shared_answer() -> None:
    path = Path()
    header = Header(11, 5, FLAG_ONEWAY)
    RemotingRequest.of(Frame(cast(Any, path), JSON, header, b"", b"", 0)).reply_shared(SharedAnswer(0, None, {}, b""))
    assert not path.frames
