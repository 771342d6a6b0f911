"""/v1/members: lists the members of the cluster and changes them. /v1/leader/transfer transfers leadership."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError, HandedOver, unknown_outcome
from cluster.admin.handler_request import BELOW_THREE, DRY_RUN, Call, ReadView, comes_true, decided
from cluster.admin.node_interface import AdminPort, NodeStatus
from cluster.admin.request_parsing import flag_of
from cluster.admin.route import Route
from cluster.config.address import split_address
from cluster.config.local_layout import names_of
from cluster.config.node_sections import PeerNode
from cluster.members import views as membership
from cluster.members.address_change import CheckUnderWay, MemberPlace, Proof
from cluster.members.addresses import MemberAddresses
from cluster.members.changes import ChangeOutcome
from cluster.members.checks import CanStopView, Group, Unconfirmed, can_stop
from cluster.members.views import (
    AddRequest,
    AncestorView,
    ClaimView,
    DrainRequest,
    DrainView,
    FormerMember,
    JoinView,
    MemberChanged,
    MembersView,
    NodeMember,
    TransferRequest,
    TransferView,
)
from cluster.members.voter_claims import claim, is_proven
from cluster.requests.verb import Serves
from cluster.runtime.request_limits import Note
from raftlog.errors import MembershipError, NotLeaderError, RaftLogError
from raftlog.types import NOBODY, EntryId, NodeId
from raftmq_wire.errors import LocalError
from statemachine.cluster_wide.settings import SetMaintenance

POLL_S = 0.01

# --- reading ---------------------------------------------------------------------------------------------------------


async def list_members(call: Call) -> MembersView:
    """Lists the members of the cluster, and how far each has come."""
    port, service = call.port, call.port.nodes.membership
    members, status = service.in_force, call.port.status()
    group = port.nodes.changes.group()
    return MembersView(
        node=port.config.node.id,
        consistency=call.consistency,
        applied_index=status.applied_index,
        term=status.term,
        leader=status.leader,
        cluster_id=str(members.cluster_uuid),
        index=members.index,
        committed=service.is_committed,
        reason=members.reason,
        detail=members.detail,
        quorum=len(members.voters) // 2 + 1,
        members=[_member(port, NodeId(node), group, status) for node in sorted(members.node_uuids)],
        removed=[FormerMember(id=voter.id, uuid=str(voter.uuid)) for voter in members.removed],
        next_id=service.next_id,
        removed_since=service.removed_since,
        drained=port.nodes.changes.drained,
    )


def _member(port: AdminPort, node: NodeId, group: Group, status: NodeStatus) -> NodeMember:
    service, peer = port.nodes.membership, group.peers.get(node)
    members, addresses = service.in_force, service.addresses.get(node, MemberAddresses("", 0, "", {}))
    is_learner, knows = node in members.learner_ids, peer is not None
    seen = next((each for each in status.peers if each.node == node), None)
    sync_ms = status.sync_ms if node == status.node else seen.sync_ms if seen else None
    return NodeMember(
        id=node,
        uuid=str(members.node_uuids[node]),
        role="learner" if is_learner else "voter",
        manual=node in members.manual,
        leader=node == port.services.routes.own.leader(),
        host=addresses.host,
        port=addresses.port,
        admin=addresses.admin,
        listeners=dict(addresses.listeners),
        connected=node == port.config.node.id or port.nodes.connected(node),
        match_index=peer.match_index if peer else None,
        lag_entries=peer.lag if peer else None,
        lag_bytes=seen.lag_bytes if seen else None,
        lag_ms=seen.lag_ms if seen else None,
        sync_ms=sync_ms,
        lag_bytes_per_s=seen.lag_bytes_per_s if seen else None,
        caught_up_in_s=seen.caught_up_in_s if seen else None,
        snapshot_in_s=seen.snapshot_in_s if seen else None,
        state=peer.state if peer else None,
        live=node in group.live if knows else None,
        fit=peer.fit if peer else None,
        caught_up=port.nodes.changes.is_caught_up(node) if is_learner and knows else None,
        maintenance=node in port.state.settings.maintenance,
    )


async def describe_joining(call: Call) -> JoinView:
    """Returns the data that a new node needs for its directory and configuration."""
    port, service = call.port, call.port.nodes.membership
    members, identity = service.in_force, service.identity
    return JoinView(
        node=port.config.node.id,
        applied_index=port.state.applied.index,
        consistency=call.consistency,
        cluster=port.config.cluster.name,
        broker=port.services.routes.own.name,
        cluster_id=str(members.cluster_uuid),
        group=identity.group_id,
        genesis=base64.b64encode(port.nodes.genesis_payload()).decode(),
        ancestors=[
            AncestorView(cluster_id=str(each.cluster_uuid), last_index=each.last_index) for each in identity.origin
        ],
        next_id=service.next_id,
        taken_ids=service.taken_ids,
        peers=[
            PeerNode(
                id=node,
                host=addresses.host,
                port=addresses.port,
                admin=addresses.admin,
                listeners=dict(addresses.listeners),
            )
            for node, addresses in service.addresses.items()
        ],
        secret_key=port.status().secret.key,
    )


async def claim_node(call: Call) -> ClaimView:
    """Assigns an initial node of the cluster to the machine that will run it (raftmq init --join).

    A node can be claimed only once. The request must prove the cluster's secret.
    """
    port, wanted = call.port, call.body
    config, identity = port.config, port.nodes.membership.identity
    if not is_proven(port.nodes.secret_keys(), wanted.id, wanted.token, wanted.proof):
        raise ApiError(
            "denied",
            "the claim does not prove the secret of this cluster",
            "copy SECRET of a running node: raftmq init --join HOST:PORT --secret FILE --config FILE",
        )
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, claim, Path(config.node.data_dir), wanted.id, wanted.token)
    except LocalError as error:
        raise ApiError("refused", f"{error.what}: {error.why}", error.fix) from None
    except (OSError, ValueError) as error:
        raise ApiError("failed", f"the claim cannot be kept: {error}", "look at the disk of this node") from None
    return ClaimView(
        node=config.node.id,
        id=wanted.id,
        cluster_id=str(identity.cluster_uuid),
        group=identity.group_id,
        genesis=base64.b64encode(port.nodes.genesis_payload()).decode(),
    )


async def can_stop_member(call: Call) -> CanStopView:
    """Says if the cluster still takes writes while that node is stopped, and if not, why."""
    try:
        view = can_stop(
            call.port.nodes.changes.group(), member_id(call.params["id"]), call.port.state.settings.maintenance
        )
    except LocalError as error:
        raise ApiError("not_found", error.what, error.fix) from None
    return replace(view, pending_upload_bytes=call.port.storage.tier.pending_bytes)


# --- changing --------------------------------------------------------------------------------------------------------


async def add_member(call: Call) -> MemberChanged:
    """Adds a node as a learner: it receives the log, and the leader promotes it when it has caught up.

    If the node is a member already and the request has other addresses, the member moves to these. A majority of the
    voters must reach it there, unless `force` is given because the node is down. A leader first transfers leadership if
    its own peer address changes.
    """
    wanted: AddRequest = call.body
    state, members = call.port.state, call.port.nodes.membership.in_force
    if state.closed_log.is_closed:
        raise ApiError(
            "refused",
            f"group {state.broker_groups.own} has retired, and its nodes run no more: nothing was changed",
            f"set them aside: raftmq broker-group retire {state.broker_groups.own}",
        )
    if wanted.cluster_id != str(members.cluster_uuid):
        raise ApiError(
            "refused",
            f"the node belongs to cluster {wanted.cluster_id}, this is cluster {members.cluster_uuid}: nothing was "
            "changed",
            "give the new node an empty data directory: raftmq node add",
        )
    addresses = _addresses(wanted)
    node, uuid = NodeId(wanted.id or call.port.nodes.membership.next_id), _uuid(wanted.uuid)
    manual = not wanted.auto_promote
    proof = await _found(call, node, uuid, addresses)
    entry = await _change(
        call.port, lambda done: call.port.nodes.changes.add(node, uuid, addresses, manual=manual, done=done)
    )
    changed = _with_proof(call.port, _changed(call.port, node, entry), proof)
    if changed.warning:
        call.note_change(
            call.port.object_of(node), f"moved with force to {addresses.host}:{addresses.port}, which nothing proved"
        )
    return changed


async def _found(call: Call, node: NodeId, uuid: UUID, addresses: MemberAddresses) -> Proof | None:
    """Returns the answers of the voters that were asked to reach a member at its new addresses; None if the request
    moves no member. Raises ApiError if too few reach it and `force` is not given. Raises HandedOver if this node had to
    transfer leadership."""
    port, force = call.port, call.body.force
    try:
        place = port.nodes.changes.check_add(node, uuid, addresses)
        to = port.nodes.changes.check_hand_over() if place and place.host and node == port.config.node.id else NOBODY
    except LocalError as error:
        raise _refused(error) from None
    if place is None:
        return None
    try:
        proof = await port.nodes.moves.check(place)
    except CheckUnderWay:
        raise ApiError("busy", "another address is being checked: nothing was changed", "ask again") from None
    if not proof.holds and not force:
        raise _not_found(port, place, proof)
    if to != NOBODY:
        await _transfer(port, to)
        raise HandedOver(port.object_of(to))
    return proof


def _not_found(port: AdminPort, place: MemberPlace, proof: Proof) -> ApiError:
    fix = (
        f"start {port.object_of(place.node)} at that address, or correct the address, and repeat the request; if the "
        f"node is down and its address is certain: raftmq node move {port.name_of(place.node)} … --force (over "
        "HTTP: force true)"
    )
    needed = f"{proof.needed} voters must find {port.object_of(place.node)} at {place}, and {_found_by(port, proof)}"
    told = ";\n".join(proof.lines(port.config.cluster.group))
    return ApiError("refused", f"{needed}: nothing was changed.\n{told}", fix)


def _found_by(port: AdminPort, proof: Proof) -> str:
    return f"only {names_of(port.config.cluster.group, proof.by)} did" if proof.by else "none did"


def _with_proof(port: AdminPort, changed: MemberChanged, proof: Proof | None) -> MemberChanged:
    if proof is None:
        return changed
    warning = (
        ""
        if proof.holds
        else f"nothing was proven: {proof.needed} voters must find {port.object_of(changed.id)} at its new address, "
        f"and {_found_by(port, proof)}. If the address is wrong, nodes will not reach it: repeat the request with the "
        "right one"
    )
    return replace(
        changed, found_by=list(proof.by), not_found_by=proof.lines(port.config.cluster.group), warning=warning
    )


async def promote_member(call: Call) -> MemberChanged:
    """Makes a learner a voter. The leader does this by itself, unless auto_promote was false."""
    node = member_id(call.params["id"])
    return _changed(call.port, node, await _change(call.port, lambda done: call.port.nodes.changes.promote(node, done)))


async def remove_member(call: Call) -> MemberChanged:
    """Removes a node from the cluster; a leader transfers leadership first.

    The request is refused if the other nodes would have no majority. It is also refused if fewer than three voters
    would be left, unless below_three=true.
    """
    node, below_three = member_id(call.params["id"]), flag_of(call.query, BELOW_THREE)
    if flag_of(call.query, DRY_RUN):
        return _would_remove(call.port, node, below_three)
    await _hand_over_before_leaving(call.port, node, below_three)
    remove, port = call.port.nodes.changes.remove, call.port
    return _changed(port, node, await _change(port, lambda done: remove(node, done, below_three=below_three)))


def _would_remove(port: AdminPort, node: NodeId, below_three: bool) -> MemberChanged:
    try:
        port.nodes.changes.check_removal(node, below_three=below_three)
    except LocalError as error:
        raise _refused(error) from None
    members = port.nodes.membership.in_force
    voters = sorted(int(voter) for voter in members.voter_ids if voter != node)
    return MemberChanged(
        id=node, role="removed", term=port.status().term, index=members.index, voters=voters, dry_run=True
    )


async def _hand_over_before_leaving(port: AdminPort, node: NodeId, below_three: bool) -> None:
    """If this node leads and is to be removed, transfers leadership first and raises HandedOver. A removed leader
    cannot forward its clients' requests, which delays them. If no other node can take over, this node leads until its
    removal is committed. Raises ApiError if the removal is not possible."""
    if node != port.config.node.id:
        return
    try:
        port.nodes.changes.check_removal(node, below_three=below_three)
    except LocalError as error:
        raise _refused(error) from None
    to = port.nodes.changes.successor()
    if to != NOBODY:
        await _transfer(port, to)
        raise HandedOver(port.object_of(to))


async def drain_member(call: Call) -> DrainView:
    """Makes a node transfer leadership, and not lead again until it restarts or `drain` is false."""
    wanted: DrainRequest = call.body
    try:
        call.port.nodes.changes.drain(wanted.drain)
    except LocalError as error:
        raise _refused(error) from None
    own, wait_s = call.port.config.node.id, election_wait_s(call.port)
    leader = call.port.services.routes.own.leader
    if wanted.drain and not await comes_true(lambda: leader() not in (own, NOBODY), wait_s):
        raise unknown_outcome(f"{call.port.object_of(own)} is drained, and no other node leads after {wait_s:.1f} s")
    return DrainView(
        node=own, drained=call.port.nodes.changes.drained, leader=call.port.services.routes.own.leader() or None
    )


async def transfer_leader(call: Call) -> TransferView:
    """Transfers leadership to a voter that has the whole log; answers when that voter leads."""
    wanted: TransferRequest = call.body
    to, port = NodeId(wanted.to), call.port
    if to != port.services.routes.own.leader():
        try:
            port.nodes.changes.check_transfer(to)
        except LocalError as error:
            raise _refused(error) from None
        await _transfer(port, to)
    status = port.status()
    return TransferView(node=status.node, leader=wanted.to, term=status.term, index=status.commit_index)


async def _transfer(port: AdminPort, to: NodeId) -> None:
    try:
        port.nodes.transfer(to)
    except NotLeaderError:
        raise ApiError("not_leader", "this node does not lead any more", "ask again; nothing was changed") from None
    except (RaftLogError, ValueError) as error:
        raise ApiError(
            "failed", f"the transfer cannot start: {error}", "try again when the node has caught up"
        ) from None
    wait_s = election_wait_s(port)
    if not await comes_true(lambda: port.services.routes.own.leader() == to, wait_s):
        raise unknown_outcome(f"{port.object_of(to)} does not lead after {wait_s:.1f} s; the transfer may still happen")


def election_wait_s(port: AdminPort) -> float:
    """Returns the seconds for which a request waits until the target of a transfer leads."""
    raft = port.config.raft
    return max(port.waits.transfer_min_s, 2 * raft.election_ticks * raft.tick_ms / 1000)


async def _change(port: AdminPort, propose: Callable[[Callable[[ChangeOutcome], None]], EntryId]) -> EntryId:
    """Proposes a change of the members, and waits until its entry is applied on this node. Returns the id of the entry.
    Raises ApiError if the change is refused, if another leader replaces its entry, or if the entry is not committed
    within `send.deadline_ms`."""
    decided: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
    try:
        entry = propose(lambda ending: None if decided.done() else decided.set_result(ending))
    except LocalError as error:
        raise _refused(error) from None
    except NotLeaderError:
        raise ApiError("not_leader", "this node does not lead any more", "ask again; nothing was changed") from None
    except MembershipError as error:
        raise ApiError("refused", f"{error}: nothing was changed", "raftmq node list") from None
    except RaftLogError as error:
        raise ApiError("failed", f"not now: {error}", "ask again; nothing was changed") from None
    try:
        ending = await asyncio.wait_for(decided, port.config.send.deadline_ms / 1000)
    except TimeoutError:
        raise unknown_outcome(f"the change is in the log at entry {entry.index} and not committed yet") from None
    if ending is ChangeOutcome.REPLACED:
        raise ApiError("failed", "another leader was elected meanwhile: nothing was changed", "ask again")
    return entry


def _changed(port: AdminPort, node: NodeId, entry: EntryId) -> MemberChanged:
    members = port.nodes.membership.in_force
    role: Literal["voter", "learner", "removed"] = (
        "voter" if node in members.voter_ids else "learner" if node in members.learner_ids else "removed"
    )
    return MemberChanged(id=node, role=role, term=entry.term, index=entry.index, voters=sorted(members.voter_ids))


def _refused(error: LocalError) -> ApiError:
    if isinstance(error, Unconfirmed):
        return ApiError("unconfirmed", f"{error.what}: {error.why}", f"{error.fix}; over HTTP: ?{BELOW_THREE}=true")
    return ApiError("refused", f"{error.what}: {error.why}", error.fix)


ID_DIGITS = 5
"""The most digits of a node id in a path. Python refuses to convert very long numbers."""


def member_id(text: str) -> NodeId:
    """Returns the node id in a path. Raises ApiError if the text is no valid id."""
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS and 1 <= int(text) <= 65535):
        raise ApiError("bad_field", f"{text[:64]} is not the id of a node", "GET /v1/members lists them")
    return NodeId(int(text))


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ApiError("bad_field", f"{text} is not a uuid", "give the one in the node's data directory") from None


def _addresses(wanted: AddRequest) -> MemberAddresses:
    for name, address in {"admin": wanted.admin, **wanted.listeners}.items():
        try:
            if address or name != "admin":
                split_address(address)
        except ValueError as error:
            raise ApiError("bad_field", f"{name}: {error}", 'write it as "10.0.0.4:9644"') from None
    return MemberAddresses(wanted.host, wanted.port, wanted.admin, wanted.listeners)


class MaintenanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/members/{id}/maintenance`."""

    maintenance: bool = True
    """True to begin the maintenance, False to end it."""
    author: Note = ""
    reason: Note = ""
    dry_run: bool = False
    """True to change nothing, and only say if the maintenance could begin."""


