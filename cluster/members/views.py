"""Requests and answers of /v1/members and /v1/leader/transfer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cluster.config.config import PeerNode
from cluster.runtime.request_limits import Address, AddressOrNone, Uuid, Word

NodeNumber = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class NodeMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member. What only the leader knows of it is null elsewhere, and for the leader itself."""

    id: int
    uuid: str
    role: Literal["voter", "learner"]
    manual: bool = False
    """A learner that stays one until it is promoted by hand."""
    leader: bool
    host: str
    """"" if this node does not know where it is."""
    port: int
    admin: str
    listeners: dict[str, str]
    connected: bool
    """Something that this node sends to it now has a connection to travel on."""
    match_index: int | None = None
    """Highest index known to be on its disk."""
    lag_entries: int | None = None
    state: str | None = None
    """The leader's way of replicating to it: PROBE, REPLICATE or SNAPSHOT."""
    live: bool | None = None
    """The leader heard it within two election timeouts."""
    fit: bool | None = None
    """It could lead: its log and rows are whole, and it is neither drained nor in maintenance."""
    caught_up: bool | None = None
    """A learner that could be promoted now."""
    maintenance: bool = False
    """Its operator works on it: it leads nothing."""


class FormerMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that was removed; its id is not given to another node."""

    id: int
    uuid: str


class MembersView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/members`: the newest MEMBERSHIP entry in this node's log, or GENESIS."""

    node: int
    consistency: Literal["local", "linearizable"]
    applied_index: int
    term: int
    leader: int | None
    cluster_id: str
    index: int
    """Index of the MEMBERSHIP entry; 0 for GENESIS."""
    committed: bool
    """False while this change is under way: the next one has to wait."""
    reason: str
    detail: str
    quorum: int
    """Voters that make a majority."""
    members: list[NodeMember]
    removed: list[FormerMember]
    next_id: int
    """The id for a new node."""
    removed_since: int | None
    """This very node was removed at that entry; null while it belongs to the cluster."""
    drained: bool
    """This very node is drained."""


class AncestorView(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that this one goes on from."""

    cluster_id: str
    last_index: int


class JoinView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/members/join`: what the directory and the configuration of a new node are made from."""

    node: int
    applied_index: int
    consistency: Literal["local", "linearizable"]
    cluster: str
    broker: str
    cluster_id: str
    group: int
    genesis: str
    """The payload of the entry at index 0, base64."""
    ancestors: list[AncestorView]
    next_id: int
    taken_ids: list[int]
    """Ids that a member has, or had."""
    peers: list[PeerNode]
    """The members with their addresses, as [[peers]] tables."""
    secret_key: str = ""
    """The id of the key that a new node has to prove, "" if none; the key itself is copied as a file."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/members/claims`."""

    id: NodeNumber
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Drawn by the machine that makes the node; the same again for an attempt that was interrupted."""
    proof: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """HMAC-SHA256 of id and token with the cluster's secret."""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer: the data from which the directory of that node is made."""

    node: int
    """The node that answers."""
    id: int
    cluster_id: str
    group: int
    genesis: str
    """The payload of the entry at index 0, base64."""


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/members`."""

    id: NodeNumber | None = None
    """The next free one if not given."""
    cluster_id: Uuid
    """The cluster id in its data directory; the node is refused if it is of another cluster."""
    uuid: Uuid
    """The node uuid in its data directory."""
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: NodeNumber
    admin: AddressOrNone = ""
    listeners: Annotated[dict[Word, Address], msgspec.Meta(max_length=16)] = {}
    auto_promote: bool = True
    """The leader makes it a voter when it has caught up."""
    force: bool = False
    """A member moves although no majority of the voters finds it at its new address: it is down."""


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/members/{id}/drain`."""

    drain: bool = True
    """False: it may lead again."""


class MemberChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is committed and applied."""

    id: int
    role: Literal["voter", "learner", "removed"]
    term: int
    """Term of the entry; the current one if nothing had to be changed."""
    index: int
    voters: list[int]
    dry_run: bool = False
    """Nothing was changed; `voters` would be left."""
    found_by: list[int] | None = None
    """The voters that found a member at its new address; null if none was looked for."""
    not_found_by: list[str] = []
    """One line for each voter that did not find it there."""
    warning: str = ""
    """A warning for the operator about this change; "" if there is none."""


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/members/{id}/drain`."""

    node: int
    drained: bool
    leader: int | None


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/leader/transfer`."""

    to: NodeNumber


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """Leadership is at `leader`; term and commit index as this node knows them right after."""

    node: int
    leader: int
    term: int
    index: int
