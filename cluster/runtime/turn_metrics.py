"""Turns of the event loop that worked for long, by what ran (`cluster.runtime.turn_watch`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster.runtime.turn_watch import LONG_NS, LongTurn

NAMES_MAX: Final = 100
"""Names of functions that are kept apart; what else ran counts as OTHER."""
OTHER: Final = "other"
_LONG_MS: Final = LONG_NS / 1e6


class TurnMetrics:
    """Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._longest_ms = 0.0
        self._names: set[str] = set()
        labels = ("what",)
        self._longest = Gauge(
            "raftmq_turn_longest_seconds",
            "CPU time of the longest turn of the event loop since the start",
            labels,
            registry=registry,
        )
        self._long = Counter(
            "raftmq_turns_long", "Turns of the event loop of 20 ms of CPU and more", labels, registry=registry
        )
        self._unexplained = Counter(
            "raftmq_turns_unexplained",
            "Those of which the meter explains less than a quarter",
            labels,
            registry=registry,
        )

    def note(self, turn: LongTurn) -> None:
        """One turn. One that only waited does not count: the delay of timers shows it."""
        if turn.cpu_ms < _LONG_MS:
            return
        name = self._name_of(turn)
        if turn.cpu_ms > self._longest_ms:
            self._longest_ms = turn.cpu_ms
            self._longest.clear()
            self._longest.labels(name).set(turn.cpu_ms / 1000)
        self._long.labels(name).inc()
        if not turn.explained:
            self._unexplained.labels(name).inc()

    def _name_of(self, turn: LongTurn) -> str:
        if turn.what not in self._names and len(self._names) == NAMES_MAX:
            return OTHER
        self._names.add(turn.what)
        return turn.what
