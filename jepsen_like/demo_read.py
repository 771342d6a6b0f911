"""The reading half of the demo: every queue of one node from the first offset to the end, nothing removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.client.pull import PullStatus
from jepsen_like.demo_input import message_id_of
from jepsen_like.history import HistoryWriter

if TYPE_CHECKING:
    from cluster.client import Client
    from cluster.local_layout import NodeRecord

PULL_MESSAGES = 512
READERS_FROM = 1_000_000
"""Process numbers of readers start here, apart from those of senders."""


def read_node(mq: Client, node: NodeRecord, topic: str, queues: int, history: HistoryWriter) -> int:
    """Reads all queues of a topic from that one node into the history; returns how many messages came.

    No filter and no dedup: whatever the node sends is written down, in its order, also twice.
    """
    process = READERS_FROM + node.id
    return sum(_read_queue(mq, node, topic, queue_id, process, history) for queue_id in range(queues))


def _read_queue(mq: Client, node: NodeRecord, topic: str, queue_id: int, process: int, history: HistoryWriter) -> int:
    offset, count = 0, 0
    while True:
        asked = {"node": node.id, "topic": topic, "queue_id": queue_id, "offset": offset}
        invoked = history.invoke(process, "read", asked)
        pulled = mq.pull(topic, queue_id, offset, PULL_MESSAGES, node=f"127.0.0.1:{node.broker_port}")
        rows = [[message.queue_offset, message_id_of(message.body)] for message in pulled.messages]
        ended = pulled.status is PullStatus.END or (not rows and pulled.next_offset <= offset)
        history.ok(invoked, {"messages": rows, "end": ended})
        if ended:
            return count
        count += len(rows)
        offset = pulled.next_offset
