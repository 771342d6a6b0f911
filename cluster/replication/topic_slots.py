"""Keeps the data of topics that the send path needs, in one term of leadership: what may be sent to each topic, and the
next offset of each queue.

A slot is kept until its topic changes, or anything else that slots are made of, such as the default acknowledgement
level. While a change of the topic is queued or proposed and not applied, there is no slot: sends that were checked
against a topic are in the log entirely before or after a change of it. So apply never has to reject a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cluster.replication.drain_grace import DrainGrace
from cluster.replication.message_batch import QueueCursor, TopicSlot
from cluster.replication.send_queue import slot_of
from statemachine.cluster_wide.closed_log import CloseBrokerGroup
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import PERM_WRITE, CreateTopic
from statemachine.truth import CopyTruth

if TYPE_CHECKING:
    from cluster.replication.acks.early_answers import EarlyAnswers
    from cluster.replication.pending_requests import PendingCommands
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command


class TopicSlots:
    """The topics that sends were checked against, and the topics that accept no sends now. Event loop only."""

    def __init__(self, state: BrokerState, early: EarlyAnswers) -> None:
        """`early` has the default acknowledgement level, for topics that name none."""
        self._state, self._early = state, early
        self._slots: dict[str, TopicSlot] = {}
        self.plain: dict[bytes, TopicSlot] = {}
        """The slots, for the kernel, of topics whose sends need nothing special; emptied when `_slots` loses one."""
        self._cursors: dict[tuple[int, int], QueueCursor] = {}
        self.barriers = TopicBarriers()
        self.drain = DrainGrace(state)
        """Decides whether sends are refused because the group drains."""

    def slot(self, topic: str) -> TopicSlot | None:
        """Returns the topic's slot; None if the topic does not exist, a change of it is pending, or the log is
        closed."""
        slot = self._slots.get(topic)
        if slot is None:
            config = self._state.topics.get(topic)
            # No slot while a change is in flight: what is checked now might be refused by apply.
            if config is None or self.changing(topic):
                return None
            slot = self._slots[topic] = slot_of(config, self._early.default, self._cursor)
            # If the group takes no sends to the topic, the slot is not absent but has no permission to write, so that
            # clients ask for their route again.
            if not self.drain.takes(topic):
                slot.perm &= ~PERM_WRITE
        return slot

    def changing(self, topic: str) -> bool:
        """Returns True while a change of the topic is queued or proposed and not applied: sends to the topic wait.
        Returns True for every topic if the log is closed or about to be."""
        return topic in self.barriers or self.drain.is_closed

    def refuse_topics(self, gathered: frozenset[str]) -> None:
        """Refuses sends to these topics, as long as they are only read in this group, until further notice."""
        if self.drain.refuse_topics(gathered):
            self.forget()

    def look(self, now_ms: int) -> None:
        """Updates, at this monotonic time, whether the group drains and refuses sends."""
        if self.drain.look(now_ms):
            self.forget()

    def forget(self) -> None:
        """Drops all slots: what they were made of has changed. Cursors stay."""
        self._slots.clear()
        self.plain.clear()

    def forget_topic(self, name: str) -> None:
        """Drops the slot of one topic, whose change will be proposed."""
        self._slots.pop(name, None)
        self.plain.clear()

    def begin_term(self) -> None:
        """Drops everything, after the no-op of a term is applied: queue offsets then start from the applied state,
        without proposals of an earlier term."""
        self.forget()
        self.drain.begin()
        self._cursors.clear()
        self.barriers.clear()

    def _cursor(self, topic_id: int, queue_id: int) -> QueueCursor:
        """Returns the cursor of a queue. Cursors outlive topic slots within a term: offsets in flight must not be
        assigned twice."""
        cursor = self._cursors.get((topic_id, queue_id))
        if cursor is None:
            cursor = QueueCursor(topic_id, queue_id, self._state.max_offset(topic_id, queue_id))
            self._cursors[topic_id, queue_id] = cursor
        return cursor


class TopicBarriers:
    """Topics with a change that is queued or proposed, and not applied: sends to them wait behind the change."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._of_all = 0
        """The number of commands in flight after which no topic may take a message. Each is a barrier for all
        topics."""

    def __bool__(self) -> bool:
        return bool(self._count or self._of_all)

    def __contains__(self, topic: object) -> bool:
        return topic in self._count or self._of_all > 0

    def raise_for(self, commands: list[Command]) -> list[str]:
        """Raises the barrier of every topic that the commands change; returns these topics."""
        self._of_all += closes(commands)
        names = [name for command in commands for name in _topics_of(command)]
        for name in names:
            self._count[name] = self._count.get(name, 0) + 1
        return names

    def lower_for(self, calls: Iterable[PendingCommands]) -> None:
        """Lowers the barriers of these calls, whose changes were applied, are lost, or were not proposed after all."""
        for call in calls:
            self._of_all = max(0, self._of_all - closes(call.commands))
            for command in call.commands:
                for name in _topics_of(command):
                    left = self._count.pop(name, 0) - 1
                    if left > 0:
                        self._count[name] = left

    def clear(self) -> None:
        """Lowers all barriers: in a new term of leadership nothing is in flight."""
        self._count.clear()
        self._of_all = 0


def closes(commands: Iterable[Command]) -> int:
    """Returns how many of the commands close the log."""
    return sum([isinstance(command, CloseBrokerGroup) for command in commands])


def _topics_of(command: Command) -> list[str]:
    """Returns the topics that a command changes, or may change."""
    if isinstance(command, CreateTopic):
        return [str(command.config["name"])]
    if isinstance(command, DeleteTopic):
        return [command.name]
    if isinstance(command, CopyTruth):
        return [str(name) for kind, name, _ in command.rows if kind == TruthKind.TOPIC]
    return []
