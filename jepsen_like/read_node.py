"""Reads queues of one node from offset zero to their ends, and records the rows, unfiltered, as steps of a history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jepsen_like.history import READERS_FROM, HistoryWriter, node_number
from raftmq.client.consuming.pull import PullStatus

if TYPE_CHECKING:
    from cluster.config.local_layout import NodeRecord
    from raftmq.client import Client

PULL_MESSAGES = 1024
_TIMEOUT_S = 30.0


def read_node(
    mq: Client,
    node: NodeRecord,
    topic: str,
    queues: Iterable[int],
    history: HistoryWriter,
    id_of: Callable[[bytes], str],
) -> int:
    """Reads these queues of a topic from that one node into the history; returns the number of messages.

    It applies no filter and no deduplication: whatever the node answers is recorded, in its order, also twice. `id_of`
    returns the id that a body contains.
    """

    number = node_number(node.id, node.group)

    def read_queue(queue_id: int) -> int:
        offset, count = 0, 0
        while True:
            asked = {"node": number, "topic": topic, "queue_id": queue_id, "offset": offset}
            invoked = history.invoke(READERS_FROM + number, "read", asked)
            address = f"127.0.0.1:{node.broker_port}"
            pulled = mq.pull(topic, queue_id, offset, PULL_MESSAGES, node=address, timeout_s=_TIMEOUT_S)
            rows = [[message.queue_offset, id_of(message.body)] for message in pulled.messages]
            ended = pulled.status is PullStatus.END or (not rows and pulled.next_offset <= offset)
            history.ok(invoked, {"messages": rows, "end": ended})
            if ended:
                return count
            count += len(rows)
            offset = pulled.next_offset

    return sum(read_queue(queue_id) for queue_id in queues)
