"""MEMBERSHIP: the entry that defines the members from its index on. The newest one in the log counts; if there is none,
GENESIS does.

The payload is a msgpack map, docs/disk-format.md "MEMBERSHIP". While the group runs, its leader writes one entry per
change, one member at a time (Ongaro's thesis, chapter 4); the functions here make the next value from the one in force.
Two commands write such an entry while no node runs: a restore (new nodes over the log of a backup) and unsafe-recover
(one survivor continues alone). Both give the cluster a new uuid, so that no node of the old cluster is ever accepted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgpack

from raftlog.errors import FrameError, MembershipError
from raftlog.format_versions import is_known, remark, uuid_in
from raftlog.types import Entry, EntryType, NodeId, Voter

FORMAT = 10
GENESIS = "genesis"
RESTORE = "restore"
UNSAFE_RECOVER = "unsafe-recover"
ADD = "add"
PROMOTE = "promote"
REMOVE = "remove"
ADDRESS = "address"

REMOVED_KEPT = 64
"""The number of former members that are remembered, so that their ids are not reused."""


class Address(NamedTuple):
    """The addresses at which the others reach a member. The fields mean the same as those of PeerNode in
    cluster/config/node_sections.py."""

    id: NodeId
    host: str
    port: int
    admin: str = ""
    """The "host:port" of the member's HTTP API; "" if others cannot reach it."""
    listeners: tuple[tuple[str, str], ...] = ()
    """The member's listeners: (name, advertised "host:port")."""


class Membership(NamedTuple):
    """The members of a cluster, and the cluster's uuid."""

    cluster_uuid: UUID
    voters: tuple[Voter, ...]
    learners: tuple[Voter, ...] = ()
    """Members that receive the log and do not count, neither for elections nor for commits."""
    reason: str = GENESIS
    """The kind of change that made this membership: `genesis`, `restore`, `unsafe-recover`, `add`, `promote`, `remove`
    or `address`."""
    detail: str = ""
    """A text for people: what was done, and what may have been lost."""
    index: int = 0  # type: ignore[assignment]
    """The index of the MEMBERSHIP entry; not in the payload."""
    addresses: tuple[Address, ...] = ()
    """The members' addresses, as far as entries set them. Each node's own configuration has those that are missing
    here."""
    removed: tuple[Voter, ...] = ()
    """The last members that left, oldest first, at most REMOVED_KEPT."""
    manual: tuple[NodeId, ...] = ()
    """The ids of learners that stay learners until an operator promotes them."""

    @property
    def node_uuids(self) -> dict[NodeId, UUID]:
        """The uuids of all voters and learners: node id -> node uuid."""
        return dict((*self.voters, *self.learners))

    @property
    def voter_ids(self) -> tuple[NodeId, ...]:
        """Ids of the voters, in the order of `voters`."""
        return tuple(voter.id for voter in self.voters)

    @property
    def learner_ids(self) -> tuple[NodeId, ...]:
        """Ids of the learners, in the order of `learners`."""
        return tuple(learner.id for learner in self.learners)

    @property
    def highest_id(self) -> NodeId:
        """The highest id of all known present and former members. A new node gets the next one."""
        return max(member.id for member in (*self.voters, *self.learners, *self.removed))

    def address(self, node: NodeId) -> Address | None:
        """Returns the address of `node`; None if no entry has it."""
        return next((address for address in self.addresses if address.id == node), None)


