"""The offsets of a table as those of a consumer group, so that the cluster shows, measures and finds its lag."""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.client.errors import NotFound
from raftmq.client.sync_admin import Admin
from raftmq.tables.missing import Queue
from raftmq_wire.topic_identity import Position


def commit_offsets(admin: Admin, group: str, positions: Mapping[Queue, Position]) -> None:
    """Commits the positions for the consumer group, which is made if it is not there. Raises RaftMQError."""
    for (topic, queue_id), position in positions.items():
        try:
            admin.commit(group, topic, queue_id, position)
        except NotFound:
            admin.create_group(group)
            admin.commit(group, topic, queue_id, position)
