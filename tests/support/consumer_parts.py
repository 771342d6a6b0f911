"""The part of a consumer that divides the queues, as tests of the client see it."""

from __future__ import annotations

from typing import Any

from raftmq.client.consuming.assigned_queues import QueueShare


def share_of(consumer: Any) -> QueueShare:
    """Returns the share of its group's queues that a consumer, or what stands for one, has."""
    share: QueueShare = consumer._share
    return share
