"""Messages of %RETRY% topics: in the log at once, pulled 5 s later, whatever else happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.hold_back import HOLD_MS, STEP_MS, HoldBack
from raftlog.types import NodeId
from tests.cluster.remoting.conftest import FakeNode

RETRY = "%RETRY%g"


def pull(node: FakeNode, offset: int, topic: str = RETRY, **fields: Any) -> Any:
    ext: dict[str, Any] = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subVersion": 0,
        "subscription": "*",
    }
    return node.ask(11, **(ext | fields))


def test_a_message_of_a_retry_topic_is_not_there_for_five_seconds(node: FakeNode) -> None:
    node.create_topic(RETRY, queues=1)
    node.create_topic("T", queues=1)
    node.store(RETRY, b"again")
    node.store("T", b"plain")
    assert pull(node, 0, "T").answer.code == 0, "other topics do not wait"
    for filtered in ("*", "x"):
        assert pull(node, 0, subscription=filtered).answer.code == 19, "as if it were not there"
    node.advance(HOLD_MS - 1)
    assert pull(node, 0).answer.code == 19
    node.advance(1 + STEP_MS)
    assert pull(node, 0).answer.code == 0


@pytest.mark.parametrize("leads", [True, False])
def test_a_long_poll_wakes_when_the_time_is_over(node: FakeNode, leads: bool) -> None:
    node.create_topic(RETRY, queues=1)
    held = pull(node, 0, sysFlag=4 | 2)
    if not leads:
        node.leader = NodeId(1)
    begun = node.now_ms
    stored = node.store(RETRY, b"again")
    while not held.replies:
        node.advance(10)
    assert HOLD_MS <= node.now_ms - begun <= HOLD_MS + 2 * STEP_MS
    assert (held.answer.code, held.answer.body) == (0, stored[0])


def test_later_messages_wait_for_themselves(node: FakeNode) -> None:
    node.create_topic(RETRY, queues=1)
    first = node.store(RETRY, b"first")
    node.advance(3_000)
    second = node.store(RETRY, b"second")
    node.advance(HOLD_MS - 3_000 + STEP_MS)
    reply = pull(node, 0).answer
    assert (reply.body, reply.ext["nextBeginOffset"]) == (first[0], "1")
    assert pull(node, 1).answer.code == 19
    node.advance(3_000)
    assert pull(node, 0).answer.body == first[0] + second[0]


def test_a_consumer_that_has_read_further_elsewhere_is_not_sent_back(node: FakeNode) -> None:
    """Another node applied the message earlier and has served it: its reader's offset is no overflow here."""
    node.create_topic(RETRY, queues=1)
    node.store(RETRY, b"a", b"b")
    for offset in (1, 2):
        assert pull(node, offset).answer.code == 19
    assert pull(node, 3).answer.code == 21


def test_what_a_node_finds_at_its_start_waits_too(node: FakeNode) -> None:
    """It may have been stored in that very moment."""
    node.create_topic(RETRY, queues=1)
    node.store(RETRY, b"again")
    node.advance(60_000)
    node.table |= node.pull_handlers()  # the node starts again
    assert pull(node, 0).answer.code == 19
    node.advance(HOLD_MS + STEP_MS)
    assert pull(node, 0).answer.code == 0


def test_rows_that_are_applied_and_not_told_yet_wait(node: FakeNode) -> None:
    """Apply has a thread of its own: its rows can be seen before the loop hears of them."""
    node._on_applied.clear()
    hold = HoldBack(node, lambda queues: None)
    node.create_topic(RETRY, queues=1)
    tell, node._on_applied = node._on_applied, []
    node.store(RETRY, b"again")
    topic_id = node.state.topics[RETRY].id
    node.advance(HOLD_MS * 2)
    assert hold.end(topic_id, 0) == 0
    for callback in tell:
        callback({(topic_id, 0)})
    assert hold.end(topic_id, 0) == 0
    node.advance(HOLD_MS + STEP_MS)
    assert hold.end(topic_id, 0) == 1


def test_steps_and_timers_are_bounded_however_fast_a_queue_grows(node: FakeNode) -> None:
    node.create_topic(RETRY, queues=1)
    for _ in range(3_000):
        node.store(RETRY, b"m")
        node.now_ms += 1
    assert node.timers <= HOLD_MS // STEP_MS + 2


def test_queues_of_deleted_topics_are_forgotten(node: FakeNode) -> None:
    hold = HoldBack(node, lambda queues: None)
    for number in range(1_100):
        name = f"{RETRY}{number}"
        node.create_topic(name, queues=1)
        node.store(name, b"m")
        node.command("delete_topic", name)
    assert len(hold._queues) <= 1_024
