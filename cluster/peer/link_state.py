"""Derives the state of a link to a peer from observations: one of RocketMQ's five states (HAConnectionState).

| State | Here |
|---|---|
| READY | connected, but not heard from the peer since |
| HANDSHAKE | heard; the leader is probing where the logs match |
| TRANSFER | entries and acknowledgements flow, or would if there were any |
| SUSPEND | connected and heard, but replication is paused: `reason` says why |
| SHUTDOWN | not connected |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftlog.core.status import PeerStatus
from raftlog.types import NodeId


class LinkState(StrEnum):
    """The states of a link, named as in RocketMQ."""

    READY = "READY"
    HANDSHAKE = "HANDSHAKE"
    TRANSFER = "TRANSFER"
    SUSPEND = "SUSPEND"
    SHUTDOWN = "SHUTDOWN"


class Evidence(NamedTuple):
    """Observations of a link at one moment. Times are in milliseconds."""

    missing: tuple[str, ...]
    """Names of the channels without a connection: "control", "bulk" or both."""
    error: str
    """The reason why the last dial failed; "" if it succeeded."""
    heard: bool
    """True if data arrived from the peer since the connections were made."""
    silent_ms: int
    """Milliseconds since data last arrived from the peer."""
    patience_ms: int
    """Milliseconds of silence, or without an acknowledgement, after which the link counts as paused."""
    leads: bool
    """True if the peer is the leader that this node follows."""
    progress: PeerStatus | None
    """The peer's progress as this node, the leader, sees it; None if this node does not lead."""
    stalled_ms: int
    """Milliseconds since an acknowledgement of the peer last advanced, or since there was nothing to acknowledge."""
    held: bool
    """True if entries for the peer wait because the catch-up quota is used up."""


def judge(seen: Evidence) -> tuple[LinkState, str]:
    """Returns the state of the link and a reason for people ("" if the state needs none)."""
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


class LinkFigures(NamedTuple):
    """The figures of one link that metrics show."""

    peer: NodeId
    state: LinkState
    age_ms: int
    round_trip_ms: float | None


class LinkMetrics(ServiceMetrics):
    """Metrics of the links. Gauges are set before a scrape, counters when something happens."""

    def __init__(self) -> None:
        super().__init__()
        gauge, counter = self.gauge, self.counter
        self._state = gauge("raftmq_link_state", "1 for the current state of the link to the peer", ["peer", "state"])
        self._age = gauge("raftmq_link_state_seconds", "Time since the link entered its state", ["peer"])
        self._round_trip = gauge(
            "raftmq_link_round_trip_seconds", "Round-trip time of the last answered heartbeat on the link", ["peer"]
        )
        self.changed = counter("raftmq_link_changes", "Number of times the link entered the state", ["peer", "state"])
        self.expired = counter(
            "raftmq_link_expired", "Connections closed because no data arrived on them", ["peer", "side"]
        )
        self.slow_turn = counter("raftmq_slow_turns", "Turns of the event loop that took more than 500 ms")
        self.slow_turns_handed_over = counter(
            "raftmq_slow_turns_handed_over", "Number of times this leader handed over because of its slow turns"
        )
        self._shown: set[NodeId] = set()

    def show(self, links: Iterable[LinkFigures]) -> None:
        """Sets the gauges from all present links."""
        shown = set()
        for peer, state, age_ms, round_trip_ms in links:
            shown.add(peer)
            name = str(peer)
            for each in LinkState:
                self._state.labels(name, each.value).set(each is state)
            self._age.labels(name).set(age_ms / 1000)
            if round_trip_ms is not None:
                self._round_trip.labels(name).set(round_trip_ms / 1000)
        for peer in self._shown - shown:
            for each in LinkState:
                self._state.remove(str(peer), each.value)
            self._age.remove(str(peer))
            self._round_trip.remove_by_labels({"peer": str(peer)})
        self._shown = shown
