"""/v1/clients: who is connected to a node; disconnecting one."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.admin.errors import ApiError


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


class ClientsView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/clients`, `GET /v1/members/{id}/clients`."""

    node: int
    consistency: Literal["local"] = "local"
    total: int
    """Connections; the list has the busiest of them if there are more than it shows."""
    clients: list[ClientView]


class ClientGone(msgspec.Struct, frozen=True, kw_only=True):
    """`DELETE /v1/clients/{address}`."""

    node: int
    address: str
    disconnected: bool


async def list_clients(call: Call) -> ClientsView:
    """Connections of clients to this node, the busiest first: address, language, version, groups, rates."""
    total, clients = call.port.clients.view()
    return ClientsView(node=call.port.config.node.id, total=total, clients=clients)


async def list_member_clients(call: Call) -> ClientsView:
    """The same of any member."""
    return await list_clients(call)


async def disconnect_client(call: Call) -> ClientGone:
    """Closes one connection of a client; a healthy client connects again at once."""
    address = call.params["address"]
    if not call.port.clients.disconnect(address):
        raise ApiError("not_found", f"no client is connected from {address}", "GET /v1/clients lists all")
    call.port.events.note("client", f"client {address}", f"the connection from {address} was closed over HTTP")
    return ClientGone(node=call.port.config.node.id, address=address, disconnected=True)


async def disconnect_member_client(call: Call) -> ClientGone:
    """The same on any member."""
    return await disconnect_client(call)
