"""/v1/registry: shows the processes of the registry, as the answering node knows them (docs/registry.md)."""

from __future__ import annotations

from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call
from cluster.admin.route import Route
from cluster.placement.known_groups import has_majority
from cluster.placement.registry_state import RegistryProcess


class RegistryProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the registry."""

    id: int
    address: str
    """The "host:port" where nodes register, from `cluster.registry`."""
    reached: bool
    """True if the answering node is connected to it, and both have proven the cluster's secret. The process itself
    reports the fields below; they are null while this is false."""
    ready: bool | None = None
    """True if it answers clients."""
    missing: list[int] | None = None
    """Numbers of the groups of brokers from which no node has registered in the last 45 s. The process has no routes to
    them."""
    living: int | None = None
    """The number of nodes that are connected to it."""
    accepts: bool | None = None
    """True if its last operation was accepted by a majority of the registry's processes."""
    leader: int | None = None
    """Id of the process that leads the registry; null if it knows none."""
    operations: int | None = None
    """The number of operations that were accepted since its start."""
    journal_operations: int | None = None
    """The number of operations in its journal."""
    accepted_ms: int | None = None
    """Milliseconds since an operation was accepted; null if none was."""
    child_restarts: int | None = None
    """Number of times that the process restarted its child process."""


class RegistryView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/registry`."""

    node: int
    group: int
    processes: list[RegistryProcessView]
    """The processes in this node's `cluster.registry`; [] if the cluster has no registry."""
    has_majority: bool
    """True if the answering node reaches more than half of the processes, or if there are none."""


def _view(process: RegistryProcess) -> RegistryProcessView:
    number, address, reached, state = process
    if state is None:
        return RegistryProcessView(id=number, address=address, reached=reached)
    return RegistryProcessView(
        id=number,
        address=address,
        reached=reached,
        ready=state.ready,
        missing=state.missing,
        living=state.living,
        accepts=state.has_majority,
        leader=state.leader or None,
        operations=state.operations,
        journal_operations=state.entries,
        accepted_ms=None if state.accepted_ms < 0 else state.accepted_ms,
        child_restarts=max(0, state.child_starts - 1),
    )


async def get_registry(call: Call) -> RegistryView:
    """Returns the processes of the registry, and which of them this node reaches."""
    found = call.port.nodes.registry()
    processes = [_view(each) for each in found]
    return RegistryView(
        node=call.port.config.node.id,
        group=call.port.config.cluster.group,
        processes=processes,
        has_majority=has_majority(found),
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/registry", get_registry, RegistryView, route.CONSTANT, route_rights.CLUSTER_GET),
)