class MaintenanceView(ReadView, frozen=True, kw_only=True):
    """The answer with the state of a node's maintenance. During maintenance the node does not lead, and findings about
    it are expected."""

    id: int
    maintenance: bool
    since_ms: int | None
    """Log time in ms since 1970 at which the maintenance began; null if the node is not in maintenance."""
    author: str | None
    reason: str | None
    leader: int | None
    dry_run: bool = False
    """True if nothing was changed."""


async def maintain_member(call: Call) -> MaintenanceView:
    """Begins or ends the maintenance of a node. It lasts across restarts of the node."""
    wanted: MaintenanceRequest = call.body
    port, node = call.port, member_id(call.params["id"])
    settings = port.state.settings
    try:
        answer = can_stop(port.nodes.changes.group(), node, settings.maintenance)
    except LocalError as error:
        raise ApiError("not_found", error.what, error.fix) from None
    if wanted.maintenance and node not in settings.maintenance and not answer.allowed:
        raise ApiError("refused", f"{'; '.join(answer.reasons)}: nothing was changed", answer.do_now)
    if wanted.dry_run:
        return _view(call, node, dry_run=True)
    reason = wanted.reason if wanted.maintenance else None
    command = SetMaintenance(node, port.services.log_time_ms(), wanted.author or "unknown", reason)
    _, results = await decided(lambda done: port.services.propose([command], done))
    if not results[-1].ok:
        raise ApiError("bad_command", f"{results[-1].value}: nothing was changed", "correct the request")
    if wanted.maintenance and node == port.config.node.id:
        wait_s = election_wait_s(port)
        if not await comes_true(lambda: port.services.routes.own.leader() not in (node, NOBODY), wait_s):
            raise unknown_outcome(
                f"{port.object_of(node)} is in maintenance, and no other node leads after {wait_s:.1f} s"
            )
    return _view(call, node)


