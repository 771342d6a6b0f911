"""The state of a link to a peer, one of RocketMQ's five (HAConnectionState), derived from what can be observed.

| State | Here |
|---|---|
| READY | connected, but not heard from the peer since |
| HANDSHAKE | heard; the leader is probing where the logs match |
| TRANSFER | entries and acknowledgements flow, or would if there were any |
| SUSPEND | connected and heard, but replication is paused: `reason` says why |
| SHUTDOWN | not connected |
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from raftlog.core.status import PeerStatus


class LinkState(StrEnum):
    """Named and spelt as RocketMQ does."""

    READY = "READY"
    HANDSHAKE = "HANDSHAKE"
    TRANSFER = "TRANSFER"
    SUSPEND = "SUSPEND"
    SHUTDOWN = "SHUTDOWN"


class Evidence(NamedTuple):
    """The observations of a link at one moment. Times are in milliseconds."""

    missing: tuple[str, ...]
    """Channels without a connection."""
    error: str
    """Why the last dial failed; "" if it did not."""
    heard: bool
    """Something came from the peer since the connections were made."""
    silent_ms: int
    """Since the last thing that came."""
    patience_ms: int
    """Silence, or a lack of acknowledgements, above which the link counts as paused."""
    leads: bool
    """The peer is the leader that this node follows."""
    progress: PeerStatus | None
    """The peer as this node, the leader, sees it; None if this node does not lead."""
    stalled_ms: int
    """Since an acknowledgement of the peer last moved, or there was nothing to acknowledge."""
    held: bool
    """Its entries wait for the catch-up quota."""


def judge(seen: Evidence) -> tuple[LinkState, str]:
    """The state, and a reason for people ("" if the state needs none)."""
    if seen.missing:
        why = f"no connection for {' and '.join(seen.missing)}"
        return LinkState.SHUTDOWN, f"{why}: {seen.error}" if seen.error else why
    if not seen.heard:
        return LinkState.READY, "connected, and nothing has been heard of it since"
    if seen.silent_ms >= seen.patience_ms:
        return LinkState.SUSPEND, f"silent for {seen.silent_ms} ms"
    if seen.progress is not None:
        return _judge_follower(seen, seen.progress)
    if seen.leads:
        return LinkState.TRANSFER, ""
    return LinkState.SUSPEND, "neither of the two leads"


def _judge_follower(seen: Evidence, progress: PeerStatus) -> tuple[LinkState, str]:
    if progress.state == "SNAPSHOT":
        return LinkState.SUSPEND, "the log that it needs is trimmed: it takes a snapshot"
    if seen.held:
        return LinkState.SUSPEND, "it catches up, and waits for ha.catch_up_bytes_per_second"
    if progress.state == "PROBE":
        return LinkState.HANDSHAKE, "probing where the logs match"
    if progress.lag and seen.stalled_ms >= seen.patience_ms:
        return LinkState.SUSPEND, f"no acknowledgement for {seen.stalled_ms} ms, {progress.lag} entries are behind"
    return LinkState.TRANSFER, ""
