"""Clients that wait for less long than those of users, or for longer."""

from __future__ import annotations

from raftmq.client.environment import REAL, Environment
from raftmq.client.patience import Patience


def with_times(**seconds: float) -> Environment:
    """The real environment of a client, with these times of its `Patience`."""
    return REAL._replace(patience=Patience(**seconds))
