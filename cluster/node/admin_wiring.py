"""The HTTP API of a node. Imported only when needed: the import is slow, and a simulated node has no HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cluster.admin.access import HttpAccess
from cluster.admin.client_list import ClientList
from cluster.admin.node_interface import (
    AdminPort,
    ConfigurationPort,
    LimitsPort,
    NodesPort,
    ObservedPort,
    ServedPort,
    StoragePort,
)
from cluster.admin.signed_identity import Passes
from cluster.broker.groups.assignment import sharers
from cluster.config.local_layout import name_of
from cluster.node import node_view
from cluster.runtime.findings import Condition

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer
    from cluster.node.assembly import Assembly
    from cluster.node.metrics import Exporter


async def admin_of(port: AdminPort) -> AdminServer:
    """Makes the HTTP server, not started. The loop keeps running while its modules are imported."""
    return (await asyncio.get_running_loop().run_in_executor(None, _server))(port)


def _server() -> type[AdminServer]:
    from cluster.admin.server import AdminServer

    return AdminServer


def port_of(node: Assembly, exporter: Exporter, findings: Sequence[Callable[[], Iterable[Condition]]]) -> AdminPort:
    """Returns the node's services and figures in the form in which the HTTP API uses them."""
    return AdminPort(
        current_config=lambda: node.config,
        state=node.state,
        access=_access_of(node),
        services=node.services,
        wall_ms=node.environment.clock.wall_ms,
        status=lambda: node_view.status(node),
        configuration=ConfigurationPort(
            tls=node.tls,
            failpoints=node.failpoints,
            overruled=node.layers.overruled,
            held=lambda: node.layers.held,
            reload=node.reload,
        ),
        nodes=NodesPort(
            membership=node.membership,
            changes=node.changes,
            levels=node.levels,
            moves=node.moves,
            links=node.links,
            connected=node.transport.connected,
            registry=node.other_groups.registry,
            transfer=node.succession.transfer,
            genesis_payload=lambda: node.storage.directory.log.genesis.entry().payload,
            secret_keys=lambda: node.transport.keyring.keys,
        ),
        served=ServedPort(
            rights=node.broker.rights,
            queries=node.broker.queries,
            clients=ClientList(
                node.router.connections, node.clients, asyncio.get_running_loop().time, node.environment.clock.wall_ms
            ),
            members=lambda group: node_view.members(node.clients, group, node.services.awake_ms()),
            member_count=node.clients.member_count,
            broadcasts=lambda group: node_view.broadcasts(node.clients, group),
            sharers=lambda group, topic: sharers(node.clients.consumers.get(group), topic),
            group_watch=node.broker.group_watch,
        ),
        storage=StoragePort(
            topic_sizes=node.broker.topic_sizes,
            retention=node.retention,
            tier=node.tier,
            tier_scrubs=node.tier_scrubs,
            evicted_bounds=None if node.tier_access is None else node.tier_access.bounds,
            evicted_pages=None if node.tier_access is None else node.tier_access.reading.pages,
            backups=node.backups,
            repairs=node.repairs,
            consistency=node.consistency,
            scrubber=node.scrubber,
        ),
        limits=LimitsPort(
            paced=node.proposals.flow.paced,
            learnt=node.proposals.flow.learnt,
            hot=lambda: node.proposals.figures.hot.last,
            grace_left_ms=lambda: node.proposals.drain.left_ms(node.environment.clock.monotonic_ms()),
        ),
        observed=ObservedPort(
            alarms=node.alarms,
            findings=findings,
            events=node.events,
            exporter=exporter,
            counted=lambda: node_view.counted(node),
        ),
    )


def _access_of(node: Assembly) -> HttpAccess:
    def uuid() -> str:
        return node.services.cluster_uuids()[0]

    environment = node.environment
    passes = Passes(
        node=name_of(node.config.cluster.group, node.config.node.id),
        uuid=uuid,
        keyring=lambda: node.transport.keyring,
        entropy=environment.entropy,
        wall_ms=environment.clock.wall_ms,
    )
    return HttpAccess(
        node.state.access,
        node.broker.user_admin,
        passes,
        cluster=node.config.cluster.name,
        uuid=uuid,
        stale=node.unheard,
        entropy=environment.entropy,
        log_time_ms=node.services.log_time_ms,
        secrets=node.broker.secrets,
        denials=node.broker.denials,
        guesses=node.broker.guesses,
        confirms=node.confirmed,
    )
