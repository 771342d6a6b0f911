"""Resets of offsets as tools ask for them and consumers see them, and requests that consumers answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.replication.outcome import Outcome
from raftlog.types import NodeId
from raftmq_wire.message_format import decode_message, encode_message_id
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.offset_resets import EndResets, OffsetReset
from tests.support.rows import each_row

HOST = ("10.0.0.1", 10911)
FLAG_SUSPEND, FLAG_SUBSCRIPTION = 2, 4


@pytest.fixture
def broker(node: Any) -> Any:
    """Topic T, whose queue 0 has ten messages, 100 ms apart; the group g has consumed nine of them."""
    node.create_topic("T", queues=2)
    node.command(PutGroup({"name": "g"}, False))
    for at in range(10):
        node.store("T", b"%d" % at)
        node.now_ms += 100
    node.command(CommitOffsets([("g", 1, 0, 9)]))
    return node


def reset(broker: Any, **ext: Any) -> Any:
    fields = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true", **ext}
    return broker.ask(222, **fields).answer


def pull(broker: Any, offset: int, connection: Any = None, suspend_ms: int = 0) -> Any:
    return broker.ask(
        11,
        connection=connection,
        consumerGroup="g",
        topic="T",
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=FLAG_SUBSCRIPTION | (FLAG_SUSPEND if suspend_ms else 0),
        commitOffset=0,
        suspendTimeoutMillis=suspend_ms,
        subscription="*",
        subVersion=0,
    )


def commit(broker: Any, offset: int, oneway: bool = False) -> Any:
    return broker.ask(15, oneway=oneway, consumerGroup="g", topic="T", queueId=0, commitOffset=offset)


def committed(broker: Any) -> int:
    return int(broker.ask(14, consumerGroup="g", topic="T", queueId=0).answer.ext["offset"])


@pytest.mark.parametrize(
    ("ext", "offsets"),
    [
        ({"timestamp": 0}, [0, 0]),
        ({"timestamp": -1}, [10, 0]),
        ({"timestamp": 1_000_350}, [4, 0]),
        ({"timestamp": 1 << 60}, [10, 0]),
        ({"timestamp": 0, "queueId": 0}, [0]),
        ({"timestamp": -1, "queueId": 0, "offset": 3}, [3]),
        ({"timestamp": 0, "queueId": 0, "offset": -1}, [0]),
    ],
)
def test_where_a_reset_goes(broker: Any, ext: dict[str, int], offsets: list[int]) -> None:
    answer = reset(broker, **ext)
    assert answer.code == 0
    rows = [
        b'{"brokerName":"%b","queueId":%d,"topic":"T"}:%d' % (broker.config.cluster.broker_name.encode(), at, offset)
        for at, offset in enumerate(offsets)
    ]
    assert answer.body == b'{"offsetTable":{%b}}' % b",".join(rows)
    assert [broker.state.offset("g", 1, at) for at in range(len(offsets))] == offsets
    assert committed(broker) == offsets[0]


@pytest.mark.parametrize(
    ("ext", "to"),
    [
        ({"timestamp": 1_000_350}, "in 2 queues of T were reset to time 1000350"),
        ({"timestamp": -1, "queueId": 0, "offset": 3}, "in 1 queues of T were reset to offset 3"),
        ({"timestamp": -1}, "in 2 queues of T were reset to latest"),
    ],
)
def test_a_reset_leaves_a_trace_of_who_asked(broker: Any, ext: dict[str, int], to: str) -> None:
    reset(broker, group="nobody", **ext)
    reset(broker, **ext)
    assert broker.changes == [("group g", f"its offsets {to}, asked for over remoting by 10.9.9.9:40000")]


def test_a_running_consumer_is_told_and_its_commits_count_again(broker: Any) -> None:
    reset(broker, timestamp=1_000_350, queueId=0)
    assert commit(broker, 10).answer.code == 0
    commit(broker, 10, oneway=True)
    assert committed(broker) == 4, "commits from before are left out"
    answer = pull(broker, 10).answer
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "4")
    assert pull(broker, 10).answer.code == 21, "told as often as it asks"
    answer = pull(broker, 4).answer
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "10")
    assert not broker.state.has_resets
    assert commit(broker, 7).answer.code == 0
    assert committed(broker) == 7
    assert pull(broker, 9).answer.code == 0


def test_a_consumer_that_waits_is_woken(broker: Any, connect: Any) -> None:
    waiting = pull(broker, 10, connect(), suspend_ms=15_000)
    assert not waiting.replies
    reset(broker, timestamp=0)
    assert (waiting.answer.code, waiting.answer.ext["nextBeginOffset"]) == (21, "0")


def test_a_consumer_that_waits_at_the_end_goes_on_after_a_reset_to_the_end(broker: Any, connect: Any) -> None:
    waiting = pull(broker, 10, connect(), suspend_ms=15_000)
    reset(broker, timestamp=-1, queueId=0)
    assert not waiting.replies
    assert not broker.state.has_resets
    broker.store("T", b"more")
    assert waiting.answer.code == 0


def test_another_reset_counts_in_place_of_the_first(broker: Any) -> None:
    reset(broker, timestamp=0)
    reset(broker, timestamp=-1)
    assert pull(broker, 0).answer.ext["nextBeginOffset"] == "10"
    assert broker.state.resets_of_group("g")[1, 0].offset == 10


def test_only_the_leader_moves_a_consumer(broker: Any, connect: Any) -> None:
    reset(broker, timestamp=0)
    broker.leader = NodeId(1)
    answer = pull(broker, 10).answer
    assert answer.code == 19
    assert broker.state.has_resets


def test_an_unconfirmed_leader_moves_nobody(broker: Any, connect: Any) -> None:
    reset(broker, timestamp=0)
    broker.confirms = False
    waiting = pull(broker, 10, connect(), suspend_ms=1000)
    assert not waiting.replies
    broker.advance(2000)
    assert waiting.answer.code == 19


def test_the_end_of_a_reset_is_proposed_once(broker: Any) -> None:
    reset(broker, timestamp=0)
    broker.propose_outcome = Outcome.UNKNOWN
    broker.proposed.clear()
    kept, broker.propose = broker.propose, lambda run, done, session=None: broker.proposed.extend(run)
    pull(broker, 0)
    pull(broker, 0)
    assert pull(broker, 10).answer.code == 19, "it has read on from 0 meanwhile, and is not told again"
    broker.propose = kept
    number = broker.state.resets_of_group("g")[1, 0].number
    assert broker.proposed == [EndResets("g", [(1, 0, number)])]


@each_row(
    ("ext", "code"),
    [
        ({"group": "nobody"}, 26),
        ({"topic": "none"}, 17),
        ({"queueId": 2}, 29),
        ({"queueId": 0, "offset": 11}, 29),
        ({"timestamp": "soon"}, 29),
        ({"timestamp": None}, 29),
        ({"group": "no group"}, 29),
    ],
)
def test_what_cannot_be_reset(broker: Any, ext: dict[str, Any], code: int) -> None:
    assert reset(broker, **ext).code == code
    assert (broker.state.offset("g", 1, 0), broker.state.has_resets) == (9, False)


@pytest.mark.parametrize(("outcome", "code", "remark"), [(Outcome.FAIL, 14, ""), (Outcome.UNKNOWN, 1, "[UNKNOWN]")])
def test_a_reset_that_is_not_decided(broker: Any, outcome: Outcome, code: int, remark: str) -> None:
    broker.propose_outcome = outcome
    answer = reset(broker)
    assert (answer.code, answer.remark.startswith(remark), broker.changes) == (code, True, [])


@pytest.mark.parametrize("topic", ["T", ""])
def test_another_group_gets_the_offsets_of_one(broker: Any, topic: str) -> None:
    broker.create_topic("U")
    broker.command(CommitOffsets([("g", 2, 3, 5)]))
    assert broker.ask(314, srcGroup="g", destGroup="h", topic=topic).answer.code == 0
    assert broker.state.offset("h", 1, 0) == 9
    assert broker.state.offset("h", 2, 3) == (None if topic else 5)
    (change,) = broker.changes
    says = f"its offsets{' of T' if topic else ''} were set to those of the group g"
    assert change == ("group h", f"{says}, asked for over remoting by 10.9.9.9:40000")
    assert broker.ask(314, srcGroup="none", destGroup="h", topic="T").answer.code == 26
    assert broker.ask(314, srcGroup="g", destGroup="h", topic="none").answer.code == 17


# --- requests that a consumer answers ---


def consumer(broker: Any, connection: Any, client_id: str = "c1") -> None:
    subscriptions = [{"topic": "T", "subString": "*", "subVersion": 1}]
    data = {"groupName": "g", "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [data]}).encode()
    assert broker.ask(34, body, connection).answer.code == 0


def test_a_consumer_answers_for_itself(broker: Any, connect: Any) -> None:
    connections = {name: connect() for name in ("c1", "c2")}
    for name, connection in connections.items():
        consumer(broker, connection, name)
    ext = {"consumerGroup": "g", "clientId": "c2", "jstackEnable": "true"}
    request = broker.ask(307, b"", **ext)
    assert not connections["c1"].calls
    ((sent, ended),) = connections["c2"].calls
    assert sent == ClientRequest(307, ext, b"", oneway=False)
    assert not request.replies
    ended(ClientAnswer(7, "why", {"a": "b"}, b"{info}"))
    assert request.answer == (7, "why", {"a": "b"}, b"{info}")


def test_a_message_is_consumed_directly(broker: Any, connect: Any) -> None:
    connection = connect()
    consumer(broker, connection)
    (stored,) = broker.store("T", b"this one")
    message_id = encode_message_id(HOST, decode_message(stored)[0].position)
    request = broker.ask(309, consumerGroup="g", clientId="c1", msgId=message_id, brokerName="b")
    ((sent, ended),) = connection.calls
    assert (sent.code, sent.body) == (309, stored)
    ended(ClientAnswer(0, "", {}, b'{"consumeResult":"CR_SUCCESS"}'))
    assert (request.answer.code, request.answer.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize(
    ("code", "ext", "answer"),
    [
        (307, {"clientId": "c9"}, 1),
        (307, {"clientId": "c1", "consumerGroup": "h"}, 1),
        (307, {"clientId": None}, 29),
        (309, {"clientId": "c1", "msgId": "xyz"}, 29),
        (309, {"clientId": "c1", "msgId": encode_message_id(HOST, 77)}, 1),
        (309, {"clientId": "c1", "msgId": encode_message_id(HOST, 1 << 40)}, 1),
    ],
)
def test_nobody_is_asked(broker: Any, connect: Any, code: int, ext: dict[str, Any], answer: int) -> None:
    connection = connect()
    consumer(broker, connection)
    assert broker.ask(code, **{"consumerGroup": "g", **ext}).answer.code == answer
    assert not connection.calls


def test_a_consumer_that_is_silent(broker: Any, connect: Any) -> None:
    connection = connect()
    consumer(broker, connection)
    request = broker.ask(307, consumerGroup="g", clientId="c1")
    broker.advance(9_000)
    assert not request.replies
    broker.advance(2_000)
    assert request.answer.code == 1


def test_the_rows_of_a_reset(broker: Any) -> None:
    reset(broker, timestamp=0)
    assert broker.state.resets_of_group("g") == {
        (1, 0): OffsetReset(0, broker.now_ms),
        (1, 1): OffsetReset(0, broker.now_ms),
    }
