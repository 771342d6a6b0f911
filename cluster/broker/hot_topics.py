"""Topics that keep the leader of one of several groups of brokers busy: the judgement, and giving them queues in the
groups that have none (`topics.spread`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.refusal import Refused
from cluster.broker.topics import SPREAD_HOME, Topics
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.service_lifecycle import Part
from statemachine.cluster_wide.broker_groups import active_groups

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.hot_spots import Window
    from cluster.runtime.events import EventLog
    from statemachine.broker_state import BrokerState
    from statemachine.topics.topics import TopicConfig

logger = logging.getLogger(__name__)

BUSY: Final = 0.6
"""The part of the time in which the event loop of a leader that is busy uses a core or waits for one."""
HOT: Final = 0.5
"""The part of a group's messages that a topic or queue that is hot gets."""


class Hot(NamedTuple):
    """A topic that keeps a leader busy."""

    topic: TopicConfig
    messages: int
    """Its messages in the window; of a hot queue, those of the queue."""
    further: tuple[int, ...]
    """The groups that take messages, and in which it takes none, ascending."""
    queue_id: int | None = None
    """The queue that gets most of them, if the topic is in every group already."""


def hot_topic(state: BrokerState, window: Window) -> Hot | None:
    """Returns the topic that gets at least half of the messages of this group and could have queues in further ones,
    or one queue of which gets half of them; None if the leader is not busy, or there is one group."""
    if window.busy < BUSY or not window.messages or not state.broker_groups.by_number:
        return None
    ((topic_id, messages),) = window.topics().most_common(1) or [(0, 0)]
    topic = state.topics_by_id.get(topic_id)
    if topic is None or messages < HOT * window.messages:
        return None
    further = sorted(active_groups(state.broker_groups.by_number) - topic.written_groups)
    if further:
        return Hot(topic, messages, tuple(further))
    heaviest = window.queues[0]
    if heaviest.item[0] != topic_id or heaviest.sure < HOT * window.messages:
        return None
    return Hot(topic, heaviest.sure, (), heaviest.item[1])


class Spreading:
    """With `topics.spread = "auto"`, gives a topic without order that was hot for two windows queues in all groups.
    Done by the leader of the group that has it; the first group decides. Event loop only."""

    def __init__(self, services: Services, hot: Callable[[], Window], events: EventLog) -> None:
        """`hot`: returns the last window of this node."""
        self._services = services
        self._hot = hot
        self._events = events
        self._window = hot()
        self._before: int | None = None
        """Id of the topic that was hot in the window before."""
        self._asked = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="spreading", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Evaluates the last window if it has ended: a topic that was hot in two windows in a row is spread."""
        window = self._hot()
        if window is self._window:
            return
        self._window = window
        found = self._found(window)
        before, self._before = self._before, None if found is None else found.topic.id
        if found is not None and found.topic.id == before and not self._asked:
            self._spread(found)

    def _found(self, window: Window) -> Hot | None:
        services = self._services
        if services.config.topics.spread != "auto" or not services.writes_open():
            return None
        found = hot_topic(services.state, window)
        return found if found is not None and found.further and not found.topic.order else None

    def _spread(self, found: Hot) -> None:
        topic, groups = found.topic, found.further
        name = topic.name
        home = ",".join(map(str, sorted(topic.written_groups)))
        attributes = {**topic.attributes, SPREAD_HOME: topic.attributes.get(SPREAD_HOME, home)}

        def done(result: ProposeResult) -> None:
            self._asked = False
            if result.outcome is Outcome.OK:
                which = ", ".join(map(str, groups))
                says = f"the topic was hot and has queues in group {which} now (topics.spread is auto)"
                self._events.note_change(f"topic {name}", says)

        self._asked = True
        try:
            Topics(self._services).put({"name": name, "attributes": attributes}, done, groups=groups)
        except Refused as refused:  # a system topic, whose queues cannot be moved
            self._asked = False
            logger.info("topic %s is hot and stays where it is: %s", name, refused)
