"""/v1/broker-groups: lists the groups of brokers, and adds one (docs/adr/0108-groups-share-one-truth-and-copy-it.md).

The list also says how far this node's copy of the data is that all groups share (topics, users, settings).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, applied
from cluster.admin.node_interface import AdminPort
from cluster.admin.route import Route
from cluster.requests.verb import Serves
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, BrokerGroup, usual_name
from statemachine.levels import GROUPS_LEVEL


class BrokerGroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A voter of a group of brokers, as the node that answers knows it."""

    id: int
    admin: str
    """The "host:port" of its HTTP API; "" if unknown."""
    away: bool = False
    """True if the leader of its group has no connection to it."""


class BrokerGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of brokers."""

    group: int
    name: str
    """Its broker name."""
    aliases: int
    """Number of broker names under which routes list this group for producers."""
    state: str = "active"
    """`active`; `draining`: it takes no new messages, and consumers read the old ones; `retired`: it is closed for
    ever."""
    since_ms: int | None = None
    """Log time of the first group, in ms since 1970, at which the group stopped being active; null while it is
    active."""
    leader: int | None = None
    """The id, within its group, of the last leader that the answering node has heard of; null if it has heard of
    none."""
    members: list[BrokerGroupMember] = []
    """The group's voters; [] if the answering node has not heard of the group yet."""


class BrokerGroupsView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/broker-groups`."""

    node: int
    group: int
    """The group of brokers of the answering node."""
    leader: int | None
    """The id of that group's leader as the answering node knows it; null if it knows none."""
    writes_open: bool
    """True if the node that answers leads its group and takes writes."""
    groups: list[BrokerGroupView]
    """All groups by number; [] if the cluster has only one group, whose name and aliases are then in its
    configuration."""
    version: int
    """Version of the shared data (topics, users, settings) that the answering node has. Nodes of the first group have
    the newest one, nodes of other groups the one that their group copied last."""
    ready: bool
    """True if another group can copy the shared data from this node."""


class AddBrokerGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/broker-groups`."""

    group: Annotated[int, Meta(ge=FIRST_GROUP + 1, le=GROUPS_MAX)]
    name: str = ""
    """The broker name; "" for the usual one: the first group's name, `-g` and two digits."""


class AddedBrokerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after a group was added."""

    node: int
    group: int
    name: str
    aliases: int
    term: int
    index: int


async def get_groups(call: Call) -> BrokerGroupsView:
    """Lists the groups of brokers with their nodes."""
    port, state, node = call.port, call.port.state, call.port.config.node.id
    rows = sorted(state.broker_groups.by_number.items())
    journal, own = state.truth_journal, port.config.cluster.group
    return BrokerGroupsView(
        node=node,
        group=own,
        leader=port.services.routes.own.leader() or None,
        writes_open=port.services.writes_open(),
        groups=[_view(port, number, row) for number, row in rows],
        version=journal.version if own == FIRST_GROUP else state.truth.copied,
        ready=journal.is_ready,
    )


def _view(port: AdminPort, number: int, row: BrokerGroup) -> BrokerGroupView:
    """Returns the view of a group. The nodes of this node's own group come from the members in force, those of another
    group from the last message about it."""
    routes, members = port.services.routes, []
    record, leader = routes.others().get(number), 0
    if number == port.config.cluster.group:
        leader, lost = int(routes.own.leader()), {peer.node for peer in port.status().peers if not peer.connected}
        voters = sorted(port.nodes.membership.in_force.voter_ids)
        members = [
            BrokerGroupMember(id=node, admin=routes.own.http_address(node), away=node in lost) for node in voters
        ]
    elif record is not None:
        leader = record.leader
        members = [
            BrokerGroupMember(id=each.node, admin=each.http, away=each.node in record.away) for each in record.members
        ]
    return BrokerGroupView(
        group=number,
        name=row.name,
        aliases=row.aliases,
        state=row.state.name.lower(),
        since_ms=None if row.is_active else row.since_ms,
        leader=leader or None,
        members=members,
    )


async def add_group(call: Call) -> AddedBrokerGroup:
    """Adds a group of brokers to the cluster, before its nodes start.

    When the second group is added, the number of aliases of each group is fixed to the present number of voters of the
    first group.
    """
    wanted: AddBrokerGroupRequest = call.body
    port = call.port
    state, cluster, first_name = port.state, port.config.cluster, port.services.routes.own.name
    if cluster.group != FIRST_GROUP:
        why = f"this node is of group {cluster.group}, and the groups are in the log of group {FIRST_GROUP}"
        raise ApiError("refused", why, f"ask a node of group {FIRST_GROUP}")
    call.check_level(GROUPS_LEVEL, "several groups")
    name = wanted.name or usual_name(first_name, wanted.group)
    voters = len(port.nodes.membership.in_force.voter_ids)
    first = None if state.broker_groups.by_number else (first_name, voters)
    entry, result = await applied(lambda done: port.services.propose([AddBrokerGroup(wanted.group, name, first)], done))
    group = result.value
    return AddedBrokerGroup(
        node=port.config.node.id,
        group=wanted.group,
        name=group.name,
        aliases=group.aliases,
        term=entry.term,
        index=entry.index,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/broker-groups", get_groups, BrokerGroupsView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "POST",
        "/v1/broker-groups",
        add_group,
        AddedBrokerGroup,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        AddBrokerGroupRequest,
    ),
)
