"""Counts entries and messages for the metrics: what this node proposed, settled and stored.

The counts are updated once per batch, never per message. docs/metrics.md lists names and meanings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.replication.metrics import HaMetrics, ModeMetrics
from cluster.replication.outcome import Outcome
from cluster.runtime.figures.counters import TopicTallies
from cluster.runtime.figures.service_metrics import ServiceMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.replication.slow_requests import RequestFigures
    from statemachine.broker_state import BrokerState

COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
COUNT_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BYTES_BUCKETS: Final = tuple(float(1 << shift) for shift in range(8, 23, 2))


class TrafficMetrics(ServiceMetrics):
    """Implements `slow_requests.ProposalFigures`. Event loop only."""

    def __init__(self, state: BrokerState, requests: RequestFigures, ha: HaMetrics) -> None:
        super().__init__()
        self._state = state
        self.requests: Final = requests
        """The metrics of requests."""
        self.modes: Final = ModeMetrics()
        """The metrics of early answers."""
        self.ha: Final = ha
        """The metrics of RocketMQ's HA service."""
        self.messages_taken = self.bytes_taken = 0
        """Acknowledged messages and their bytes, of all topics, including deleted ones."""
        spread = self.spread
        self._proposals = self.tally("raftmq_raft_proposals", "Entries proposed")
        settled = self.counter(
            "raftmq_raft_settled", "Requests whose entry was decided, or that reached their deadline", ["outcome"]
        )
        self._settled = {outcome: settled.labels(outcome.name.lower()) for outcome in Outcome}
        self._batch_messages = spread("raftmq_batch_messages", "Messages per entry", COUNT_BUCKETS)
        self._batch_bytes = spread("raftmq_batch_bytes", "Bytes per proposed entry", BYTES_BUCKETS)
        self.commit_seconds: Final = spread(
            "raftmq_raft_commit_seconds", "Time from the proposal of an entry to its answer", COMMIT_BUCKETS
        )
        self._learnt = self.tallies(
            "raftmq_learnt_messages",
            "Messages of topics with learnt limits: within them, over them, and refused for that in an overload",
            "outcome",
        )
        self._stored = TopicTallies(
            self.tallies("rocketmq_messages_in", "Messages acknowledged", "topic"),
            self.tallies("rocketmq_throughput_in", "Bytes of messages acknowledged", "topic"),
        )

    def proposed(self, messages: int, size_bytes: int) -> None:
        """Counts a proposed entry; `messages` is 0 for a COMMAND entry."""
        self._proposals.inc()
        self._batch_bytes.observe(size_bytes)
        if messages:
            self._batch_messages.observe(messages)

    def settled(self, outcome: Outcome, sends: int, calls: int, seconds: float) -> None:
        """Counts the outcome of one entry, or the timeout of the sends and calls that waited for it."""
        self._settled[outcome].inc(sends + calls)
        if outcome is Outcome.UNKNOWN:
            self.ha.timed_out(sends)
        if outcome is Outcome.OK:
            self.commit_seconds.observe(seconds)

    def messages_in(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts acknowledged messages of one topic; called once per topic and entry."""
        self.messages_taken += messages
        self.bytes_taken += size_bytes
        self._stored.add(topic, messages, size_bytes)

    def learnt(self, outcome: str, messages: int) -> None:
        """Counts messages of a topic with learnt limits. `outcome`: "within" or "over" the limits, or "cut" for
        messages that were refused in an overload because their topic was over its limits."""
        counts = self._learnt.values
        counts[outcome] = counts.get(outcome, 0) + messages

    def stored(self) -> Iterable[tuple[str, int]]:
        """Returns (topic, acknowledged messages) of every topic that has a series."""
        return self._stored.messages.values.items()

    def look(self) -> None:
        """Removes the series of deleted topics."""
        self._stored.forget_all_but(self._state.topics)
