"""Recalls (370): a message that waits is taken back and never delivered, under any leader, whatever is on its way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import RecallHandle, decode_message, decode_recall_handle
from statemachine.delivery.timers import TimerCounts
from tests.support.sim_cluster import SimCluster, SimNode, send_frame

DELAYED = "TIMER_DELAY_MS\x015000\x02"
ILLEGAL = 604


@pytest.fixture
def sim() -> Any:
    with SimCluster(17) as cluster:
        cluster.create_topic("T")
        yield cluster


def send(sim: SimCluster, properties: str = DELAYED, count: int = 1, **more: Any) -> list[dict[str, Any]]:
    """The fields of the answers to messages m1, m2, ..., sent at once."""
    path = sim.leader().connect()
    for number in range(1, count + 1):
        path.ask(send_frame(number, "T", b"m%d" % number, properties=properties, **more))
    sim.loop.run_until(lambda: len(path.replies) == count, 20, "answers")
    assert [path.replies[number][0][0] for number in range(1, count + 1)] == [0] * count
    return [json.loads(path.replies[number][0][2]) for number in range(1, count + 1)]


def recall(sim: SimCluster, handle: str, topic: str = "T", node: SimNode | None = None) -> tuple[int, str]:
    """Code, and the id or the remark."""
    path = (node or sim.leader()).connect()
    ext = {"producerGroup": "p", "topic": topic, "recallHandle": handle}
    path.ask(encode_frame(RequestCode.RECALL_MESSAGE, 1, 0, ext=ext))
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    code, remark, fields = path.replies[1][0]
    return code, json.loads(fields)["msgId"] if code == 0 else remark


def bodies(sim: SimCluster) -> list[bytes]:
    node = sim.leader()
    config = node.state.topics["T"]
    items = [item for queue in range(config.queues) for item in node.state.fetch(config.id, queue, 0, 1000)]
    return sorted(decode_message(node.log.read_at(item.position, item.size))[0].body for item in items)


def test_the_answer_of_a_timer_has_a_handle(sim: SimCluster) -> None:
    (fields,) = send(sim, key="K")
    (row,) = sim.leader().state.timers.due(1 << 62)
    handle = decode_recall_handle(fields["recallHandle"])
    assert handle == RecallHandle("T", "raftmq", row.due_ms, "K", row.position)


def test_the_longest_key_is_recalled(sim: SimCluster) -> None:
    (fields,) = send(sim, key="K" * 32_500)
    assert recall(sim, fields["recallHandle"]) == (0, "K" * 32_500)
    assert recall(sim, "x" * 70_000)[0] == 29


@pytest.mark.parametrize("properties", ["DELAY\x013\x02", "", "TIMER_DELAY_MS\x010\x02"])
def test_others_have_none(sim: SimCluster, properties: str) -> None:
    """RocketMQ gives none either, not even to a message of a delay level."""
    (fields,) = send(sim, properties)
    assert "recallHandle" not in fields


def test_a_repeated_request_is_given_the_same(sim: SimCluster) -> None:
    again = [send(sim, key="K", pid=bytes(16), seq=1)[0]["recallHandle"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_recalled_is_not_delivered_and_the_others_of_its_row_are(sim: SimCluster, leads: bool) -> None:
    node = sim.leader() if leads else sim.followers()[0]
    answers = send(sim, f"TIMER_DELIVER_MS\x01{sim.leader().raw.log_time_ms() + 4000}\x02", count=4, queue_id=0)
    rows = list(sim.leader().state.timers.due(1 << 62))
    assert len(rows) < 4
    for at in (0, 2):
        handle = answers[at]["recallHandle"]
        key = decode_recall_handle(handle).unique_key
        assert recall(sim, handle, node=node) == (0, key)
        assert recall(sim, handle, node=node) == (0, key), "and again"
    assert sim.leader().state.timers.counts.recalled == 2
    sim.loop.run_for(8)
    assert bodies(sim) == [b"m2", b"m4"]
    assert sim.leader().state.timers.counts == TimerCounts(delivered=2, recalled=2)
    sim.settle()
    sim.check_equal()


def test_what_is_due_comes_too_late(sim: SimCluster) -> None:
    (fields,) = send(sim)
    sim.loop.run_until(lambda: bodies(sim), 20, "the message")
    code, remark = recall(sim, fields["recallHandle"])
    assert code == ILLEGAL
    assert "due" in remark


def test_what_makes_no_sense_is_refused(sim: SimCluster) -> None:
    sim.create_topic("U")
    (fields,) = send(sim, key="K")
    text = fields["recallHandle"]
    handle = decode_recall_handle(text)
    assert recall(sim, text, topic="absent")[0] == 17
    assert recall(sim, text, topic="U")[0] == ILLEGAL
    for wrong in (
        handle._replace(broker_name="other"),
        handle._replace(unique_key="L"),
        handle._replace(due_ms=handle.due_ms + 1),
        handle._replace(due_ms=handle.due_ms + 10**12, position=handle.position + 1),
        handle._replace(due_ms=1),
        handle._replace(due_ms=handle.due_ms + 1, position=handle.position + 1),
        handle._replace(position=1 << 62),
    ):
        assert recall(sim, wrong.encode())[0] == ILLEGAL
    for text in ("x", "djE", "", handle.encode() + "=", RecallHandle("T", "", 1, "", 1).encode()[:-4]):
        code, _ = recall(sim, text)
        assert code in (ILLEGAL, 29)
    sim.loop.run_for(8)
    assert bodies(sim) == [b"m1"]


@pytest.mark.parametrize("delayed", [False, True])
def test_a_message_that_is_delivered_is_not_said_to_be_recalled(sim: SimCluster, delayed: bool) -> None:
    """The handle says that it waits, and it does not."""
    (fields,) = send(sim, DELAYED if delayed else "", key="K")
    sim.loop.run_until(lambda: bodies(sim), 20, "the message")
    leader = sim.leader()
    due_ms = leader.raw.log_time_ms() + 60_000
    config = leader.state.topics["T"]
    (stored,) = [item for queue in range(config.queues) for item in leader.state.fetch(config.id, queue, 0, 1000)]
    positions = {stored.position}
    if delayed:
        positions.add(decode_recall_handle(fields["recallHandle"]).position)
    for position in positions:
        code, remark = recall(sim, RecallHandle("T", "raftmq", due_ms, "K", position).encode())
        assert (code, "no message waits" in remark) == (ILLEGAL, True)


def test_a_row_that_is_being_changed_is_not_delivered_meanwhile(sim: SimCluster) -> None:
    """The recall is in the log and cannot be decided; the message becomes due. No copy is made of what was there."""
    leader = sim.leader()
    due = leader.raw.log_time_ms() + 1500
    answers = send(sim, f"TIMER_DELIVER_MS\x01{due}\x02", count=2, queue_id=0)
    assert len(list(leader.state.timers.due(1 << 62))) == 1
    for node in sim.followers():
        node.append.hold()
    path = leader.connect()
    ext = {"producerGroup": "p", "topic": "T", "recallHandle": answers[0]["recallHandle"]}
    path.ask(encode_frame(RequestCode.RECALL_MESSAGE, 1, 0, ext=ext))
    sim.loop.run_until(lambda: leader.raw.log_time_ms() > due + 300, 10, "the due time")
    assert leader.running.serving.services.writes_open()
    assert 1 not in path.replies
    for node in sim.followers():
        node.append.release()
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    sim.loop.run_for(5)
    assert path.replies[1][0][0] == 0
    assert bodies(sim) == [b"m2"]


def test_a_new_leader_knows_what_was_recalled(sim: SimCluster) -> None:
    answers = send(sim, count=2)
    old = sim.leader()
    assert recall(sim, answers[0]["recallHandle"])[0] == 0
    sim.isolate(old)
    new = sim.leader(besides=old)
    assert recall(sim, answers[0]["recallHandle"], node=new)[0] == 0
    assert recall(sim, answers[1]["recallHandle"], node=new)[0] == 0
    sim.mend()
    sim.settle()
    sim.loop.run_for(8)
    assert bodies(sim) == []
    sim.check_equal()


def test_what_was_answered_early_is_taken_back_once_it_is_decided(sim: SimCluster) -> None:
    """Until then no row says that it waits, and the log that it has come to nothing."""
    followers = sim.followers()
    for node in followers:
        node.append.hold()
    (fields,) = send(sim, DELAYED + "ACK_LEVEL\x01leader\x02", key="K")
    path = sim.leader().connect()
    ext = {"producerGroup": "p", "topic": "T", "recallHandle": fields["recallHandle"]}
    path.ask(encode_frame(RequestCode.RECALL_MESSAGE, 1, 0, ext=ext))
    sim.loop.run_for(0.3)
    assert path.replies == {}
    for node in followers:
        node.append.release()
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    assert path.replies[1][0][0] == 0
    sim.loop.run_for(6)
    assert bodies(sim) == []
    sim.check_equal()


def test_nobody_takes_back_what_was_answered_early_and_lost(sim: SimCluster) -> None:
    old = sim.leader()
    sim.isolate(old)
    (fields,) = send(sim, DELAYED + "ACK_LEVEL\x01leader\x02", key="K")
    path = old.connect()
    ext = {"producerGroup": "p", "topic": "T", "recallHandle": fields["recallHandle"]}
    path.ask(encode_frame(RequestCode.RECALL_MESSAGE, 1, 0, ext=ext))
    sim.loop.run_for(10)
    sim.heal()
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    assert path.replies[1][0][0] != 0
