"""The mistakes of clients, and the answer to each, as a table: at the leader and through a follower, with nothing
written to the log and the connection still open.

The tests of each feature have more of their own; here the kinds of mistakes stand side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from raftmq_wire.codec import encode_frame
from raftmq_wire.message_format import decode_message_id
from statemachine.broker_state import BrokerState
from statemachine.consuming.groups import PutGroup
from tests.support.rows import each_row
from tests.support.sim_cluster import SimCluster, codes, send_frame

MAX_DELAY_MS = 259_200_000
"""`timer.max_delay_ms` by default: three days."""


class Row(NamedTuple):
    """A request and its answer."""

    what: str
    code: int
    ext: dict[str, Any]
    answer: int
    words: str = ""
    body: bytes = b"x"


def send(what: str, answer: int, words: str = "", properties: str = "", **ext: Any) -> Row:
    fields = {"a": "p", "b": "T", "e": 0, "i": properties} | ext
    return Row(what, 310, {name: value for name, value in fields.items() if value is not None}, answer, words)


def back(what: str, answer: int, words: str, **ext: Any) -> Row:
    return Row(what, 36, {"group": "g", "offset": "HERE", "originTopic": "T"} | ext, answer, words)


def end(what: str, answer: int, words: str = "", **ext: Any) -> Row:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": 0,
        "commitLogOffset": "HERE",
        "commitOrRollback": 8,
        "msgId": "KEY",
    }
    return Row(what, 37, fields | ext, answer, words)


def pull(what: str, answer: int, words: str, sql: str) -> Row:
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "subscription": sql,
        "expressionType": "SQL92",
    }
    return Row(what, 11, fields, answer, words)


REFUSED = [
    send("no topic", 29, "missing required field `b`", b=None),
    Row("no fields", 310, {}, 29, "missing required field `b`"),
    Row("no fields, long names", 10, {}, 29, "missing required field `topic`"),
    send("a queue that is no number", 29, "Expected `int`", e="x"),
    send("reconsumeTimes of 2^31", 29, "<= 2147483647", j=1 << 31),
    send("a level that is no number", 13, "DELAY=abc: not a number", "DELAY\x01abc\x02"),
    send("a level of 20 digits", 13, "not a number", "DELAY\x01" + "9" * 20 + "\x02"),
    send("a delay beyond the limit", 13, "timer.max_delay_ms", f"TIMER_DELAY_MS\x01{MAX_DELAY_MS + 1}\x02"),
    send("seconds that overflow as milliseconds", 13, "timer.max_delay_ms", f"TIMER_DELAY_SEC\x01{(1 << 63) - 1}\x02"),
    send("a time of 2^63", 13, "not a number", f"TIMER_DELIVER_MS\x01{1 << 63}\x02"),
    send("two timers", 13, "only one of them", "TIMER_DELAY_MS\x0110\x02TIMER_DELAY_SEC\x011\x02"),
    send("a half message without a group", 13, "PGROUP", "TRAN_MSG\x01true\x02"),
    back("a failure inside a message", 1, "no message", offset="INSIDE"),
    back("a failure beyond the log", 1, "not within the log", offset=1 << 40),
    back("a maximum of 2^31", 29, "2147483647", maxReconsumeTimes=1 << 31),
    back("a level of 2^31", 29, "2147483647", delayLevel=1 << 31),
    end("the end of half a message, and no number", 29, "64 bits", commitLogOffset=1 << 63),
    end("an end that is neither", 29, "commitOrRollback", commitOrRollback=3),
    pull("SQL of 100 kB", 23, "at most 16384 characters", "a = '" + "x" * 100_000 + "'"),
    pull("SQL nested deeply", 23, "deeper than 100", "NOT " * 200 + "TRUE"),
    pull("SQL that divides by zero", 23, "unexpected '/'", "a / 0 > 1"),
    pull("SQL of many words", 23, "more than 2048", "a = 1 OR " * 1000 + "a = 1"),
    Row(
        "the lock of queue -1",
        41,
        {},
        29,
        "",
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","queueId":-1}]}',
    ),
    Row("a search without a queue", 29, {"topic": "T", "timestamp": 1}, 29, "needs field queueId"),
]
DONE_NOTHING = [
    end("the end of a plain message", 0),
    end("the end of a position inside a message", 0, commitLogOffset="INSIDE"),
    Row(
        "the lock of a queue that is not there",
        41,
        {},
        0,
        "",
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","queueId":9,"brokerName":"raftmq"}]}',
    ),
]
"""Answered with success, because the client is to go on."""


class Cluster:
    """A cluster with one message, at `position`."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        sim.create_topic("T")
        results = sim.propose(sim.leader(), PutGroup({"name": "g"}, False))
        sim.loop.run_until(lambda: results, 10, "the group")
        path = sim.leader().connect()
        path.ask(send_frame(1, "T", b"m", key="KEY", queue_id=0))
        sim.loop.run_until(lambda: 1 in path.replies, 10, "the send")
        self.position = decode_message_id(json.loads(path.replies[1][0][2])["msgId"])[1]
        sim.settle()

    def ask(self, row: Row, *, leads: bool) -> tuple[int, str, bytes]:
        """Code, remark and body or fields of the answer; the connection still answers afterwards."""
        node = self.sim.leader() if leads else self.sim.followers()[0]
        path = node.connect()
        places = {"HERE": self.position, "INSIDE": self.position + 1}
        ext = {name: str(places.get(value, value)) for name, value in row.ext.items()}
        path.ask(encode_frame(row.code, 1, 0, ext=ext, body=row.body, serialize_type=0))
        self.sim.loop.run_until(lambda: 1 in path.replies, 20, row.what)
        assert len(codes(path, 1)) == 1
        path.ask(encode_frame(105, 2, 0, ext={"topic": "T"}, serialize_type=0))
        self.sim.loop.run_until(lambda: 2 in path.replies, 5, "the connection")
        code, remark, rest = path.replies[1][0]
        return code, remark, rest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with SimCluster(9) as sim:
        yield Cluster(sim)


