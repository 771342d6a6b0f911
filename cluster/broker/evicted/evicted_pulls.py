"""Answers pulls whose offset is below the first one in this node's log, with messages that were evicted to the tier
(the object store with older parts of the log, `cluster.tier`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.broker.reads.pull_values import Pull
from cluster.broker.reads.row_scan import Found
from cluster.broker.reads.tier_read_policy import ReadLevels
from cluster.broker.services import Services

if TYPE_CHECKING:
    from statemachine.broker_state import BrokerState

ReplyToPull = Callable[[Pull, Found], None]
Moved = Callable[[Pull, int], None]
FailEvictedPull = Callable[[Pull, str], None]


class Gone(NamedTuple):
    """The result that the message at the pull's offset no longer exists, because a TRIM removed it while the pull
    waited."""

    next_offset: int
    """The offset at which the queue now begins."""


class EvictedMessages(Protocol):
    """Finds messages that this node's log no longer has and the tier still keeps. Implemented in
    `cluster.tier.fetch.evicted_messages`."""

    def find(self, pull: Pull, stop: int, done: Callable[[Found | Gone | Exception], None]) -> None:
        """Calls `done` later, unless the node stops: with messages from the pull's offset up to but not including
        `stop`, with Gone, or with the exception that says why they cannot be read now."""


def evicted_position(state: BrokerState) -> int:
    """Returns the position in the log below which messages may be in the tier only. While an EVICT is carried out, by a
    sweep that removes rows slice by slice, the result lies above `trim_position`, because some queues have lost their
    rows already."""
    sweep = state.sweep  # read before `trim_position`: at the end of a sweep, `trim_position` is set before `sweep`
    begins = state.trim_position
    return max(begins, sweep.position) if sweep is not None and sweep.evicts else begins


def evicts_now(state: BrokerState) -> bool:
    """Returns True if the tier keeps messages that the nodes no longer have."""
    return state.kept.position < evicted_position(state)


def first_offset(state: BrokerState, topic_id: int, queue_id: int, low: int | None = None) -> int:
    """Returns the first offset of the queue that is kept, on this node or in the tier. `low`: the queue's `min_offset`
    on this node, None if the caller has not looked it up."""
    if not evicts_now(state):
        return state.min_offset(topic_id, queue_id) if low is None else low
    return state.kept_offset(topic_id, queue_id)


class EvictedPulls:
    """Answers pulls of a queue whose beginning may be in the tier. `Pulls` calls it."""

    def __init__(
        self, services: Services, messages: EvictedMessages | None = None, levels: ReadLevels | None = None
    ) -> None:
        """`messages` and `levels` are None if this node has no tier."""
        self._services = services
        self._messages = messages
        self._levels = levels

    def first_offset(self, pull: Pull, low: int | None = None) -> int:
        """Returns the first offset of the pull's queue, on this node or in the tier. `low`: the first offset on this
        node, None if the caller has not looked it up."""
        return first_offset(self._services.state, pull.topic_id, pull.queue_id, low)

    def answer(self, pull: Pull, low: int, found: ReplyToPull, moved: Moved, failed: FailEvictedPull) -> bool:
        """Answers the pull from the tier and returns True; returns False if its offset lies below everything that is
        kept. `low`: the first offset of the queue on this node.

        Calls one of three functions, unless the client disconnects: `found` with messages, or with the next offset if
        none matches; `moved` with the offset at which the queue now begins; `failed` with the reason why the tier
        cannot be read.
        """
        if pull.offset < self.first_offset(pull):
            return False
        if self._messages is None:
            failed(
                pull, f"offset {pull.offset} is in the tier, and this node has none: set tier.url, or pull elsewhere"
            )
            return True

        def done(result: Found | Gone | Exception) -> None:
            if pull.puller.client.closed:
                return
            if isinstance(result, Gone):
                moved(pull, result.next_offset)
            elif isinstance(result, Exception):
                failed(pull, f"the tier does not give {result}")
            else:
                found(pull, result)

        self._messages.find(pull, low, done)
        return True

    def answer_early(self, pull: Pull, high: int, found: ReplyToPull, here: Callable[[Pull], None]) -> bool:
        """Answers a pull from the tier although this node has its messages, if `tier.read` says so; returns False if
        the tier is not to be asked. Calls `found` with messages below the offset `high`. If the tier does not return
        them, it calls `here`, and this node has to answer from its own log."""
        levels, messages = self._levels, self._messages
        if pull.here or levels is None or messages is None:
            return False
        if not levels.prefers_tier(pull.topic_id, pull.queue_id, pull.offset):
            return False

        def done(result: Found | Gone | Exception) -> None:
            if pull.puller.client.closed:
                return
            if isinstance(result, Found):
                found(pull, result)
                return
            if isinstance(result, Exception):
                levels.failed()
            pull.here = True
            here(pull)

        messages.find(pull, high, done)
        return True
