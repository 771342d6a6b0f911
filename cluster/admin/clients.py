"""/v1/clients: who is connected to a node; disconnecting one."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.admin.client_views import ClientView
from cluster.admin.errors import ApiError
from cluster.admin.item_page import Page
from cluster.admin.pieces import Pieces


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


async def list_clients(call: Call) -> Pieces:
    """Connections of clients to this node, the busiest first: address, language, version, groups, rates."""
    total, clients = await call.done(call.port.clients.view())
    page = Page(call)
    for client in clients:
        await page.turn()
        if not page.add(client):
            break
    return page.answer(ClientsView(node=call.port.config.node.id, total=total, clients=[]), "clients")


async def list_member_clients(call: Call) -> Pieces:
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