@each_row("leads", [True, False], ids=["leader", "follower"])
@each_row("row", [*REFUSED, *DONE_NOTHING], ids=lambda row: row.what)
def test_a_mistake_is_answered_in_words_and_leaves_nothing(cluster: Cluster, row: Row, leads: bool) -> None:
    before = cluster.sim.leader().raw.last_index
    code, remark, _ = cluster.ask(row, leads=leads)
    assert (code, row.words in remark) == (row.answer, True), remark
    assert len(remark) < 1000
    assert cluster.sim.leader().raw.last_index == before, "nothing was proposed"


def test_a_lock_of_a_queue_that_is_not_there_is_not_granted(cluster: Cluster) -> None:
    lock = DONE_NOTHING[-1]
    assert lock.code == 41
    assert not cluster.sim.leader().state.locks_of_group("g")


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("code", [36, 37])
def test_a_message_that_was_trimmed(cluster: Cluster, code: int, leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is told that it is gone; the end of a transaction is that of none."""
    monkeypatch.setattr(BrokerState, "trim_position", property(lambda _: cluster.position + 1))
    row = back("", 1, "was trimmed") if code == 36 else end("", 0)
    answered, remark, _ = cluster.ask(row, leads=leads)
    assert (answered, row.words in remark) == (row.answer, True), remark


PLAIN = {
    "level 0": "DELAY\x010\x02",
    "a negative level": "DELAY\x01-1\x02",
    "a time in the past": "TIMER_DELIVER_MS\x011\x02",
    "a delay of nothing": "TIMER_DELAY_SEC\x010\x02",
}


@pytest.mark.parametrize("properties", PLAIN.values(), ids=PLAIN)
def test_what_waits_for_nothing_is_delivered_at_once(cluster: Cluster, properties: str) -> None:
    state = cluster.sim.leader().state
    before = state.max_offset(state.topics["T"].id, 0)
    assert cluster.ask(send("", 0, properties=properties), leads=True)[0] == 0
    assert state.max_offset(state.topics["T"].id, 0) == before + 1


def test_level_19_is_level_18(cluster: Cluster) -> None:
    leader = cluster.sim.leader()
    assert cluster.ask(send("", 0, properties="DELAY\x0119\x02"), leads=True)[0] == 0
    (row,) = leader.state.timers.due(1 << 62)
    assert abs(row.due_ms - leader.raw.log_time_ms() - 7_200_000) < 30_000


def test_a_half_message_does_not_wait(cluster: Cluster) -> None:
    leader = cluster.sim.leader()
    waiting = leader.state.timers.counts.pending
    half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02DELAY\x013\x02UNIQ_KEY\x01HALF\x02"
    assert cluster.ask(send("", 0, properties=half), leads=True)[0] == 0
    assert leader.state.halves.pending.count == 1
    assert leader.state.timers.counts.pending == waiting
