"""Figures about transactions: how many are open, and how they ended at this node while it led."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from statemachine.half_messages import HalfMessages

PARKED: Final = "parked"
DROPPED: Final = "dropped"


class TransactionMetrics:
    """Counters are fed per half message, the gauges before a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge("rocketmq_half_messages", "Half messages whose transaction is open", registry=registry)
        self._bytes = Gauge("raftmq_half_message_bytes", "Stored bytes of half messages", registry=registry)
        self._committed = Counter("rocketmq_commit_messages", "Transactions committed", registry=registry)
        self._rolled_back = Counter("rocketmq_rollback_messages", "Transactions rolled back", registry=registry)
        self._given_up = Counter(
            "raftmq_half_messages_given_up", "Half messages that ended undecided", ["how"], registry=registry
        )
        self._checks = Counter("raftmq_transaction_checks", "Questions to producers", registry=registry)
        self._mismatched = Counter(
            "raftmq_transaction_mismatches", "Requests to end a transaction that is another", registry=registry
        )

        for how in (PARKED, DROPPED):
            self._given_up.labels(how)

    def committed(self) -> None:
        """A copy is stored."""
        self._committed.inc()

    def rolled_back(self) -> None:
        """A half message ended without a copy."""
        self._rolled_back.inc()

    def given_up(self, how: str, count: int = 1) -> None:
        """PARKED after the last check, or DROPPED with its topic."""
        self._given_up.labels(how).inc(count)

    def asked(self) -> None:
        """A producer was asked, or would have been if one were connected."""
        self._checks.inc()

    def mismatched(self) -> None:
        """A request did not match the half message at its position."""
        self._mismatched.inc()

    def update(self, halves: HalfMessages) -> None:
        """The gauges, as the state is now."""
        self._open.set(halves.pending.count)
        self._bytes.set(halves.pending.bytes)
