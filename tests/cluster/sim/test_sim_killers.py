"""Requests that ended a leader, and handed on the next one: each to the leader and to a follower of three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftmq_wire.codec import encode_frame
from tests.support.rows import each_row
from tests.support.sim_cluster import SimCluster, codes, send_frame

HUGE = b"9" * 30
KILLERS = {
    "group, beyond 64 bits": encode_frame(200, 1, 0, body=b'{"groupName":"g","retryMaxTimes":' + HUGE + b"}"),
    "group, 15 MB that grow": encode_frame(
        200, 1, 0, body=b'{"groupName":"g","groupRetryPolicy":{"x":[' + b"1e15," * 3_000_000 + b"1]}}"
    ),
    "group, not Unicode": encode_frame(200, 1, 0, body=b'{"groupName":"g","attributes":{"a":"\xed\xa0\x80"}}'),
    "group, too deep": encode_frame(200, 1, 0, body=b'{"groupName":' + b"[" * 100_000),
    "heartbeat, beyond 64 bits": encode_frame(
        34,
        1,
        0,
        body=b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T",'
        b'"subVersion":' + HUGE + b"}]}]}",
    ),
    "heartbeat, 450,000 groups": encode_frame(
        34,
        1,
        0,
        body=b'{"clientID":"c","consumerDataSet":['
        + b",".join([b'{"groupName":"g%d"}' % at for at in range(450_000)])
        + b"]}",
    ),
    "offset, beyond 64 bits": encode_frame(
        15, 1, 0, ext={"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1" + "0" * 23}
    ),
    "offset, a number of a megabyte": encode_frame(
        15, 1, 0, ext={"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1" * 1_000_000}
    ),
    "topic, a name of a megabyte": encode_frame(215, 1, 0, ext={"topic": "t" * 1_000_000}),
    "topic, fields that are none": encode_frame(17, 1, 0).replace(b'"extFields":{}', b'"extFields":[]'),
    "send, a time beyond 64 bits": encode_frame(310, 1, 0, ext={"b": "T", "g": "9" * 30}),
    "send, a sequence beyond 64 bits": encode_frame(
        310, 1, 0, ext={"b": "T", "raftmqPid": "0" * 32, "raftmqSeq": str(2**64)}
    ),
    "send, without fields": encode_frame(310, 1, 0),
}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimCluster]:
    with SimCluster(31) as made:
        made.create_topic("T")
        yield made


@each_row("to", ["leader", "follower"])
@each_row("name", KILLERS)
def test_it_is_answered_and_nothing_else_happens(sim: SimCluster, name: str, to: str) -> None:
    leader = sim.leader()
    term, end = leader.raw.term, leader.raw.last_index
    path = (leader if to == "leader" else sim.followers()[0]).connect()
    path.ask(KILLERS[name])
    sim.loop.run_until(lambda: path.replies, 5)
    assert codes(path, 1) == [29], path.replies
    assert len(path.replies[1][0][1]) <= 1000
    path.ask(send_frame(2, "T", b"a"))
    sim.loop.run_until(lambda: codes(path, 2), 5)
    assert codes(path, 2) == [0], "and the connection goes on"
    assert [node.failure for node in sim.nodes.values()] == [None] * 3
    assert len(sim.running) == 3
    assert sim.leader() is leader
    assert (leader.raw.term, leader.raw.last_index) == (term, end + 1)
    assert path.in_flight.bytes == 0
