"""Topics that take new messages in fewer groups of brokers than before (docs/adr/0114, "The way back").

The leader of each group looks at all topics in slices. One that is only read there is read out: when the clients have
had the time to learn of it, sends are refused, and when nothing is left to read the topic leaves the group. One that
was spread because it was hot, and is calm now, is gathered where it was before (`topics.spread`).
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
"""Milliseconds from the first refusal of sends on until a topic may leave: what was taken before is decided then."""
AGAIN_MS: Final = 10_000
"""Milliseconds after which what was not decided is asked again."""
CALM: Final = BUSY / 2
"""The part of the time that the leader of a group may be busy with a topic that has come back, so that it does not
spread again at once."""


def busy_if_gathered(topic: TopicConfig, home: Collection[int], window: Window) -> float:
    """Returns the part of the time (0 to 1) for which this leader would be busy, given its window, if the topic's
    messages came only to the groups `home`, its own among them. The queues of a topic get about as much each."""
    if not window.messages:
        return window.busy
    part = window.busy * window.topics()[topic.id] / window.messages
    written = {group: write for group, (_, write) in topic.queues_of_groups.items()}
    more = sum(written.values()) / sum(written[group] for group in home)
    return window.busy + part * (more - 1)


class Gathering:
    """Makes topics leave groups in which they are only read, and gathers hot topics that are calm again. Event loop
    only."""

    def __init__(
        self,
        services: Services,
        topics: TopicSlots,
        hot: Callable[[], Window],
        events: EventLog,
        route_age_ms: int = ROUTE_AGE_MS,
    ) -> None:
        """`hot`: returns the last window of this node. `route_age_ms`: no client sends by a route that is older."""
        self._services, self._topics, self._hot, self._events = services, topics, hot, events
        self._route_age_ms = route_age_ms
        self._walk = Walk(self._look_at_all)
        self._now_ms = 0
        self._since: dict[str, tuple[int, int]] = {}
        """Topic that is only read here -> (log time of its change, monotonic time at which this leader found it)."""
        self._calm_since: dict[str, int] = {}
        """Topic that was spread by itself -> monotonic time since which it is calm, or since which it is known."""
        self._refused: dict[str, int] = {}
        """Topic to which sends are refused, because clients have had the time to learn that it is only read here ->
        monotonic time since which they are."""
        self._told: frozenset[str] = frozenset()
        """The topics to which `Proposals` refuses sends."""
        self._asked = False
        self._due_ms = 0

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="gathering", tick=self.tick, opened=self.forget)

    def tick(self, now_ms: int) -> None:
        """Checks up to STEPS_PER_TICK topics: starts and ends their reading out, and updates the topics to which sends
        are refused."""
        services = self._services
        groups = services.state.broker_groups
        if not groups.by_number:  # a cluster of one group pays nothing, and never had any other
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
        """Forgets all times and refusals, because this node has become leader or is leader no longer."""
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
                # A delayed message that became due after the topic had left, or one of an earlier leader's time.
                self._ask(name, hidden.stop, "has messages here again, and is read out once more")
        for name in (self._since.keys() | self._calm_since.keys()) - state.topics.keys():
            self._takes(name)
            self._calm_since.pop(name, None)

    def _takes(self, name: str) -> None:
        """Forgets when the reading out of the topic began here: it is not read out, or no longer."""
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
        """Proposes that the topic has `read_queues` read-only queues in this group, and none to write."""
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

    # -- by itself

    def _home(self, topic: TopicConfig) -> set[int]:
        """Returns the groups in which a topic that was spread by itself was before and may be again; none if it is not
        for this group to decide: that is one of them."""
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
