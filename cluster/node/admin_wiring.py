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
    members, clock = node.serving.broker.members, node.environment.clock
    return AdminPort(
        current_config=lambda: node.config,
        state=node.state,
        access=_access_of(node),
        services=node.serving.services,
        wall_ms=clock.wall_ms,
        status=lambda: node_view.status(node),
        configuration=ConfigurationPort(
            tls=node.peers.tls,
            failpoints=node.failpoints,
            overruled=node.layers.overruled,
            held=lambda: node.layers.held,
            reload=node.reload,
        ),
        nodes=NodesPort(
            membership=node.peers.membership,
            changes=node.peers.changes,
            levels=node.peers.levels,
            moves=node.integrity.moves,
            links=node.peers.links,
            connected=node.peers.transport.connected,
            registry=node.serving.other_groups.registry,
            transfer=node.succession.transfer,
            genesis_payload=lambda: node.storage.directory.log.genesis.entry().payload,
            secret_keys=lambda: node.peers.transport.keyring.keys,
        ),
        served=ServedPort(
            rights=node.serving.broker.rights,
            queries=node.serving.broker.queries,
            clients=ClientList(
                node.serving.remoting.router.connections,
                members,
                asyncio.get_running_loop().time,
                clock.wall_ms,
            ),
            members=lambda group: node_view.members(members, group, node.serving.services.awake_ms()),
            member_count=members.member_count,
            broadcasts=lambda group: node_view.broadcasts(members, group),
            sharers=lambda group, topic: sharers(members.consumers.get(group), topic),
            group_watch=node.serving.broker.group_watch,
        ),
        storage=StoragePort(
            topic_sizes=node.serving.broker.topic_sizes,
            retention=node.keeping.retention,
            tier=node.keeping.tier,
            tier_scrubs=node.keeping.tier_scrubs,
            evicted_bounds=None if node.serving.tier_access is None else node.serving.tier_access.bounds,
            evicted_pages=None if node.serving.tier_access is None else node.serving.tier_access.reading.pages,
            backups=node.keeping.backups,
            repairs=node.integrity.repairs,
            consistency=node.integrity.consistency,
            scrubber=node.integrity.scrubber,
        ),
        limits=LimitsPort(
            paced=node.serving.proposals.flow.paced,
            learnt=node.serving.proposals.flow.learnt,
            hot=lambda: node.serving.proposals.figures.hot.last,
            grace_left_ms=lambda: node.serving.proposals.topics.drain.left_ms(clock.monotonic_ms()),
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
        return node.serving.services.cluster_uuids()[0]

    environment = node.environment
    passes = Passes(
        node=name_of(node.config.cluster.group, node.config.node.id),
        uuid=uuid,
        keyring=lambda: node.peers.transport.keyring,
        entropy=environment.entropy,
        wall_ms=environment.clock.wall_ms,
    )
    return HttpAccess(
        node.state.access,
        node.serving.broker.user_admin,
        passes,
        cluster=node.config.cluster.name,
        uuid=uuid,
        stale=node.serving.unheard,
        entropy=environment.entropy,
        log_time_ms=node.serving.services.log_time_ms,
        secrets=node.serving.broker.secrets,
        denials=node.serving.broker.denials,
        guesses=node.serving.broker.guesses,
        confirms=node.serving.confirmed,
    )
