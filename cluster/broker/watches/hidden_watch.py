"""Finds topics with hidden messages: those that a group has yet to consume, in queues that consumers do not read any
more because the number of the topic's read queues was reduced. The leader checks the topics in slices.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from cluster.broker.groups.hidden_queues import hidden_queues, named, unread
from cluster.runtime.findings import Code, Condition
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.walk import Walk
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from statemachine.topics.topics import TopicConfig

MESSAGES_HIDDEN: Final = Code("messages_hidden", "warning", "raftmq topic list")
STEPS_PER_LOOK: Final = 500
"""The number of steps of one look. A step checks a topic, a group of a topic with hidden messages, or some queues. The
next look continues behind them."""
TOPICS_TOLD_MAX: Final = 200
"""The most topics that have findings at a time."""


class HiddenWatch:
    """Finds topics with hidden messages. Event loop only."""

    def __init__(self, services: Services, steps_per_look: int = STEPS_PER_LOOK) -> None:
        self._services = services
        self._steps_per_look = steps_per_look
        self._conditions: dict[str, Condition] = {}
        self._walk = Walk(self._judge_all)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="hidden messages", findings=self.look)

    def look(self) -> Iterator[Condition]:
        """Checks some topics, and yields the conditions of all topics. Yields nothing unless this node leads."""
        if not self._services.writes_open():
            self._conditions.clear()
            self._walk.forget()
            return
        self._walk.go_on(self._steps_per_look)
        topics = self._services.state.topics
        for name in [name for name in self._conditions if name not in topics]:
            del self._conditions[name]
        yield from islice(self._conditions.values(), TOPICS_TOLD_MAX)

    def _judge_all(self) -> Generator[None]:
        """Checks one topic after the other, in steps."""
        state = self._services.state
        for name, topic in state.topics.items():
            charge(ITEM_UNITS)
            yield
            hidden = hidden_queues(state, topic)
            if hidden and (messages := (yield from unread(state, topic, hidden))):
                self._conditions[name] = self._condition(topic, hidden, messages)
            else:
                self._conditions.pop(name, None)

    def _condition(self, topic: TopicConfig, hidden: range, messages: int) -> Condition:
        return Condition(
            MESSAGES_HIDDEN,
            f"topic {topic.name}",
            f"{messages} messages of topic {topic.name} that are not consumed lie in {named(hidden)}, and consumers "
            f"read only {named(range(topic.read_queues))}",
            f"raftmq topic alter {topic.name} --queues {hidden.stop}",
        )
