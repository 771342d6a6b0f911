"""Decides which checked sends enter the queue for the log, which wait before it, and which are refused.

A send above a quota of its owner waits in `PacedSends`, and is refused after `flow.hold_ms` (docs/adr/0115). If more
arrives than the log takes, the oldest sends of the owners with most in the queue are refused (docs/adr/0106), first
those to topics that get more than they usually do (docs/adr/0117). In all these cases nothing was proposed.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Protocol

from cluster.flow.admission_limit import AdmissionLimit
from cluster.flow.backlogs import Backlogs
from cluster.flow.gate import GateRequest, Limit, Over
from cluster.flow.hold import decide_each
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_buckets import QuotaBuckets
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS
from cluster.flow.quota_rules import QuotaRules, Refusals
from cluster.flow.requests_at_once import RequestsAtOnce
from cluster.replication.learnt_use import WHOLE, LearntUse
from cluster.replication.paced_sends import PacedSends
from cluster.replication.send_queue import SendQueue
from statemachine.topics.topics import living_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.config.config import Config
    from cluster.flow.gate import Gate
    from cluster.replication.message_batch import Send
    from cluster.replication.pending_requests import SendReplies
    from cluster.replication.slow_requests import ProposalFigures
    from cluster.runtime.context import NodeContext
    from statemachine.broker_state import BrokerState

REFUSED_PER_TURN = 16
"""The most sends that one turn refuses in an overload. A refusal costs as much as a stored send, and many clients
repeat a refused send at once. Sends above this number keep waiting, which slows their clients down."""


class Refuse(Protocol):
    """A function that answers sends that were not proposed, and removes all records of them."""

    def __call__(self, sends: list[Send], tell: Callable[[Send, str], None], remark: str) -> None:
        """Answers each of `sends` by `tell`, a method of SendReplies, with the remark."""


class SendFlow:
    """The sends that wait before the queue for the log, the queue itself, and the refusals. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        gate: Gate,
        replies: SendReplies,
        refuse: Refuse,
        sync_ms: Callable[[], float],
        metrics: ProposalFigures | None = None,
    ) -> None:
        """`sync_ms` returns the mean time of a sync on the disks of a majority, in milliseconds; 0.0 if unknown."""
        config, clock = context.config, context.clock
        self._clock, self._raw, self._wake = clock, context.raw, context.wake
        self._state, self._gate = state, gate
        self._replies, self._refuse = replies, refuse
        self.limit = AdmissionLimit(config.flow, sync_ms)
        """The limit on undecided sends, which this node adjusts while it leads."""
        self.queue = SendQueue(config.limits, self.limit)
        """The sends that wait for their entry."""
        quotas = QuotaRules(state.quotas, state.access)
        self.paced = PacedSends(
            QuotaBuckets(quotas),
            RequestsAtOnce(quotas, gate.sends),
            Backlogs(quotas, partial(_evicts, state)),
            gate,
            config,
        )
        """The sends that wait for their quota."""
        self.creations = MinuteRates(quotas, (NEW_TOPICS, NEW_GROUPS), gate, clock.monotonic_ms)
        """Limits how many topics and consumer groups a user or address may create per minute."""
        self.learnt = LearntUse(
            state.learnt,
            partial(_part_of_queues, state),
            *([] if metrics is None else [metrics.learnt]),
        )
        """Counts what the topics with learnt limits get."""

    def reload(self, config: Config) -> None:
        """Applies changed limits."""
        self.queue.reload(config.limits)
        self.paced.reload(config)
        self.limit.reload(config.flow)

    def forget(self) -> None:
        """Forgets all counts of earlier terms, because this node has become leader again."""
        self.limit.forget()
        self.paced.buckets.forget()
        self.paced.backlogs.forget()
        self.creations.forget()
        self.paced.look()
        self.learnt.forget()
        self.queue.demote(self.learnt.demoted)

    # --- quotas ------------------------------------------------------------------------------------------------------

    def admit(self, sends: list[Send], now_ms: int) -> list[Send]:
        """Returns the sends of one read that are within the quota of their owner; they have no hold yet. The others
        wait in `paced`, or are refused because there is no room to wait or their topic's backlog is full. Called while
        `paced.active`."""
        going, refused = self.paced.admit(sends, now_ms)
        for send, bucket in refused:
            send.hold = self._gate.hold_answer(send.connection.in_flight, send.size)
            self._refuse_paced(send, bucket, now_ms)
        return going

    def look(self, now_ms: int, *, leads: bool) -> None:
        """Releases sends whose owners may send again, refuses those that have waited long enough, and finds out which
        topics get more than they usually do. Called by a timer."""
        self.pace(now_ms)
        learnt = self.learnt
        if leads and (learnt.limits is not None or self._state.learnt.in_force is not None):
            learnt.look(self._raw.log_time_ms(), now_ms, overloaded=self.limit.is_limiting(now_ms))
            self.queue.demote(learnt.demoted)

    def pace(self, now_ms: int) -> None:
        """Releases and refuses sends that wait for quotas: the part of `look` that concerns quotas."""
        self.paced.look()
        if len(self.paced):
            self._go_on(self.paced.due(now_ms), now_ms)
            for send, bucket in self.paced.overdue(now_ms):
                send.hold.decided()
                self._refuse_paced(send, bucket, now_ms)

    def topic_changes(self, name: str, now_ms: int) -> None:
        """Queues the sends to a topic of which a change will be proposed. They were checked against the present topic,
        so they must be in the log before the change."""
        if len(self.paced):
            self._go_on(self.paced.take_to(name), now_ms)
        self.paced.backlogs.topic_changed(name)

    def log_closes(self, now_ms: int) -> None:
        """Queues all sends: a command that closes the log will be proposed, and no message may follow it."""
        if len(self.paced):
            self._go_on(self.paced.take_all(), now_ms)

    def _go_on(self, sends: list[Send], now_ms: int) -> None:
        """Queues sends that waited for their quota, whether the quota allows them now or another rule releases them."""
        if sends and self.learnt.active:
            self.learnt.came(sends, now_ms)
        for send in sends:
            send.paced_ms = now_ms
            send.hold.ended()
            send.hold = self._gate.hold(send.connection.in_flight, send.size, send.user, GateRequest.NEW)
            self.queue.add_late(send)
        if sends:
            self._wake()

    def _refuse_paced(self, send: Send, bucket: Refusals, now_ms: int) -> None:
        over = Over(Limit.QUOTA, f"{bucket.why()}; nothing was stored, {bucket.advice}", bucket.rule.limit)
        bucket.refuse(now_ms)
        self._gate.refused(over)
        self._refuse([send], self._replies.limited, over.remark)

    # --- an overload -------------------------------------------------------------------------------------------------

    def refuse_excess(self, now_ms: int) -> None:
        """Refuses sends of the owners who have most waiting, the oldest first, if more arrive than the log takes; a
        bounded number in one turn."""
        limit, queue = self.limit, self.queue
        excess = limit.excess(self._gate.sends.bytes, queue.bytes, self._clock.monotonic_ms())
        if not excess:
            return
        sends = queue.take_longest(excess, REFUSED_PER_TURN, limit.house_bytes)
        if not sends:
            return
        count = len(sends)
        rate, house = limit.rate / 1e6, self._gate.sends.bytes
        why = (
            f"more arrives than the log takes ({rate:.1f} MB/s): {house} bytes wait for it, {limit.house_bytes} may "
            "(flow.house_ms)"
        )
        if demoted := self.learnt.demoted:
            first = [send for send in sends if send.slot.topic_id in demoted]
            self.learnt.cut(first, now_ms)
            self._crowd(first, f"{why}, and this topic gets more than it usually does")
            sends = [send for send in sends if send.slot.topic_id not in demoted]
        self._crowd(sends, why)
        if count == REFUSED_PER_TURN:
            self._wake()

    def _crowd(self, sends: list[Send], why: str) -> None:
        over = Over(Limit.OVERLOAD, f"{why}; nothing was stored, try again later")
        decide_each(sends)
        for _ in sends:
            self._gate.refused(over)
        self._refuse(sends, self._replies.crowded, over.remark)


def _part_of_queues(state: BrokerState, topic: str) -> Fraction:
    """Returns the share of a topic's write queues that this group of brokers has, from 0 to 1; WHOLE if the topic does
    not exist, has no write queues, or is not placed in particular groups."""
    config, groups = state.topics.get(topic), state.broker_groups
    if config is None or not config.place:
        return WHOLE
    place = living_place(groups.by_number, config)
    queues = sum(write for _, write in place.values())
    return Fraction(place.get(groups.own, (0, 0))[1], queues) if queues else WHOLE


def _evicts(state: BrokerState, topic: str) -> bool:
    config = state.topics.get(topic)
    return config is not None and config.evicts_backlog
