"""Resets consumer offsets, also of groups that are consuming (ADR 0053). Leader only.

A reset moves the committed offset of a queue. The reset stays in the replicated state until the consumer of the queue
continues from the new offset. Until then the consumer's pulls are answered MOVED, and its commits are ignored, because
the consumer does not know of the reset yet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.evicted.evicted_time_search import EvictedBounds, offset_by_time
from cluster.broker.groups.reset_places import ResetPlaces
from cluster.broker.name_rules import check_group_name, group_named, topic_named
from cluster.broker.new_names import check_new_group
from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed
from cluster.broker.rights import UPDATE, topic_need
from cluster.broker.services import propose_in_parts, rows_in_parts
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.work import ITEM_UNITS, charge
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import Commit, CommitOffsets, ResetOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.offset_resets import EndResets

if TYPE_CHECKING:
    from cluster.broker.rights import Party, Rights
    from cluster.broker.services import Services
    from cluster.runtime.turns.work import WorkSteps
    from statemachine.consuming.offset_resets import OffsetReset
    from statemachine.rows.keys import Queue
    from statemachine.topics.topics import TopicConfig


class ResetTo(Enum):
    """The target of a reset."""

    EARLIEST = auto()
    """The first message that is kept, on this node or in the tier."""
    LATEST = auto()
    """The end of the queue, so that all messages in it are skipped."""
    TIME = auto()
    """The first message that was stored at the given time or later, in milliseconds of log time."""
    OFFSET = auto()
    """The given queue offset, which must lie within the bounds of the queue."""


class ResetOrder(NamedTuple):
    """A reset as an operator asks for it."""

    group: str
    topic: str
    to: ResetTo
    value: int = 0
    """The time for TIME, the offset for OFFSET; not used otherwise."""
    queue_id: int | None = None
    """The queue to reset; None for every queue of the topic."""

    def done_to(self, queues: int) -> str:
        """Returns the text of the event after the reset of this number of queues."""
        value = f" {self.value}" if self.to in (ResetTo.TIME, ResetTo.OFFSET) else ""
        return f"its offsets in {queues} queues of {self.topic} were reset to {self.to.name.lower()}{value}"


def cloned_from(source: str, topic: str) -> str:
    """Returns the text of the event when a group got the offsets of the group `source`. `topic`: the one topic, "" for
    all topics."""
    return f"its offsets{topic and f' of {topic}'} were set to those of the group {source}"


class QueueOffset(NamedTuple):
    """The offset that a queue was reset to."""

    queue_id: int
    offset: int


ResetDone = Callable[[list[QueueOffset] | Refused], None]


class OffsetResets:
    """Proposes resets, and ends them when the consumers have learned of them."""

    def __init__(self, services: Services, rights: Rights, evicted: EvictedBounds | None = None) -> None:
        """`evicted`: access to evicted messages; None if this node has no tier."""
        self._services = services
        self._rights = rights
        self._old = evicted
        self._ending: set[tuple[str, Queue, int]] = set()
        """Resets whose end is proposed: (group, queue, number)."""
        self._places = ResetPlaces(partial(services.call_later, 0))

    # --- operators ---------------------------------------------------------------------------------------------------

    def reset(self, asked: ResetOrder, party: Party, done: ResetDone) -> None:
        """Resets the offsets, and calls `done` with the new offsets when the reset is applied, or with the reason why
        it is not. `party`: the user and address that ask. Raises Refused (BUSY) if too many resets of the party are not
        done yet."""
        asker = party.user or party.address
        self._places.take(asker)

        def ended(outcome: list[QueueOffset] | Refused) -> None:
            self._places.leave(asker)
            done(outcome)

        when_confirmed(self._services, partial(self._propose, asked, asker, ended), ended)

    def plan(self, asked: ResetOrder, party: Party, done: ResetDone) -> None:
        """Calls `done` with the offsets that `reset` would set, or with a Refused. Changes nothing."""
        find = partial(self._find, asked, party.user or party.address)
        when_confirmed(self._services, lambda: find(self._checked(asked), done), done)

    def _find(self, asked: ResetOrder, asker: Hashable, topic: TopicConfig, done: ResetDone) -> None:
        """Calls `done` with the new offset of each queue, or with a Refused. It handles one queue after the other, in
        as many turns of the loop as that takes."""
        self._services.turns.patient.begin((self, asker), self._look(asked, topic, done))

    def _look(self, asked: ResetOrder, topic: TopicConfig, done: ResetDone) -> WorkSteps:
        queues = range(topic.read_queues) if asked.queue_id is None else (asked.queue_id,)
        found: dict[int, int] = {}
        refused: list[Refused] = []
        if not queues:  # the topic has no queues in this group of brokers
            done([])
            return

        def told(queue_id: int, offset: int | Refused) -> None:
            if refused:
                return
            if isinstance(offset, Refused):
                refused.append(offset)
                done(offset)
                return
            found[queue_id] = offset
            if len(found) == len(queues):
                done([QueueOffset(*each) for each in sorted(found.items())])

        for queue_id in queues:
            charge(ITEM_UNITS)
            answer = partial(told, queue_id)
            if asked.to is ResetTo.TIME:
                offset_by_time(self._services.state, self._old, (topic.id, queue_id), asked.value, answer, upper=False)
            else:
                answer(self._offset(asked, topic, queue_id))
            if refused:
                return
            yield

    def _propose(self, asked: ResetOrder, asker: Hashable, done: ResetDone) -> None:
        services = self._services
        topic = self._checked(asked)

        def propose(found: list[QueueOffset] | Refused) -> None:
            if isinstance(found, Refused) or not found:
                done(found)
                return

            def applied(result: ProposeResult) -> None:
                self._places.written()
                done(found if result.outcome is Outcome.OK and result.results[-1].ok else _refusal(result))

            def write() -> None:
                rows = ((topic.id, queue_id, offset) for queue_id, offset in found)
                now_ms = services.log_time_ms()
                parts = rows_in_parts(rows)
                runs: Iterator[list[Command]] = ([ResetOffsets(asked.group, now_ms, part)] for part in parts)
                propose_in_parts(services, runs, applied)

            self._places.write(asker, write)

        self._find(asked, asker, topic, propose)

    def _checked(self, asked: ResetOrder) -> TopicConfig:
        """Returns the topic of the reset. Raises Refused if the topic, the consumer group or the queue does not
        exist."""
        services = self._services
        topic = topic_named(services.state, asked.topic)
        if not services.knows_group(asked.group):
            raise Refused(Reason.NO_GROUP, f"consumer group {asked.group} does not exist")
        if asked.queue_id is not None and not 0 <= asked.queue_id < topic.read_queues:
            remark = f"topic {topic.name} has read queues 0 to {topic.read_queues - 1}, not {asked.queue_id}"
            none = f"topic {topic.name} has no queue in this group of brokers"
            raise Refused(Reason.INVALID, remark if topic.read_queues else none)
        return topic

    def _offset(self, asked: ResetOrder, topic: TopicConfig, queue_id: int) -> int | Refused:
        state = self._services.state
        low, high = first_offset(state, topic.id, queue_id), state.max_offset(topic.id, queue_id)
        if asked.to is ResetTo.EARLIEST:
            return low
        if asked.to is ResetTo.LATEST:
            return high
        if not low <= asked.value <= high:
            remark = f"topic {topic.name} queue {queue_id} has offsets {low} to {high}, not {asked.value}"
            return Refused(Reason.INVALID, remark)
        return asked.value

    def clone(self, source: str, to: str, topic: str, party: Party, done: Callable[[ProposeResult], None]) -> None:
        """Gives the group `to` the committed offsets of `source`, in one topic or, if `topic` is "", in all topics.
        Creates the group if necessary. A queue with a reset that its consumer has not learned of yet is reset once
        more. `party`: the user and address that ask. Raises Refused in the same cases as `to_clone`, and if the party
        may not create another group now."""
        rows = self.to_clone(source, to, topic, party)
        runs: Iterator[list[Command]] = (self._given(to, part) for part in rows_in_parts(rows))
        first = [PutGroup({"name": to}, if_absent=True), *next(runs)]
        if to not in self._services.state.groups:
            check_new_group(self._services.creations, to, party)
        propose_in_parts(self._services, chain([first], runs), done)

    def _given(self, to: str, rows: Iterable[tuple[int, int, int]]) -> list[Command]:
        """Returns the commands that give the group these offsets. For a queue with a pending reset this is another
        reset, because the state ignores commits in it."""
        services = self._services
        pending = services.state.resets_of_group(to)
        commits: list[Commit] = []
        reset: list[tuple[int, int, int]] = []
        for topic_id, queue_id, offset in rows:
            if (topic_id, queue_id) in pending:
                reset.append((topic_id, queue_id, offset))
            else:
                commits.append((to, topic_id, queue_id, offset))
        return [CommitOffsets(commits), *([ResetOffsets(to, services.log_time_ms(), reset)] if reset else [])]

    def to_clone(self, source: str, to: str, topic: str, party: Party) -> Iterator[tuple[int, int, int]]:
        """Returns the offsets that `clone` would give the group `to`, each as (topic id, queue, offset). Changes
        nothing. Raises Refused if the name `to` is not allowed, if there is no group `source` or no such topic, or if
        `topic` is "" and the party may not change the offsets of one of the topics."""
        state = self._services.state
        check_group_name(to)
        group_named(state, source)
        config = topic_named(state, topic) if topic else None
        committed = state.offsets_by_topic(source)
        topics = sorted(committed) if config is None else [config.id] if config.id in committed else []
        if config is None:
            self._judge_all(source, topics, party)
        return ((topic_id, *row) for topic_id in topics for row in sorted(committed[topic_id].items()))

    def _judge_all(self, source: str, topics: Sequence[int], party: Party) -> None:
        """Raises Refused (NO_PERMISSION) unless the party may change offsets in all of the topics with these ids."""
        state = self._services.state
        for topic_id in topics:
            charge(ITEM_UNITS)
            found = state.topics_by_id.get(topic_id)
            if found is None or self._rights.allows(party, [topic_need(found.name, UPDATE)], "a clone of all offsets"):
                continue
            why = f"group {source} has offsets of topic {found.name}, of which you have no right to change offsets"
            raise Refused(Reason.NO_PERMISSION, f"{why}: name the topics that you mean, one after the other")

    # --- consumers ---------------------------------------------------------------------------------------------------

    def pending(self, group: str, queue: Queue) -> OffsetReset | None:
        """Returns the reset of which the queue's consumer has still to learn, by this node's applied state; None if
        there is none. Also None if the end of the reset is proposed: the consumer follows the reset already, and would
        otherwise read messages again."""
        state = self._services.state
        reset = state.resets_of_group(group).get(queue) if state.has_resets else None
        return None if reset is None or (group, queue, reset.number) in self._ending else reset

    def known(self, group: str, queue: Queue, reset: OffsetReset) -> None:
        """Proposes the end of the reset, because the consumer continues from the new offset. Its commits count again
        afterwards. Leader only."""
        key = group, queue, reset.number
        self._ending.add(key)
        self._services.propose([EndResets(group, [(*queue, reset.number)])], lambda _: self._ending.discard(key))


def _refusal(result: ProposeResult) -> Refused:
    if result.outcome is Outcome.OK:
        return Refused(Reason.INVALID, str(result.results[-1].value))
    return not_written(result.outcome, result.remark)
