"""Resets of consumer offsets, also of groups that are consuming (ADR 0053). The leader's.

A reset moves the committed offset of a queue and remains in the log's state until the consumer of the queue goes on
from there: until then its pulls are answered MOVED, and its commits, which are from before, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.command_levels import raising
from cluster.broker.names import check_group_name, group_named, topic_named
from cluster.broker.old_pulls import first_offset
from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed
from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.commands import COMMIT_OFFSETS, END_RESETS, PUT_GROUP, RESET_OFFSETS, RESETS_LEVEL

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.offset_resets import OffsetReset
    from statemachine.queue_rows import Queue
    from statemachine.topics import TopicConfig


class ResetTo(Enum):
    """What a reset goes to."""

    EARLIEST = auto()
    """The first message that is kept."""
    LATEST = auto()
    """Behind the last message: what has accumulated is skipped."""
    TIME = auto()
    """The first message stored at that time or later, milliseconds of log time."""
    OFFSET = auto()
    """That queue offset, within the bounds of the queue."""


class ResetWish(NamedTuple):
    """A reset as an operator asks for it."""

    group: str
    topic: str
    to: ResetTo
    value: int = 0
    """With TIME and OFFSET."""
    queue_id: int | None = None
    """None: every queue of the topic."""


class QueueOffset(NamedTuple):
    """Where a queue was reset to."""

    queue_id: int
    offset: int


ResetDone = Callable[[list[QueueOffset] | Refused], None]


class OffsetResets:
    """Makes resets, and ends those that consumers know of."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._ending: set[tuple[str, Queue, int]] = set()
        """Resets whose end is proposed: (group, queue, number)."""

    # --- operators ---------------------------------------------------------------------------------------------------

    def reset(self, wish: ResetWish, done: ResetDone) -> None:
        """Calls `done` when the reset is applied, or with why it is not."""
        when_confirmed(self._services, partial(self._propose, wish, done), done)

    def plan(self, wish: ResetWish, done: ResetDone) -> None:
        """Calls `done` with where `reset` would go; changes nothing."""
        when_confirmed(self._services, lambda: done(self._found(wish, self._checked(wish))), done)

    def _found(self, wish: ResetWish, topic: TopicConfig) -> list[QueueOffset]:
        queues = range(topic.read_queues) if wish.queue_id is None else (wish.queue_id,)
        return [QueueOffset(queue_id, self._offset(wish, topic, queue_id)) for queue_id in queues]

    def _propose(self, wish: ResetWish, done: ResetDone) -> None:
        services = self._services
        topic = self._checked(wish)
        found = self._found(wish, topic)
        before = raising(services, RESETS_LEVEL, "resets")
        rows = [[topic.id, queue_id, offset] for queue_id, offset in found]

        def applied(result: ProposeResult) -> None:
            done(found if result.outcome is Outcome.OK and result.results[-1].ok else _refusal(result))

        services.propose([*before, [RESET_OFFSETS, wish.group, services.log_time_ms(), rows]], applied)

    def _checked(self, wish: ResetWish) -> TopicConfig:
        """The topic of a wish that can be met. Raises Refused."""
        services = self._services
        topic = topic_named(services.state, wish.topic)
        if not services.knows_group(wish.group):
            raise Refused(Reason.NO_GROUP, f"consumer group {wish.group} does not exist")
        if wish.queue_id is not None and not 0 <= wish.queue_id < topic.read_queues:
            remark = f"topic {topic.name} has read queues 0 to {topic.read_queues - 1}, not {wish.queue_id}"
            raise Refused(Reason.INVALID, remark)
        return topic

    def _offset(self, wish: ResetWish, topic: TopicConfig, queue_id: int) -> int:
        state = self._services.state
        low, high = first_offset(state, topic.id, queue_id), state.max_offset(topic.id, queue_id)
        if wish.to is ResetTo.EARLIEST:
            return low
        if wish.to is ResetTo.LATEST:
            return high
        if wish.to is ResetTo.TIME:
            return state.offset_by_time(topic.id, queue_id, wish.value, upper=False)
        if not low <= wish.value <= high:
            remark = f"topic {topic.name} queue {queue_id} has offsets {low} to {high}, not {wish.value}"
            raise Refused(Reason.INVALID, remark)
        return wish.value

    def clone(self, source: str, to: str, topic: str, done: Callable[[ProposeResult], None]) -> None:
        """Gives the group `to` the committed offsets of `source`, of one topic or, with "", of all. Raises Refused."""
        state = self._services.state
        check_group_name(to)
        group_named(state, source)
        config = topic_named(state, topic) if topic else None
        rows = [[to, *row] for row in state.offsets_of_group(source) if config is None or row[0] == config.id]
        self._services.propose([[PUT_GROUP, {"name": to}, True], [COMMIT_OFFSETS, rows]], done)

    # --- consumers ---------------------------------------------------------------------------------------------------

    def pending(self, group: str, queue: Queue) -> OffsetReset | None:
        """What the consumer of the queue has to be told, as far as this node has applied."""
        state = self._services.state
        return state.resets_of_group(group).get(queue) if state.has_resets else None

    def known(self, group: str, queue: Queue, reset: OffsetReset) -> None:
        """The consumer goes on from there: from now on its commits count again. Leader only."""
        key = group, queue, reset.number
        if key in self._ending:
            return
        self._ending.add(key)
        self._services.propose([[END_RESETS, group, [[*queue, reset.number]]]], lambda _: self._ending.discard(key))


def _refusal(result: ProposeResult) -> Refused:
    if result.outcome is Outcome.OK:
        return Refused(Reason.INVALID, str(result.results[-1].value))
    return not_written(result.outcome, result.remark)
