"""Connects a node's services with its HTTP API. It is imported only when needed: the import is slow, and a simulated
node has no HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.admin.access import HttpAccess
from cluster.admin.client_list import ClientList
from cluster.admin.node_interface import (
    AdminPort,
    LimitsPort,
    NodesPort,
    ServedPort,
    StoragePort,
)
from cluster.admin.signed_identity import Passes
from cluster.broker.groups.assignment import sharers
from cluster.config.local_layout import name_of
from cluster.node import node_view

if TYPE_CHECKING:
    from cluster.admin.node_interface import ConfigurationPort, NodeStatus, ObservedPort
    from cluster.admin.server import AdminServer
    from cluster.config.config import Config
    from cluster.node.integrity import Integrity
    from cluster.node.keeping import Keeping
    from cluster.node.peers import Peers
    from cluster.node.serving import Serving
    from cluster.runtime.context import NodeContext
    from cluster.state.node_storage import NodeStorage


async def admin_of(port: AdminPort) -> AdminServer:
    """Returns the HTTP server, not started yet. Its modules are imported on a thread, so that the event loop keeps
    running."""
    return (await asyncio.get_running_loop().run_in_executor(None, _server))(port)


def _server() -> type[AdminServer]:
    from cluster.admin.server import AdminServer

    return AdminServer


def port_of(
    context: NodeContext,
    storage: NodeStorage,
    peers: Peers,
    integrity: Integrity,
    serving: Serving,
    keeping: Keeping,
    *,
    configuration: ConfigurationPort,
    observed: ObservedPort,
    config: Callable[[], Config],
    status: Callable[[], NodeStatus],
) -> AdminPort:
    """Returns the port through which the HTTP API uses the node's services, state and figures."""
    members, clock = serving.broker.members, context.clock
    return AdminPort(
        current_config=config,
        state=storage.state,
        access=_access_of(context, storage, peers, serving),
        services=serving.services,
        wall_ms=clock.wall_ms,
        status=status,
        configuration=configuration,
        nodes=NodesPort(
            membership=peers.membership,
            changes=peers.changes,
            levels=peers.levels,
            moves=integrity.moves,
            links=peers.links,
            connected=peers.transport.connected,
            registry=serving.other_groups.registry,
            transfer=context.succession.transfer,
            genesis_payload=lambda: storage.directory.log.genesis.entry().payload,
            secret_keys=lambda: peers.transport.keyring.keys,
        ),
        served=ServedPort(
            rights=serving.broker.rights,
            queries=serving.broker.queries,
            resets=serving.broker.resets,
            clients=ClientList(
                serving.remoting.router.connections,
                members,
                asyncio.get_running_loop().time,
                clock.wall_ms,
            ),
            members=lambda group: node_view.members(members, group, serving.services.awake_ms()),
            member_count=members.member_count,
            broadcasts=lambda group: node_view.broadcasts(members, group),
            sharers=lambda group, topic: sharers(members.consumers.get(group), topic),
            group_watch=serving.broker.group_watch,
        ),
        storage=StoragePort(
            topic_sizes=serving.broker.topic_sizes,
            retention=keeping.retention,
            tier=keeping.tier,
            tier_scrubs=keeping.tier_scrubs,
            evicted_bounds=None if serving.tier_access is None else serving.tier_access.bounds,
            evicted_pages=None if serving.tier_access is None else serving.tier_access.reading.pages,
            backups=keeping.backups,
            repairs=integrity.repairs,
            consistency=integrity.consistency,
            scrubber=integrity.scrubber,
        ),
        limits=LimitsPort(
            paced=serving.proposals.flow.paced,
            learnt=serving.proposals.flow.learnt,
            hot=lambda: serving.proposals.figures.hot.last,
            grace_left_ms=lambda: serving.proposals.topics.drain.left_ms(clock.monotonic_ms()),
        ),
        observed=observed,
    )


def _access_of(context: NodeContext, storage: NodeStorage, peers: Peers, serving: Serving) -> HttpAccess:
    def uuid() -> str:
        return serving.services.cluster_uuids()[0]

    config, environment = context.config, context.environment
    passes = Passes(
        node=name_of(config.cluster.group, config.node.id),
        uuid=uuid,
        keyring=lambda: peers.transport.keyring,
        entropy=environment.entropy,
        wall_ms=environment.clock.wall_ms,
    )
    return HttpAccess(
        storage.state.access,
        serving.broker.user_admin,
        passes,
        cluster=config.cluster.name,
        uuid=uuid,
        stale=serving.unheard,
        entropy=environment.entropy,
        log_time_ms=serving.services.log_time_ms,
        secrets=serving.broker.secrets,
        denials=serving.broker.denials,
        guesses=serving.broker.guesses,
        confirms=serving.confirmed,
    )
