"""Metrics of proposals: their number, size, outcome and time until the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cluster.replication.outcome import Outcome
from cluster.replication.pending import PendingEntry
from cluster.replication.slow_requests import RequestFigures, SlowRequests
from cluster.wire.codes import RequestCode, ResponseCode
from statemachine.broker_state import BrokerState

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.replication.mode_metrics import ModeMetrics
    from cluster.runtime.context import NodeContext


SEND = int(RequestCode.SEND_MESSAGE)
"""All sends count as this code: an entry holds those of every code."""
_ANSWERS = {
    Outcome.OK: int(ResponseCode.SUCCESS),
    Outcome.FAIL: int(ResponseCode.SERVICE_NOT_AVAILABLE),
    Outcome.UNKNOWN: int(ResponseCode.SYSTEM_ERROR),
}


class ProposalFigures(Protocol):
    """The metrics themselves; `cluster.node.metrics` keeps them."""

    @property
    def requests(self) -> RequestFigures:
        """The metrics of requests."""

    @property
    def modes(self) -> ModeMetrics:
        """The metrics of early answers."""

    def proposed(self, messages: int, size_bytes: int) -> None:
        """One entry was proposed; `messages` is 0 for a COMMAND entry."""

    def settled(self, outcome: Outcome, requests: int, seconds: float) -> None:
        """The outcome of one entry is known, or its waiters timed out; `requests` waited for it."""

    def messages_in(self, topic: str, messages: int, size_bytes: int) -> None:
        """Messages of one topic were acknowledged; once per topic and entry."""


class ProposalMetrics:
    """Does nothing without metrics. Two clock calls per entry."""

    def __init__(self, metrics: ProposalFigures | None, context: NodeContext, state: BrokerState) -> None:
        self._metrics = metrics
        self._clock = context.clock
        self._state = state
        requests = None if metrics is None else metrics.requests
        self.slow = SlowRequests(context.config, context.clock.monotonic_s, context.stages, requests)

    def reload(self, config: Config) -> None:
        """Other bounds from now on."""
        self.slow.reload(config)

    def proposed(self, pending: PendingEntry, messages: int, size_bytes: int) -> None:
        """The entry has its place in the leader's log."""
        if self._metrics is not None:
            pending.proposed_s = self._clock.monotonic_s()
            self._metrics.proposed(messages, size_bytes)

    def settled(self, waiter: PendingEntry, outcome: Outcome) -> None:
        """It is decided, or its waiters were answered with UNKNOWN."""
        metrics = self._metrics
        if metrics is None:
            return
        waiting = len(waiter.sends) + len(waiter.calls)
        now_s = self._clock.monotonic_s()
        metrics.settled(outcome, waiting, now_s - waiter.proposed_s)
        if waiter.sends:
            metrics.requests.answered(SEND, _ANSWERS[outcome], now_s - waiter.proposed_s, len(waiter.sends))
        if 1000 * now_s - waiter.deadline_ms >= self.slow.late_ms:
            self.slow.settled(waiter, outcome, 1000 * now_s)
        if outcome is Outcome.OK and waiter.built is not None:
            names = self._state.topics_by_id
            for cursor, _, count, size in waiter.built.touched:
                topic = names.get(cursor.topic_id)
                if topic is not None:
                    metrics.messages_in(topic.name, count, size)
