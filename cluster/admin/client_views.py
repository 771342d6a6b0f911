"""A connection of a client as the HTTP API shows it. No logic."""

from __future__ import annotations

from typing import Literal

import msgspec


class ClientGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a client is in, as its heartbeats say."""

    name: str
    role: Literal["producer", "consumer"]
    client_id: str


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """One connection of a client."""

    address: str
    """"ip:port"; names the connection on this node."""
    listener: str
    since: str
    """When it connected: RFC 3339, UTC."""
    language: str
    """"" until its first heartbeat."""
    version: int
    """RocketMQ's number of the client's version; 0 until its first heartbeat."""
    groups: list[ClientGroup]
    received_bytes: int
    """From the client, since it connected."""
    sent_bytes: int
    """To the client."""
    received_bytes_per_s: float
    """Since somebody asked before, or since it connected."""
    sent_bytes_per_s: float
    unsent_bytes: int
    """Answers that the client has not taken yet."""
    inflight_bytes: int
    """Requests that are not answered yet."""