class Constants(Protocol):
    """The constants of a cluster, as GENESIS contains them (raftlog/storage/files/genesis.py)."""

    @property
    def cluster_uuid(self) -> UUID:
        """The uuid of the cluster."""

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The initial voters."""


def of_genesis(genesis: Constants) -> Membership:
    """Returns the members that GENESIS names; they count until a MEMBERSHIP entry says otherwise."""
    return Membership(genesis.cluster_uuid, genesis.voters)


# -- changes


def with_learner(old: Membership, voter: Voter, address: Address, *, manual: bool = False) -> Membership:
    """Returns the members with `voter` added as a new learner, which receives the log. With `manual`, only an operator
    promotes it.

    Raises MembershipError if its id is or was another node's, or it is a member already.
    """
    if voter.id < 1 or address.id != voter.id:
        raise MembershipError(f"node {voter.id} with the address of node {address.id}: give one positive id for both")
    taken = dict((*old.removed, *old.voters, *old.learners)).get(voter.id)
    if voter in (*old.voters, *old.learners):
        raise MembershipError(f"node {voter.id} is a member already: nothing to add")
    if taken not in (None, voter.uuid):
        raise MembershipError(
            f"id {voter.id} is or was that of the node with uuid {taken}, and ids are not given twice: add the new "
            f"node as {old.highest_id + 1}"
        )
    return old._replace(
        learners=tuple(sorted((*old.learners, voter))),
        addresses=_with_address(old, address),
        removed=tuple(member for member in old.removed if member != voter),
        manual=(*old.manual, voter.id) if manual else old.manual,
        reason=ADD,
        detail=f"node {voter.id} joins as learner",
    )


def promoted(old: Membership, node: NodeId) -> Membership:
    """Returns the members with the learner `node` as a voter. Raises MembershipError if `node` is not a learner."""
    learner = next((learner for learner in old.learners if learner.id == node), None)
    if learner is None:
        what = "a voter already" if node in old.voter_ids else "no member: add it first"
        raise MembershipError(f"node {node} is {what}; learners are {old.learner_ids}")
    return old._replace(
        voters=tuple(sorted((*old.voters, learner))),
        learners=_less(old.learners, learner),
        manual=tuple(each for each in old.manual if each != node),
        reason=PROMOTE,
        detail=f"node {node} becomes a voter",
    )


def without(old: Membership, node: NodeId) -> Membership:
    """Returns the members without `node`. Raises MembershipError if it is not a member, or is the last voter."""
    gone = next((member for member in (*old.voters, *old.learners) if member.id == node), None)
    if gone is None:
        raise MembershipError(f"node {node} is no member; voters are {old.voter_ids}, learners {old.learner_ids}")
    if old.voter_ids == (node,):
        raise MembershipError(
            f"node {node} is the only voter: add another node and promote it first, or take the cluster down"
        )
    return old._replace(
        voters=_less(old.voters, gone),
        learners=_less(old.learners, gone),
        addresses=tuple(address for address in old.addresses if address.id != node),
        removed=(*_less(old.removed, gone), gone)[-REMOVED_KEPT:],
        manual=tuple(each for each in old.manual if each != node),
        reason=REMOVE,
        detail=f"node {node} leaves",
    )


def with_address(old: Membership, address: Address) -> Membership:
    """Returns the members with another address for one of them. Raises MembershipError if it is not a member, or has
    that address already."""
    if address.id not in old.node_uuids:
        raise MembershipError(f"node {address.id} is no member; members are {tuple(old.node_uuids)}: add it first")
    if old.address(address.id) == address:
        raise MembershipError(f"node {address.id} is at {address.host}:{address.port} already: nothing to change")
    return old._replace(
        addresses=_with_address(old, address),
        reason=ADDRESS,
        detail=f"node {address.id} is at {address.host}:{address.port}",
    )


def is_single_change(old: Membership, new: Membership) -> bool:
    """Returns True if `old` and `new` are of one cluster and differ by exactly one member that joins, leaves, becomes a
    voter, or moves to another address.

    Then any majority of `old` and any majority of `new` have a voter in common (thesis, 4.1).
    """
    members = (set(old.voters) ^ set(new.voters)) | (set(old.learners) ^ set(new.learners))
    kept = set(old.addresses) & set(new.addresses)
    moved = {address.id for address in (*old.addresses, *new.addresses) if address not in kept}
    return old.cluster_uuid == new.cluster_uuid and len({member.id for member in members} | moved) == 1 >= len(members)


def _less(members: tuple[Voter, ...], gone: Voter) -> tuple[Voter, ...]:
    return tuple(member for member in members if member != gone)


def _with_address(old: Membership, address: Address) -> tuple[Address, ...]:
    return tuple(sorted((*(each for each in old.addresses if each.id != address.id), address)))


# -- payload


def encode(membership: Membership) -> bytes:
    """Returns the payload of the MEMBERSHIP entry. Raises ValueError unless there is a voter and every id is positive
    and named once."""
    ids = [int(member.id) for member in (*membership.voters, *membership.learners)]
    if not membership.voters or min(ids) < 1 or len(set(ids)) < len(ids):
        raise ValueError(f"members must be distinct positive ids with at least one voter among them, not {ids}")
    # The map is packed in this order of keys, because the bytes must be equal on every node.
    return msgpack.packb(  # type: ignore[no-any-return]
        {
            "format": FORMAT,
            "cluster_uuid": membership.cluster_uuid.bytes,
            "voters": _pack_members(membership.voters),
            "learners": _pack_members(membership.learners),
            "reason": membership.reason,
            "detail": membership.detail,
            "addresses": [
                {**address._asdict(), "listeners": [list(listener) for listener in address.listeners]}
                for address in membership.addresses
            ],
            "removed": _pack_members(membership.removed),
            "manual": [int(node) for node in membership.manual],
        }
    )


def _pack_members(members: tuple[Voter, ...]) -> list[dict[str, Any]]:
    return [{"id": int(member.id), "uuid": member.uuid.bytes} for member in members]


def decode(entry: Entry) -> Membership:
    """Reads a MEMBERSHIP entry. Raises FrameError if this version cannot read it."""
    if entry.type != EntryType.MEMBERSHIP:
        raise FrameError(f"entry {entry.index} of type {entry.type} is not MEMBERSHIP")
    return decode_payload(entry.payload, entry.index)


def decode_payload(payload: bytes, index: int) -> Membership:
    """Reads the payload of the MEMBERSHIP entry at `index`. Raises FrameError if this version cannot read it."""
    try:
        fields = msgpack.unpackb(payload)
        if not is_known(fields["format"], FORMAT):
            raise FrameError(remark(f"MEMBERSHIP at index {index}", fields["format"], FORMAT))
        return Membership(
            uuid_in(fields["cluster_uuid"]),
            _unpack_members(fields["voters"]),
            _unpack_members(fields["learners"]),
            str(fields["reason"]),
            str(fields["detail"]),
            index,
            _unpack_addresses(fields["addresses"]),
            _unpack_members(fields["removed"]),
            tuple(NodeId(int(node)) for node in fields["manual"]),
        )
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise FrameError(f"MEMBERSHIP payload at index {index} is not readable: {error!r}") from error


def _unpack_members(packed: Any) -> tuple[Voter, ...]:
    return tuple(Voter(NodeId(int(member["id"])), uuid_in(member["uuid"])) for member in packed)


def _unpack_addresses(packed: Any) -> tuple[Address, ...]:
    return tuple(
        Address(
            NodeId(int(each["id"])),
            str(each["host"]),
            int(each["port"]),
            str(each["admin"]),
            tuple((str(name), str(advertised)) for name, advertised in each["listeners"]),
        )
        for each in packed
    )
