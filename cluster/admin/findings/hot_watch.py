"""Finds out what keeps a busy leader busy, in a cluster of several groups of brokers: a topic that could have queues in
further groups, or a queue that no further one helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from cluster.admin.findings.finding import Condition
from raftlog.types import FIRST_GROUP

if TYPE_CHECKING:
    from cluster.admin.node_interface import AdminPort
    from cluster.replication.hot_spots import Window
    from statemachine.topics.topics import TopicConfig

BUSY: Final = 0.6
"""The part of a core that the process of a leader that is busy uses."""
HOT: Final = 0.5
"""The part of a group's messages that a topic or queue that is hot gets."""
HOLD_MS: Final = 15_000
"""Milliseconds, more than one window: a burst is not hot."""


class HotWatch:
    """Watches the windows of what is hot. Event loop only."""

    def __init__(self, port: AdminPort, cpu_s: Callable[[], float] = time.process_time) -> None:
        """`cpu_s`: returns the seconds of CPU that this process has used."""
        self._port = port
        self._cpu_s = cpu_s
        self._window = port.hot()
        self._since: tuple[int, float] | None = None
        """(milliseconds, seconds of CPU) when the window before was first seen to have ended."""
        self._conditions: list[Condition] = []

    def look(self, monotonic_ms: int) -> Iterator[Condition]:
        """Yields what is hot in the last window; nothing unless this node leads one of several groups and is busy."""
        window = self._port.hot()
        if window is not self._window:
            now, before = (monotonic_ms, self._cpu_s()), self._since
            self._window, self._since = window, now
            took_ms = 0 if before is None else now[0] - before[0]
            busy = 0.0 if before is None or not took_ms else 1000 * (now[1] - before[1]) / took_ms
            self._conditions = list(self._judge(window, busy)) if busy >= BUSY else []
        yield from self._conditions

    def _judge(self, window: Window, busy: float) -> Iterator[Condition]:
        state = self._port.state
        if not window.messages or not state.broker_groups.by_number or not self._port.services.writes_open():
            return
        ((topic_id, messages),) = window.topics().most_common(1) or [(0, 0)]
        topic = state.topics_by_id.get(topic_id)
        if topic is None or messages < HOT * window.messages:
            return
        further = {FIRST_GROUP, *state.broker_groups.by_number} - topic.queues_of_groups.keys()
        heaviest = window.queues[0]
        if further:
            yield self._hot_topic(topic, self._says(window, messages, busy), sorted(further))
        elif heaviest.item[0] == topic_id and heaviest.sure >= HOT * window.messages:
            yield self._hot_queue(topic, heaviest.item[1], self._says(window, heaviest.sure, busy))

    def _says(self, window: Window, messages: int, busy: float) -> str:
        rate, group = 1000 * window.messages / window.took_ms, self._port.config.cluster.group
        return (
            f"gets {messages / window.messages:.0%} of the {rate:.0f} messages/s of group {group}, whose leader uses "
            f"{busy:.0%} of a core"
        )

    def _hot_topic(self, topic: TopicConfig, says: str, further: list[int]) -> Condition:
        which = ", ".join(map(str, further))
        where = f"it has no queues in group {which}" if len(further) == 1 else f"it has none in the groups {which}"
        moves = ", where keys would come to other queues" if topic.order else ""
        return Condition(
            "hot_topic",
            f"topic {topic.name}",
            f"topic {topic.name} {says}; {where}{moves}",
            do_now=f"raftmq topic spread {topic.name}",
            hold_ms=HOLD_MS,
        )

    def _hot_queue(self, topic: TopicConfig, queue_id: int, says: str) -> Condition:
        return Condition(
            "hot_queue",
            f"queue {topic.name}/{queue_id}",
            f"queue {queue_id} of topic {topic.name} {says}; a key has one queue, so more queues do not help",
            hold_ms=HOLD_MS,
        )
