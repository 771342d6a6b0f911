"""Sends that are refused before anything is proposed: code and remark per case, both header forms, oneway silent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from cluster.replication.outcome import Outcome
from jepsen_like.sim.world import run_seed
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, JSON, encode_frame
from raftmq_wire.message_format import BatchItem, build_batch
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row
from tests.support.sim_cluster import ClientPath, SimCluster, codes

BATCH = build_batch([BatchItem(0, b"one", b"UNIQ_KEY\x011\x02"), BatchItem(0, b"two", b"UNIQ_KEY\x012\x02")])
DELAYED = build_batch([BatchItem(0, b"a", b"DELAY\x011\x02")])
HALF_IN_BATCH = build_batch([BatchItem(0, b"a", b"TRAN_MSG\x01true\x02PGROUP\x01p\x02")])
MANY = build_batch([BatchItem(0, b"", b"")] * 51)


class Case(NamedTuple):
    """A request, and the answer that it must get."""

    name: str
    code: int
    remark: str
    ext: Mapping[str, str] = MappingProxyType({})
    body: bytes = b"x"


CASES = [
    Case("half topic", 16, "topic[RMQ_SYS_TRANS_HALF_TOPIC] is conflict with", {"b": "RMQ_SYS_TRANS_HALF_TOPIC"}),
    Case("schedule topic", 16, "is conflict with system topic", {"b": "SCHEDULE_TOPIC_XXXX"}),
    Case("no write permission", 16, "topic READONLY does not accept writes (perm 4)", {"b": "READONLY"}),
    Case("empty topic", 29, "0 characters, allowed are 1 to 127 (limits.topic_length_max)", {"b": ""}),
    Case("long topic", 29, "128 characters, allowed are 1 to 127", {"b": "t" * 128}),
    Case("long retry topic", 29, "256 characters, allowed are 1 to 255", {"b": "%RETRY%" + "t" * 249}),
    Case("bad topic", 29, "characters outside ^[", {"b": "a b"}),
    Case("topic with a line feed", 29, "characters outside", {"b": "abc\n"}),
    Case("unicode topic", 29, "characters outside", {"b": "t\u00e9"}),
    Case("default topic", 17, "topic[TBW102] not exist", {"b": "TBW102"}),
    Case("queue too high", 29, "queueId[2] is illegal, topic T has 2 queues", {"e": "2"}),
    Case("body too large", 13, "has 2049 bytes, limits.message_bytes_max = 2048", {}, bytes(2049)),
    Case("properties too long", 13, "limits.properties_bytes_max = 300", {"i": "A\x01" + "b" * 300 + "\x02"}),
    Case("delay level", 13, "property DELAY=x: not a number", {"i": "DELAY\x01x\x02"}),
    Case("timer", 13, "property TIMER_DELAY_SEC=", {"i": "A\x01b\x02TIMER_DELAY_SEC\x01999999999"}),
    Case("half message without a group", 13, "PGROUP", {"i": "TRAN_MSG\x01true\x02"}),
    Case("half message in a batch", 13, "is not sent in a batch", {"m": "true"}, HALF_IN_BATCH),
    Case("batch empty", 13, "the batch is empty", {"m": "true"}, b""),
    Case("batch cut", 13, "malformed", {"m": "true"}, BATCH[:7]),
    Case("batch cut in the body", 13, "", {"m": "true"}, BATCH[:-9]),
    Case(
        "batch sizes lie",
        13,
        "message 1 of the batch is truncated or longer than its length field",
        {"m": "true"},
        BATCH[:-1],
    ),
    Case("batch negative body", 13, "", {"m": "true"}, BATCH[:16] + b"\xff\xff\xff\xf0" + BATCH[20:]),
    Case("batch, one delayed", 13, "a message of a batch cannot be delivered later", {"m": "true"}, DELAYED),
    Case("batch, delayed as a whole", 13, "DELAY", {"m": "true", "i": "WAIT\x01true\x02DELAY\x013\x02"}, BATCH),
    Case("batch, timed as a whole", 13, "TIMER_", {"m": "true", "i": "TIMER_DELAY_SEC\x013\x02"}, BATCH),
    Case("batch, half as a whole", 13, "TRAN_MSG", {"m": "true", "i": "TRAN_MSG\x01true\x02PGROUP\x01p\x02"}, BATCH),
    Case("batch body too large", 13, "has 2070 bytes, limits.message_bytes_max = 2048", {"m": "true"}, bytes(2070)),
    Case("batch of too many", 13, "limits.batch_messages_max = 50", {"m": "true"}, MANY),
    Case("batch retry", 13, "batch sends to a retry topic are not allowed", {"m": "true", "b": "%RETRY%g"}, BATCH),
    Case("bad producer id", 29, "raftmqPid is 32 hex digits", {"raftmqPid": "00", "raftmqSeq": "1"}),
    Case("producer id no hex", 29, "raftmqPid is 32 hex digits", {"raftmqPid": "x" * 32, "raftmqSeq": "1"}),
    Case("sequence 0", 29, "raftmqSeq at least 1", {"raftmqPid": "00" * 16}),
]

LIMITS = {
    "limits.message_bytes_max": 2048,
    "limits.properties_bytes_max": 300,
    "limits.batch_messages_max": 50,
    "limits.frame_bytes_max": 1 << 17,
    "limits.connection_inflight_bytes_max": 1 << 17,
    "limits.node_inflight_bytes_max": 1 << 18,
    "limits.batch_bytes_max": 1 << 14,
}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimCluster]:
    with SimCluster(9, **LIMITS) as made:
        made.create_topic("T")
        made.create_topic("%RETRY%g", queues=1)
        made.create_topic("READONLY", perm=4)
        yield made


def frame_of(opaque: int, case: Case, *, serialize_type: int = JSON, oneway: bool = False) -> bytes:
    ext = {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
        "m": "false",
        **case.ext,
    }
    flag = FLAG_ONEWAY if oneway else 0
    code = 320 if ext["m"] == "true" else 310
    return encode_frame(code, opaque, flag, ext=ext, body=case.body, serialize_type=serialize_type)


def last_index(sim: SimCluster) -> int:
    return sim.leader().raw.last_index


@each_row("serialize_type", [JSON, BINARY])
@each_row("case", CASES, ids=lambda case: case.name)
def test_refused_before_anything_is_proposed(sim: SimCluster, case: Case, serialize_type: int) -> None:
    before = last_index(sim)
    leader = sim.leader()
    path = leader.connect()
    path.ask(frame_of(5, case, serialize_type=serialize_type))
    sim.loop.run_until(lambda: 5 in path.replies, 1.0, "an answer: what a topic does not take is confirmed first")
    assert codes(path, 5) == [case.code], path.replies
    assert case.remark in path.replies[5][0][1]
    path.ask(frame_of(6, case, serialize_type=serialize_type, oneway=True))
    sim.loop.run_for(0.5)
    assert 6 not in path.replies
    assert last_index(sim) == before, "a refusal leaves no trace in the log"
    assert (path.in_flight.bytes, leader.proposals.gate.sends.bytes) == (0, 0)
    ask_good(sim, path)


def ask_good(sim: SimCluster, path: ClientPath) -> None:
    path.ask(frame_of(99, Case("good", 0, "")))
    sim.loop.run_until(lambda: 99 in path.replies, 5)
    assert codes(path, 99) == [0], "the connection still works"


@pytest.mark.parametrize("through_follower", [False, True])
def test_unknown_topic_without_auto_create(through_follower: bool) -> None:
    with SimCluster(10, **{"topics.auto_create": False}) as sim:
        sim.leader()
        path = (sim.followers()[0] if through_follower else sim.leader()).connect()
        path.ask(frame_of(1, Case("unknown topic", 17, "", {"b": "NOPE"})))
        sim.loop.run_until(lambda: path.replies, 5)
        assert codes(path, 1) == [17]
        assert path.replies[1][0][1] == "topic[NOPE] not exist, create it first (topics.auto_create = false)"
        assert "NOPE" not in sim.leader().state.topics


def test_auto_create_counts_queues_as_the_client_and_the_limit_say() -> None:
    with SimCluster(10, **{"topics.default_queues": 6}) as sim:
        path = sim.leader().connect()
        for at, wanted in enumerate(("4", "16", "-3")):
            path.ask(frame_of(at, Case("auto", 0, "", {"b": f"AUTO{at}", "d": wanted})))
        sim.loop.run_until(lambda: len(path.replies) == 3, 5)
        assert [codes(path, at) for at in range(3)] == [[0]] * 3
        assert [sim.leader().state.topics[f"AUTO{at}"].write_queues for at in range(3)] == [4, 6, 1]


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_bytes_in_flight_are_bounded(serialize_type: int) -> None:
    """Per connection, then per node; the remark names limit, value and key; all of it is given back."""
    with SimCluster(12, **LIMITS) as sim:
        sim.create_topic("T")
        leader = sim.leader()
        for node in sim.followers():
            node.append.hold()
        limits = leader.config.limits
        paths = [leader.connect() for _ in range(3)]
        sent = 0
        for path in paths:
            for _ in range(100):
                sent += 1
                path.ask(frame_of(sent, Case("fill", 0, "", {}, bytes(2000)), serialize_type=serialize_type))
        remarks = [
            {remark for replies in path.replies.values() for code, remark, _ in replies if code == 2} for path in paths
        ]
        connection = f"limits.connection_inflight_bytes_max = {limits.connection_inflight_bytes_max}"
        node_limit = f"limits.node_inflight_bytes_max = {limits.node_inflight_bytes_max}"
        assert remarks[0]
        assert all(connection in remark and str(paths[0].in_flight.bytes) in remark for remark in remarks[0])
        assert len(paths[2].replies) > 90, "two connections leave nothing for a third"
        assert all(node_limit in remark for remark in remarks[2])
        for node in sim.followers():
            node.append.release()
        sim.loop.run_until(lambda: sum(len(path.replies) for path in paths) == sent, 5)
        assert {code for path in paths for replies in path.replies.values() for code, _, _ in replies} == {0, 2}
        assert [path.in_flight.bytes for path in paths] == [0, 0, 0]
        assert leader.proposals.gate.sends.bytes == 0
        ask_good(sim, paths[2])


def test_queue_numbers_below_zero_are_chosen_in_turn(sim: SimCluster) -> None:
    path = sim.leader().connect()
    for at in range(4):
        path.ask(frame_of(at, Case("any", 0, "", {"e": "-1"})))
    sim.loop.run_until(lambda: len(path.replies) == 4, 5)
    chosen = [b'"queueId":"1"' in path.replies[at][0][2] for at in range(4)]
    assert chosen in ([False, True, False, True], [True, False, True, False])


def test_a_topic_that_cannot_be_made_refuses_all_who_wait_for_it(sim: SimCluster) -> None:
    """The change is valid when asked for and fails when applied: here another config was first."""
    leader = sim.leader()
    results = sim.propose(leader, CreateTopic({"name": "LATE", "read_queues": 0, "write_queues": 1}, False))
    path = leader.connect()
    path.ask(frame_of(1, Case("late", 0, "", {"b": "LATE"})))
    sim.loop.run_until(lambda: path.replies and results, 5)
    assert results[0].outcome is Outcome.OK
    assert not results[0].results[0].ok
    assert codes(path, 1) == [0], "the failed change left no topic, the send made one"


def test_no_identity_for_what_is_never_retried(sim: SimCluster) -> None:
    path: Any = sim.leader().connect()
    path.ask(frame_of(1, Case("oneway", 0, ""), oneway=True))
    assert path.session is None


@pytest.mark.ci
def test_seed_1500221() -> None:
    """A leader that is cut off, and does not know yet that it was replaced, knows no topic that was made since."""
    assert run_seed(1500221).violations == ()
