"""Metrics of the links to peers, in the node's registry (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster.peer.link_state import LinkState
from raftlog.types import NodeId


class LinkFigures(NamedTuple):
    """One link now."""

    peer: NodeId
    state: LinkState
    age_ms: int
    round_trip_ms: float | None


class LinkMetrics:
    """Gauges are set before a scrape; counters as things happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._state = Gauge(
            "raftmq_link_state", "1 for the current state of the link to the peer", ["peer", "state"], registry=registry
        )
        self._age = Gauge(
            "raftmq_link_state_seconds", "Time since the link entered its state", ["peer"], registry=registry
        )
        self._round_trip = Gauge(
            "raftmq_link_round_trip_seconds",
            "Round-trip time of the last answered heartbeat on the link",
            ["peer"],
            registry=registry,
        )
        self._changes = Counter(
            "raftmq_link_changes", "Number of times the link entered the state", ["peer", "state"], registry=registry
        )
        self._expired = Counter(
            "raftmq_link_expired",
            "Connections closed because no data arrived on them",
            ["peer", "side"],
            registry=registry,
        )
        self._slow_turns = Counter(
            "raftmq_slow_turns", "Turns of the event loop that took more than 500 ms", registry=registry
        )
        self._handed = Counter(
            "raftmq_slow_turns_handed_over",
            "Number of times this leader handed over because of its slow turns",
            registry=registry,
        )
        self._shown: set[NodeId] = set()

    def changed(self, peer: NodeId, state: LinkState) -> None:
        """The link went into the state."""
        self._changes.labels(str(peer), state.value).inc()

    def slow_turn(self) -> None:
        """A turn of this node's loop was slow."""
        self._slow_turns.inc()

    def slow_turns_handed_over(self) -> None:
        """This leader hands over for that."""
        self._handed.inc()

    def expired(self, peer: NodeId, side: str) -> None:
        """A silent connection was closed; `side`: "dialled" or "accepted"."""
        self._expired.labels(str(peer), side).inc()

    def show(self, links: Iterable[LinkFigures]) -> None:
        """Every link there is."""
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
