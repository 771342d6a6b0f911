"""MEMBERSHIP: the entry that says who the members are from here on. The newest one in the log counts, else GENESIS.

Payload: a msgpack map, docs/disk-format.md "MEMBERSHIP". Two things write it, both while no node runs: a restore (new
nodes over the log of a backup) and unsafe-recover (one survivor goes on alone). Both give the cluster a new uuid, so
that no node of the old one is ever let in.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgpack

from raftlog.errors import FrameError
from raftlog.storage.genesis import Genesis, Voter
from raftlog.types import Entry, EntryType, NodeId

FORMAT = 1
GENESIS = "genesis"
RESTORE = "restore"
UNSAFE_RECOVER = "unsafe-recover"


class Membership(NamedTuple):
    """Who the members are, and of which cluster."""

    cluster_uuid: UUID
    voters: tuple[Voter, ...]
    learners: tuple[Voter, ...] = ()
    reason: str = GENESIS
    """`genesis`, `restore` or `unsafe-recover`."""
    detail: str = ""
    """For people: what was done, and what may have been lost by it."""
    index: int = 0  # type: ignore[assignment]
    """Of the entry that says so; not in the payload."""

    @property
    def node_uuids(self) -> dict[NodeId, UUID]:
        """node id -> node uuid of every voter and learner."""
        return dict((*self.voters, *self.learners))

    @property
    def voter_ids(self) -> tuple[NodeId, ...]:
        """Ids of the voters, as listed."""
        return tuple(voter.id for voter in self.voters)


def of_genesis(genesis: Genesis) -> Membership:
    """The members as long as no MEMBERSHIP entry says otherwise."""
    return Membership(genesis.cluster_uuid, genesis.voters)


def encode(membership: Membership) -> bytes:
    """The payload. Raises ValueError unless there is a voter and every id is positive and named once."""
    ids = [int(member.id) for member in (*membership.voters, *membership.learners)]
    if not membership.voters or min(ids) < 1 or len(set(ids)) < len(ids):
        raise ValueError(f"members must be distinct positive ids with at least one voter among them, not {ids}")
    # A map packed in this order: the bytes must be equal on every node.
    return msgpack.packb(  # type: ignore[no-any-return]
        {
            "format": FORMAT,
            "cluster_uuid": membership.cluster_uuid.bytes,
            "voters": [{"id": int(voter.id), "uuid": voter.uuid.bytes} for voter in membership.voters],
            "learners": [{"id": int(learner.id), "uuid": learner.uuid.bytes} for learner in membership.learners],
            "reason": membership.reason,
            "detail": membership.detail,
        }
    )


def decode(entry: Entry) -> Membership:
    """Reads a MEMBERSHIP entry. Raises FrameError if it is none that this version can read."""
    if entry.type != EntryType.MEMBERSHIP:
        raise FrameError(f"entry {entry.index} of type {entry.type} is not MEMBERSHIP")
    return decode_payload(entry.payload, entry.index)


def decode_payload(payload: bytes, index: int) -> Membership:
    """Reads the payload of the MEMBERSHIP entry at `index`. Raises FrameError."""
    try:
        fields = msgpack.unpackb(payload)
        if fields["format"] > FORMAT:
            raise FrameError(
                f"MEMBERSHIP at index {index} has format {fields['format']}, this RaftMQ reads {FORMAT}: use a newer "
                "RaftMQ"
            )
        voters, learners = (
            tuple(Voter(NodeId(int(member["id"])), UUID(bytes=member["uuid"])) for member in fields[name])
            for name in ("voters", "learners")
        )
        uuid, reason, detail = UUID(bytes=fields["cluster_uuid"]), str(fields["reason"]), str(fields["detail"])
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise FrameError(f"MEMBERSHIP payload at index {index} is not readable: {error!r}") from error
    return Membership(uuid, voters, learners, reason, detail, index)
