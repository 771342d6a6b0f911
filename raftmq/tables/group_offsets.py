"""Commits the offsets of a table for a consumer group, so that the cluster shows the table's lag as that group's."""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.client.errors import NotFound
from raftmq.client.sync_admin import Admin
from raftmq.tables.missing import Queue
from raftmq_wire.topic_identity import Position


def commit_offsets(admin: Admin, group: str, positions: Mapping[Queue, Position]) -> None:
    """Commits the positions for the consumer group, and creates the group if it does not exist. Raises RaftMQError."""
    for (topic, queue_id), position in positions.items():
        try:
            admin.commit(group, topic, queue_id, position)
        except NotFound:
            admin.create_group(group)
            admin.commit(group, topic, queue_id, position)
