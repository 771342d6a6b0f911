"""Finds topics that keep the leader of one of several groups of brokers busy (hot topics), and gives them queues in the
groups where they have none (`topics.spread`)."""

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
"""The load from which on a leader is busy: the part of the time in which its event loop uses a core or waits for
one."""
HOT: Final = 0.5
"""The part of a group's messages from which on a topic or a queue is hot."""


class Hot(NamedTuple):
    """A hot topic: one that gets at least half of the messages of a group whose leader is busy."""

    topic: TopicConfig
    messages: int
    """The number of messages in the measured window: of the topic, or of the queue if `queue_id` is given."""
    further: tuple[int, ...]
    """The numbers of the groups of brokers to which the topic could be spread, ascending: they take messages, but none
    of this topic."""
    queue_id: int | None = None
    """The queue that gets most of the messages, if the topic is in every group already; otherwise None."""


def hot_topic(state: BrokerState, window: Window) -> Hot | None:
    """Returns the topic that gets at least half of this group's messages, if it could be spread to further groups, or
    if one of its queues gets half of the messages. Returns None if there is no such topic, if the leader is not busy,
    or if there is only one group. `window`: the leader's last measurement."""
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
    """Spreads hot topics, with `topics.spread = "auto"`. A topic without order that was hot in two windows in a row
    gets queues in all groups that take messages. The leader of the group that has the topic proposes this; the first
    group decides. Event loop only."""

    def __init__(self, services: Services, hot: Callable[[], Window], events: EventLog) -> None:
        """`hot` returns the last measurement of this node's load."""
        self._services = services
        self._hot = hot
        self._events = events
        self._window = hot()
        self._before: int | None = None
        """The id of the topic that was hot in the last window that was evaluated; None if none was."""
        self._asked = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="spreading", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Evaluates the last window once, when it has ended. A topic that was hot in two windows in a row is spread."""
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
        except Refused as refused:  # the topic may be a system topic, which cannot be changed
            self._asked = False
            logger.info("topic %s is hot and stays where it is: %s", name, refused)
