"""Moves topics out of groups of brokers in which they take no new messages any more (docs/adr/0114, "The way back").

The leader of each group looks at all topics in slices. A topic whose queues in the group are read-only is *read out*.
Once clients have had the time to learn this, the leader refuses sends to it. Once all its messages in the group are
read, the topic leaves the group. A topic that was spread over more groups because it was hot (`topics.spread`), and is
calm now, is *gathered* in the groups where it was before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

from cluster.broker.groups.hidden_queues import hidden_queues, unread
from cluster.broker.hot_topics import BUSY
from cluster.broker.refusal import Refused
from cluster.broker.topics import Topics, home_of
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.environment import ROUTE_AGE_MS
from cluster.runtime.service_lifecycle import Part
from cluster.runtime.turns.walk import Walk
from raftlog.work import ITEM_UNITS, charge
from statemachine.cluster_wide.broker_groups import active_groups
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.hot_spots import Window
    from cluster.replication.topic_slots import TopicSlots
    from cluster.runtime.events import EventLog
    from statemachine.topics.topics import TopicConfig

logger = logging.getLogger(__name__)

STEPS_PER_TICK: Final = 100
SETTLE_MS: Final = 10_000
"""Milliseconds between the first refusal of sends to a topic and its leaving. Sends that were taken before are decided
by then."""
AGAIN_MS: Final = 10_000
"""Milliseconds after a failed or undecided proposal until the next one."""
CALM: Final = BUSY / 2
"""The most load (part of the time, 0 to 1) at which the leader may take a topic back. It is below BUSY, so that the
topic is not spread again at once."""


def busy_if_gathered(topic: TopicConfig, home: Collection[int], window: Window) -> float:
    """Returns the part of the time (0 to 1) for which this leader would be busy if the topic's messages came only to
    the groups `home`, which include its own. `window`: the leader's last measurement. Each queue of the topic is
    assumed to get the same number of messages."""
    if not window.messages:
        return window.busy
    part = window.busy * window.topics()[topic.id] / window.messages
    written = {group: write for group, (_, write) in topic.queues_of_groups.items()}
    more = sum(written.values()) / sum(written[group] for group in home)
    return window.busy + part * (more - 1)


class Gathering:
    """Moves topics out of groups in which they are only read, and gathers topics that were hot and are calm again.
    Event loop only."""

    def __init__(
        self,
        services: Services,
        topics: TopicSlots,
        hot: Callable[[], Window],
        events: EventLog,
        route_age_ms: int = ROUTE_AGE_MS,
    ) -> None:
        """`hot` returns the last measurement of this node's load. `route_age_ms`: milliseconds after which no client
        still sends by an old route."""
        self._services, self._topics, self._hot, self._events = services, topics, hot, events
        self._route_age_ms = route_age_ms
        self._walk = Walk(self._look_at_all)
        self._now_ms = 0
        self._since: dict[str, tuple[int, int]] = {}
        """Name of a topic that is only read in this group -> (log time of the topic's last change, monotonic time at
        which this leader first saw it)."""
        self._calm_since: dict[str, int] = {}
        """Name of a topic that was spread automatically -> monotonic time since which this leader knows it as calm."""
        self._refused: dict[str, int] = {}
        """Name of a topic to which sends are refused -> monotonic time since which they are. Clients have had the time
        to learn that the topic is only read in this group."""
        self._told: frozenset[str] = frozenset()
        """The topics for which `TopicSlots` was last told to refuse sends."""
        self._asked = False
        self._due_ms = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="gathering", tick=self.tick, opened=self.forget)

    def tick(self, now_ms: int) -> None:
        """Checks up to STEPS_PER_TICK topics: begins and ends reading them out, and updates the topics to which sends
        are refused."""
        services = self._services
        groups = services.state.broker_groups
        if not groups.by_number:  # a cluster that never had several groups returns here, at no cost
            return
        if services.state.level < GATHERS_LEVEL or not services.writes_open():
            self.forget()
            return
        self._now_ms = now_ms
        self._walk.go_on(STEPS_PER_TICK)
        if self._told != self._refused.keys():
            self._told = frozenset(self._refused)
            self._topics.refuse_topics(self._told)

    def forget(self) -> None:
        """Forgets all times and refusals. Called when this node has become leader, or may write no longer."""
        self._since.clear()
        self._calm_since.clear()
        self._refused.clear()
        self._told = frozenset()
        self._walk.forget()

    def _look_at_all(self) -> Iterator[None]:
        state = self._services.state
        for name, topic in state.topics.items():
            charge(ITEM_UNITS)
            yield
            self._look_if_calm(name)
            if topic.is_read_out:
                yield from self._read_out(name, topic)
                continue
            self._takes(name)
            hidden = range(0) if topic.read_queues else hidden_queues(state, topic)
            if hidden and (yield from unread(state, topic, hidden)):
                # The messages are delayed ones that became due after the topic had left, or come from the time of an
                # earlier leader.
                self._ask(name, hidden.stop, "has messages here again, and is read out once more")
        for name in (self._since.keys() | self._calm_since.keys()) - state.topics.keys():
            self._takes(name)
            self._calm_since.pop(name, None)

    def _takes(self, name: str) -> None:
        """Forgets since when the topic is read out, and since when sends to it are refused. Called if the topic is not
        read out, or if it was changed since."""
        self._since.pop(name, None)
        self._refused.pop(name, None)

    def _read_out(self, name: str, topic: TopicConfig) -> Iterator[None]:
        changed_ms, since = self._since.setdefault(name, (topic.changed_ms, self._now_ms))
        if changed_ms != topic.changed_ms:
            self._takes(name)
            self._since[name] = (topic.changed_ms, self._now_ms)
            return
        if self._now_ms - since < self._route_age_ms:
            return
        is_due = self._now_ms - self._refused.setdefault(name, self._now_ms) >= SETTLE_MS
        if is_due and not (yield from unread(self._services.state, topic, range(topic.read_queues))):
            self._ask(name, 0, "was read out, and has no queues here any more")

    def _ask(self, name: str, read_queues: int, says: str) -> None:
        """Proposes that the topic has `read_queues` queues in this group that are only read, and none that take
        messages. `says`: the text of the event. Does nothing while another proposal is in progress, or soon after one
        has failed."""
        if not self._asked and self._now_ms >= self._due_ms:
            own = self._services.state.broker_groups.own
            config = {"name": name, "place": [[own, read_queues, 0]]}
            self._asked = True
            self._services.propose([CreateTopic(config, False)], self._done(name, says), author="")

    def _done(self, name: str, says: str) -> Callable[[ProposeResult], None]:
        def done(result: ProposeResult) -> None:
            self._asked = False
            if result.outcome is Outcome.OK and all(each.ok for each in result.results):
                self._events.note_change(f"topic {name}", says)
            else:
                self._due_ms = self._now_ms + AGAIN_MS

        return done

    # --- gathering the topics that were spread because they were hot ---

    def _home(self, topic: TopicConfig) -> set[int]:
        """Returns the groups in which an automatically spread topic was before, and to which it may return. Empty if
        the topic is not to be gathered, or if this group is not the one with the lowest number of those groups: only
        the leader of that one decides."""
        groups = self._services.state.broker_groups
        if self._services.config.topics.spread != "auto" or topic.order:
            return set()
        home = home_of(topic) & topic.written_groups & active_groups(groups.by_number)
        return home if home and min(home) == groups.own and topic.written_groups - home else set()

    def _look_if_calm(self, name: str) -> None:
        services = self._services
        topic = services.state.topics.get(name)
        home = self._home(topic) if topic is not None else set()
        if topic is None or not home:
            self._calm_since.pop(name, None)
            return
        since = self._calm_since.setdefault(name, self._now_ms)
        if busy_if_gathered(topic, home, self._hot()) > CALM:
            self._calm_since[name] = self._now_ms
        elif self._now_ms - since >= services.config.topics.gather_after_ms:
            self._gather(topic, home)

    def _gather(self, topic: TopicConfig, home: Collection[int]) -> None:
        if self._asked or self._now_ms < self._due_ms:
            return
        which = ", ".join(map(str, sorted(home)))
        says = f"the topic is calm and takes messages in group {which} alone (topics.spread is auto)"
        self._asked = True
        try:
            Topics(self._services).gather(topic.name, home, self._done(topic.name, says))
        except Refused as refused:
            self._asked, self._due_ms = False, self._now_ms + AGAIN_MS
            logger.info("topic %s is calm and stays where it is: %s", topic.name, refused)
