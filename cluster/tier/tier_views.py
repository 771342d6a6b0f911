"""Structs of the HTTP API under /v1/tier: a node's view of the tier."""

from __future__ import annotations

from typing import Literal

import msgspec


class TierSegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment with a row."""

    base: int
    end: int
    state: Literal["uploading", "uploaded", "verified", "deleting"]
    term: int
    """Term of the leader that recorded the state."""
    first_index: int
    last_index: int
    first_ms: int
    last_ms: int
    """Log times."""
    parts: list[str]
    """Names of its objects."""
    stored_bytes: int


class TierSegmentsView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/tier/segments`: rows of the node that answers."""

    node: int
    applied_index: int
    segments: list[TierSegmentView]
    """Lowest first."""
    next: int | None
    """`since` of the next page; null if this is the last."""


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/tier`: what the tier holds, by the rows of the node that answers, and what the leader is doing."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    leader: int | None
    applied_index: int
    url: str
    """URL of the tier as configured on this node; "" if tiering is off here."""
    stop_grace_ms: int
    """Milliseconds that `raftmq down` waits, unless it is told."""
    cluster_id: str
    log_begins: int
    sealed_end: int
    """End of this node's last sealed segment."""
    verified_to: int
    """The tier holds the log from `log_begins` up to here."""
    tier_begins: int | None
    """Position of the lowest segment in the tier that is kept; null if there is none. Objects below are going."""
    segments: dict[str, int]
    """State -> how many have it."""
    stored_bytes: int
    """Stored bytes of all objects."""
    pending_bytes: int
    """Bytes of sealed segments that are not verified."""
    pending_age_ms: int
    """Log time since the oldest of them was sealed."""
    window_ms: int
    """On the leader, age in log time of the oldest message that is not verified, sealed or not; 0 if there is none."""
    failing: str
    """On the leader: why the last attempt failed; "" if it did not."""
    failing_ms: int
    """Milliseconds for which attempts have failed."""
    failures: int
    """Attempts that failed since this node began to lead."""
    manifest_version: int | None
    """The newest that this node has published or seen since it leads."""
    state_copy: int | None
    """Applied index of the newest copy of the state that this node knows of since it leads."""
    copying_state: bool
    """A copy is being written, or to be written because the log was sealed."""
    last: list[TierSegmentView]
    """The newest rows, lowest first."""


class SealView(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/tier/seal`: the segment that was being written is closed."""

    node: int
    term: int
    index: int
    position: int
    """Everything below lies in sealed segments now. `verified_to` of GET /v1/tier reaches it when all is in the
    tier."""
