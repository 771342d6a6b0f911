"""/v1/registry: the processes of the registry, as the node that answers reaches them (docs/registry.md)."""

from __future__ import annotations

from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call
from cluster.admin.route import Route
from cluster.placement.known_groups import has_majority


class RegistryProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the registry."""

    id: int
    address: str
    """The "host:port" where nodes register, from `cluster.registry`."""
    reached: bool
    """True if this node has a connection to it on which both sides have proven the cluster's secret."""


class RegistryView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/registry`."""

    node: int
    group: int
    processes: list[RegistryProcessView]
    """All processes that `cluster.registry` of this node names; none if the cluster has no registry."""
    has_majority: bool
    """True if this node reaches more than half of them, or there are none."""


async def get_registry(call: Call) -> RegistryView:
    """The processes of the registry, and which of them this node reaches."""
    found = call.port.registry()
    processes = [RegistryProcessView(id=each.id, address=each.address, reached=each.reached) for each in found]
    return RegistryView(
        node=call.port.config.node.id,
        group=call.port.config.cluster.group,
        processes=processes,
        has_majority=has_majority(found),
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/registry", get_registry, RegistryView, route.CONSTANT, route_rights.CLUSTER_GET),
)
