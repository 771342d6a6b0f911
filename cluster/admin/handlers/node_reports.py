"""Returns a node's reports about itself: /v1/status, /metrics, /v1/recovery, /v1/links and /v1/clients. Also changes
its log level and its failpoints."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, Raw
from cluster.admin.node_interface import AdminPort, ClientView, NodeStatus
from cluster.admin.pagination import Page
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.peer.links import LinkView
from cluster.requests.verb import Serves
from cluster.runtime import logs
from cluster.runtime.failpoints.failpoints import FailpointError, FailpointSet, PointState
from cluster.state.recovery_views import RecoveryStatus
from raftmq_wire.codes import RequestCode

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of the answer to /metrics."""


async def get_status(call: Call) -> NodeStatus:
    """Returns role, term, leader, indexes, peers, recovery and limits of this node."""
    return call.port.status()


async def get_member_status(call: Call) -> NodeStatus:
    """Returns role, term, leader, indexes, peers, recovery and limits of a member."""
    return call.port.status()


async def get_metrics(call: Call) -> Raw:
    """Returns this node's metrics in Prometheus's text format."""
    port = call.port
    async with call.watch.scraping:
        return await _scraped(call, port)


async def _scraped(call: Call, port: AdminPort) -> Raw:
    await port.storage.topic_sizes.all()  # the gauges of the sizes show the last measurement, so measure now
    return Raw(CONTENT_TYPE, b"".join(await call.done(port.observed.exporter.scraped(call.watch.metrics()))))


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/recovery`."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    applied_index: int
    uptime_ms: int
    recovery: RecoveryStatus


async def get_recovery(call: Call) -> RecoveryView:
    """Returns how the last start went: stages, bytes scanned, entries replayed, findings, actions."""
    status = call.port.status()
    return RecoveryView(
        node=status.node, applied_index=status.applied_index, uptime_ms=status.uptime_ms, recovery=status.recovery
    )


class LinksView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/links`."""

    node: int
    consistency: Literal["local"] = "local"
    leader: int | None
    links: list[LinkView]


async def get_links(call: Call) -> LinksView:
    """Returns state, age and reason of this node's link to each other node."""
    return LinksView(
        node=call.port.config.node.id,
        leader=call.port.services.routes.own.leader() or None,
        links=call.port.nodes.links.view(),
    )


Level = Literal["debug", "info", "warning", "error"]


class LogLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/log-level`."""

    level: Level


class LogLevelView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/log-level`."""

    node: int
    level: Level
    """The level in force."""
    configured: Level
    """The level in the configuration (log_output.level), which the next start uses."""


async def get_log_level(call: Call) -> LogLevelView:
    """Returns the level of this node's log."""
    config = call.port.config
    return LogLevelView(node=config.node.id, level=logs.level(), configured=config.log_output.level)


async def set_log_level(call: Call) -> LogLevelView:
    """Changes the level of this node's log until its next start."""
    wanted: LogLevel = call.body
    before = logs.level()
    logs.set_level(wanted.level)
    about = call.port.object
    call.port.observed.events.note("configuration", about, f"the log level is {wanted.level} now, it was {before}")
    return await get_log_level(call)


class FailpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/failpoints`: {"name": "append.fdatasync", "action": "hold"}."""

    name: str
    action: str


class FailpointsView(msgspec.Struct, frozen=True, kw_only=True):
    """All failpoints of this node with their actions."""

    node: int
    failpoints: list[PointState]


async def list_failpoints(call: Call) -> FailpointsView:
    """Lists every failpoint, its action, and how often it took effect."""
    points = _enabled(call)
    return FailpointsView(node=call.port.config.node.id, failpoints=points.states())


async def set_failpoint(call: Call) -> FailpointsView:
    """Changes one failpoint and releases the calls that it held."""
    points, wanted = _enabled(call), call.body
    try:
        points.set(wanted.name, wanted.action)
    except FailpointError as error:
        raise ApiError("bad_field", error.message, error.hint) from None
    return FailpointsView(node=call.port.config.node.id, failpoints=points.states())


def _enabled(call: Call) -> FailpointSet:
    if not call.port.configuration.failpoints.enabled:
        raise ApiError(
            "failpoints_off",
            "failpoints are off on this node",
            "for tests only: restart it with [failpoints] enabled = true, or RAFTMQ_FAILPOINTS__ENABLED=true",
        )
    return call.port.configuration.failpoints


class ClientsView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/clients` and `GET /v1/members/{id}/clients`."""

    node: int
    consistency: Literal["local"] = "local"
    total: int
    """Number of connections. If the list has fewer, it shows the busiest ones."""
    clients: list[ClientView]


class ClientGone(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `DELETE /v1/clients/{address}`."""

    node: int
    address: str
    disconnected: bool


async def list_clients(call: Call) -> Pieces:
    """Lists the connections of clients to this node, the busiest first."""
    total, clients = await call.done(call.port.served.clients.view())
    page = Page(call)
    for client in clients:
        await page.turn()
        if not page.add(client):
            break
    return page.answer(ClientsView(node=call.port.config.node.id, total=total, clients=[]), "clients")


async def list_member_clients(call: Call) -> Pieces:
    """Lists the connections of clients to a member, the busiest first."""
    return await list_clients(call)


async def disconnect_client(call: Call) -> ClientGone:
    """Closes one connection of a client; a healthy client connects again at once."""
    address = call.params["address"]
    if not call.port.served.clients.disconnect(address):
        raise ApiError("not_found", f"no client is connected from {address}", "GET /v1/clients lists all")
    call.port.observed.events.note("client", f"client {address}", f"the connection from {address} was closed over HTTP")
    return ClientGone(node=call.port.config.node.id, address=address, disconnected=True)


async def disconnect_member_client(call: Call) -> ClientGone:
    """Closes one connection of a client to a member; a healthy client connects again at once."""
    return await disconnect_client(call)


ROUTES: Final[tuple[Route, ...]] = (
    Route.of_verb(
        "GET",
        "/v1/status",
        get_status,
        NodeStatus,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.GET_BROKER_RUNTIME_INFO),
    ),
    Route("GET", "/v1/clients", list_clients, ClientsView, route.page(), route_rights.CLUSTER_GET),
    Route("DELETE", "/v1/clients/{address}", disconnect_client, ClientGone, route.CONSTANT, route_rights.SUPER),
    Route("GET", "/v1/links", get_links, LinksView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route("GET", "/v1/log-level", get_log_level, LogLevelView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route("PUT", "/v1/log-level", set_log_level, LogLevelView, route.CONSTANT, route_rights.SUPER, body=LogLevel),
    Route("GET", "/v1/recovery", get_recovery, RecoveryView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "GET",
        "/v1/members/{id}/clients",
        list_member_clients,
        ClientsView,
        route.page(),
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
    ),
    Route(
        "DELETE",
        "/v1/members/{id}/clients/{address}",
        disconnect_member_client,
        ClientGone,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.MEMBER,
    ),
    Route(
        "GET",
        "/v1/members/{id}/status",
        get_member_status,
        NodeStatus,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
    ),
    Route("GET", "/v1/failpoints", list_failpoints, FailpointsView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "PUT",
        "/v1/failpoints",
        set_failpoint,
        FailpointsView,
        route.CONSTANT,
        route_rights.SUPER,
        body=FailpointRequest,
    ),
    Route("GET", "/metrics", get_metrics, "text/plain", route.page(bytes_max=4 << 20), route_rights.CLUSTER_GET),
)