def _view(call: Call, node: NodeId, *, dry_run: bool = False) -> MaintenanceView:
    state = call.port.state
    known = state.settings.maintenance.get(node)
    return MaintenanceView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=state.applied.index,
        id=node,
        maintenance=known is not None,
        since_ms=None if known is None else known.since_ms,
        author=None if known is None else known.author,
        reason=None if known is None else known.reason,
        leader=call.port.services.routes.own.leader() or None,
        dry_run=dry_run,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/members",
        list_members,
        membership.MembersView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.READ,
    ),
    Route(
        "GET",
        "/v1/members/join",
        describe_joining,
        membership.JoinView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.READ,
    ),
    Route(
        "POST",
        "/v1/members/claims",
        claim_node,
        membership.ClaimView,
        route.CONSTANT,
        route_rights.SECRET,
        body=membership.ClaimRequest,
    ),
    Route(
        "POST",
        "/v1/members",
        add_member,
        membership.MemberChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        membership.AddRequest,
    ),
    Route(
        "POST",
        "/v1/members/{id}/promote",
        promote_member,
        membership.MemberChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
    ),
    Route(
        "DELETE",
        "/v1/members/{id}",
        remove_member,
        membership.MemberChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        asks=(BELOW_THREE, DRY_RUN),
    ),
    Route(
        "GET",
        "/v1/members/{id}/can-stop",
        can_stop_member,
        CanStopView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.LEADER,
    ),
    Route(
        "POST",
        "/v1/members/{id}/drain",
        drain_member,
        membership.DrainView,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.MEMBER,
        membership.DrainRequest,
    ),
    Route(
        "POST",
        "/v1/members/{id}/maintenance",
        maintain_member,
        MaintenanceView,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        MaintenanceRequest,
    ),
    Route(
        "POST",
        "/v1/leader/transfer",
        transfer_leader,
        membership.TransferView,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        membership.TransferRequest,
    ),
)
