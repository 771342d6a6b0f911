"""A node that applies again what its log held: what is applied is served at once, the rest is "not yet"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.types import NodeId
from raftmq_wire.message_format import decode_messages


def pull(node: Any, offset: int, suspend_ms: int) -> Any:
    return node.ask(
        11,
        consumerGroup="g",
        topic="T",
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=6,
        commitOffset=0,
        suspendTimeoutMillis=suspend_ms,
        subVersion=0,
        subscription="*",
    )


def bodies(request: Any) -> list[bytes]:
    assert request.answer.code == 0
    return [message.body for message in decode_messages(request.answer.body)]


def test_e10_consumers_are_served_while_the_log_is_applied_again(node: Any, node_with: Callable[..., Any]) -> None:
    node.create_topic("T", 1)
    for n in range(10):
        node.store("T", b"%d" % n)
    entries = node.entries
    behind = node_with()
    behind.take_log(node)
    behind.leader = NodeId(1)
    behind.state.apply(entries[:6])
    assert bodies(pull(behind, 0, 0)) == [b"0", b"1", b"2", b"3", b"4"]
    waiting = pull(behind, 5, 15000)
    beyond = pull(behind, 8, 15000)
    assert not waiting.replies, "the offset lies beyond what is applied: not yet, and never moved back"
    assert not beyond.replies
    for entry in entries[6:]:
        behind.apply(entry)
    assert bodies(waiting) == [b"5"]
    assert bodies(beyond) == [b"8"]
