"""A topic that gets fewer queues by request 17, as mqadmin sends it: what is in the others is kept, found and counted,
and comes back. And an offset beyond the end, as RocketMQ's tools see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftmq_wire.codec import decode_header, encode_frame, ext_of
from raftmq_wire.codes import NOT_HIDING_FIELD, STORED_QUEUES_FIELD
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.message_format import decode_messages
from statemachine.consuming.groups import PutGroup
from tests.support.sim_cluster import SimCluster, send_frame

SEED = 24
TOPIC, GROUP = "orders", "g"
Ask = Callable[..., tuple[int, str, dict[str, str], bytes]]


@pytest.fixture
def ask(sim_of: Any) -> Ask:
    """Sends a request to the leader, and returns code, remark, fields and body of its answer. Queue 1 of the topic has
    three messages with the key `k`, of which the group has consumed one."""
    sim: SimCluster = sim_of()
    sim.create_topic(TOPIC, queues=2)
    made = sim.propose(sim.leader(), PutGroup({"name": GROUP}, False))
    sim.loop.run_until(lambda: made, 5)
    path = sim.leader().connect()

    def asked(code: int, **ext: object) -> tuple[int, str, dict[str, str], bytes]:
        before, opaque = len(path.written), 1000 + len(path.written)
        path.ask(encode_frame(code, opaque, 0, ext={name: str(value) for name, value in ext.items()}))

        def found() -> list[bytes]:
            return [data for data in path.written[before:] if header_of(data).opaque == opaque]

        sim.loop.run_until(found, 10, f"an answer to {code}")
        (data,) = found()
        header = header_of(data)
        return header.code, header.remark or "", ext_of(header), bytes(data[8 + int.from_bytes(data[5:8], "big") :])

    for number in (1, 2, 3):
        path.ask(send_frame(number, TOPIC, b"body", key=f"id-{number}", properties="KEYS\x01k\x02", queue_id=1))
    sim.loop.run_until(lambda: len(path.replies) == 3, 10, "the sends")
    assert commit(asked, 1)[0] == 0
    return asked


def header_of(data: bytes) -> Any:
    return decode_header(data[4], data[8 : 8 + int.from_bytes(data[5:8], "big")])


def put(ask: Ask, queues: int, **more: str) -> tuple[int, str]:
    code, remark, _, _ = ask(17, topic=TOPIC, readQueueNums=queues, writeQueueNums=queues, perm=6, **more)
    return code, remark


def commit(ask: Ask, offset: int) -> tuple[int, str]:
    return ask(15, consumerGroup=GROUP, topic=TOPIC, queueId=1, commitOffset=offset)[:2]


def pull(ask: Ask) -> tuple[int, int]:
    where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1, "queueOffset": 1, "maxMsgNums": 8, "sysFlag": 4}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    code, _, _, body = ask(11, **where, **more, expressionType="TAG")
    return code, len(list(decode_messages(body))) if code == 0 else 0


def test_17_hides_messages_as_in_rocketmq_and_loses_none(ask: Ask) -> None:
    assert STORED_QUEUES_FIELD not in ask(351, topic=TOPIC)[2]
    assert put(ask, 1) == (0, "")
    assert pull(ask) == (29, 0)
    assert ask(351, topic=TOPIC)[2][STORED_QUEUES_FIELD] == "2"
    assert [ask(code, topic=TOPIC, queueId=1)[2]["offset"] for code in (Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET)] == [
        "0",
        "3",
    ]
    assert ask(Code.GET_MAX_OFFSET, topic=TOPIC, queueId=2)[0] == 29
    assert commit(ask, 2) == (0, ""), "of what its consumer had before"
    assert ask(14, consumerGroup=GROUP, topic=TOPIC, queueId=1)[2]["offset"] == "2"
    times = {"beginTimestamp": 0, "endTimestamp": 1 << 62, "maxNum": 8}
    code, _, _, body = ask(12, topic=TOPIC, key="k", **times)
    found = list(decode_messages(body)) if code == 0 else []
    assert [message.queue_id for message in found] == [1, 1, 1]
    assert ask(33, offset=found[0].position)[0] == 0
    assert put(ask, 2) == (0, "")
    assert pull(ask) == (0, 2)


def test_it_refuses_that_where_it_is_asked_to(ask: Ask) -> None:
    not_hiding = {NOT_HIDING_FIELD: "true"}
    code, remark = put(ask, 1, **not_hiding)
    assert (code, remark[:31]) == (604, "2 messages of topic orders that")
    assert pull(ask) == (0, 2)
    assert commit(ask, 3) == (0, "")
    assert put(ask, 1, **not_hiding) == (0, "")
    assert put(ask, 2, **not_hiding) == (0, "")


def test_tools_see_an_offset_beyond_the_end(ask: Ask) -> None:
    assert commit(ask, 9) == (0, "")
    stats = ask(208, consumerGroup=GROUP, topic=TOPIC)[3]
    assert b'"brokerOffset":3,"consumerOffset":9' in stats.replace(b" ", b"")
