"""Defines the requests and answers of /v1/members, of its paths join, claims and {id}/drain, and of
/v1/leader/transfer.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cluster.config.node_sections import PeerNode
from cluster.config.section import NodeNumber
from cluster.runtime.request_limits import Address, AddressOrNone, Uuid, Word


class NodeMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member. Fields that only the leader knows are null in the answers of other nodes, and in the leader's own
    row."""

    id: int
    uuid: str
    role: Literal["voter", "learner"]
    manual: bool = False
    """True for a learner that stays one until an operator promotes it."""
    leader: bool
    host: str
    """The host of its peer address; "" if this node does not know it."""
    port: int
    admin: str
    listeners: dict[str, str]
    connected: bool
    """True if this node has a connection on which it can send to the member now."""
    match_index: int | None = None
    """The highest index known to be on the member's disk."""
    lag_entries: int | None = None
    lag_bytes: int | None = None
    """Number of bytes of the leader's log that are not on the member's disk."""
    lag_ms: int | None = None
    """Age in milliseconds of the oldest entry that the member lacks."""
    sync_ms: float | None = None
    """Mean duration in milliseconds of a sync of the member's log in the last 10 s; null if there was none, or if it
    does not report that."""
    lag_bytes_per_s: int | None = None
    """Bytes per second by which its lag grows; negative while it shrinks."""
    caught_up_in_s: int | None = None
    """Seconds until its lag is gone at the present rate; null if the lag does not shrink, or not within 30 days."""
    snapshot_in_s: int | None = None
    """Seconds until the leader may delete log that the member lacks, at the present rate; null if that is not expected
    within 30 days."""
    state: str | None = None
    """The leader's state of replication to the member: PROBE, REPLICATE or SNAPSHOT."""
    live: bool | None = None
    """True if the leader received a message from it within two election timeouts."""
    fit: bool | None = None
    """True if it could lead: its log and rows are whole, and it is neither drained nor in maintenance."""
    caught_up: bool | None = None
    """True for a learner that could be promoted now."""
    maintenance: bool = False
    """True while the member is in maintenance and must not lead."""


class FormerMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that was removed. Its id is never given to another node."""

    id: int
    uuid: str


class MembersView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/members`: the newest MEMBERSHIP entry in this node's log, or GENESIS."""

    node: int
    consistency: Literal["local", "linearizable"]
    applied_index: int
    term: int
    leader: int | None
    cluster_id: str
    index: int
    """Index of the MEMBERSHIP entry; 0 for GENESIS."""
    committed: bool
    """False while the newest change is in progress. The next change must wait for it."""
    reason: str
    detail: str
    quorum: int
    """The number of voters that make a majority."""
    members: list[NodeMember]
    removed: list[FormerMember]
    next_id: int
    """The id that the next new node will get."""
    removed_since: int | None
    """Index of the entry that removed the answering node; null while it belongs to the cluster."""
    drained: bool
    """True while the answering node is drained."""


class AncestorView(msgspec.Struct, frozen=True, kw_only=True):
    """A former cluster that this one continues."""

    cluster_id: str
    last_index: int


class JoinView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/members/join`, from which the directory and the configuration of a new node are made."""

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
    """The id of the key that the new node has to prove; "" if the cluster has no secret. The key itself is copied as a
    file."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/members/claims`."""

    id: NodeNumber
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """A random token of the machine that makes the node; an interrupted attempt is repeated with the same token."""
    proof: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """HMAC-SHA256 of id and token with the cluster's secret."""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/members/claims`, from which the directory of the claimed node is made."""

    node: int
    """The node that answers."""
    id: int
    cluster_id: str
    group: int
    genesis: str
    """The payload of the entry at index 0, base64."""


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/members`."""

    id: NodeNumber | None = None
    """The new node's id; the next free one if it is not given."""
    cluster_id: Uuid
    """The cluster id in its data directory; the node is refused if it is of another cluster."""
    uuid: Uuid
    """The node uuid in its data directory."""
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: NodeNumber
    admin: AddressOrNone = ""
    listeners: Annotated[dict[Word, Address], msgspec.Meta(max_length=16)] = {}
    auto_promote: bool = True
    """True if the leader makes the learner a voter when it has caught up."""
    force: bool = False
    """True to move a member although no majority of the voters finds it at its new address, because it is down."""


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/members/{id}/drain`."""

    drain: bool = True
    """True to drain the node, False to let it lead again."""


class MemberChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after a change of the members was committed and applied."""

    id: int
    role: Literal["voter", "learner", "removed"]
    term: int
    """Term of the entry; the current term if nothing had to be changed."""
    index: int
    voters: list[int]
    dry_run: bool = False
    """True if nothing was changed; `voters` are those that would be left."""
    found_by: list[int] | None = None
    """The voters that found a member at its new address; null if the change needed no such check."""
    not_found_by: list[str] = []
    """One line for each voter that did not find the member there."""
    warning: str = ""
    """A warning for the operator about this change; "" if there is none."""


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/members/{id}/drain`."""

    node: int
    drained: bool
    leader: int | None


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/leader/transfer`."""

    to: NodeNumber


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after leadership was transferred. Term and commit index are those that the answering node knows
    then."""

    node: int
    leader: int
    term: int
    index: int
