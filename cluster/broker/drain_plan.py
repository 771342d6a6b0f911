"""Finds what is left in a group of brokers before its drain is done, and which topics need queues elsewhere first
(docs/adr/0113), from applied state and in steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import Final, NamedTuple

from cluster.broker.groups.group_lag import QUEUES_PER_STEP, bounds, each_lag
from cluster.broker.name_rules import DEAD_LETTER_PREFIX
from raftlog.work import ITEM_UNITS, charge
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import active_groups
from statemachine.topics.topics import OWN_TOPICS, TopicConfig

TOPICS_PER_STEP: Final = 256
SHOWN_MAX: Final = 100
"""The most rows of one kind that a plan names; it counts all."""
TOPICS_SHOWN: Final = 5
"""The most topics that a plan names of what one consumer group has to read."""


class Unread(NamedTuple):
    """A consumer group that has messages to read in the group of brokers."""

    consumer_group: str
    messages: int
    topics: tuple[str, ...]
    """The first topics that it has to read, at most TOPICS_SHOWN."""
    members: int
    """Its members that are connected to this group of brokers."""
    broadcasts: bool
    """True if these members keep their places themselves: nobody here knows what they have read."""


class Topics(NamedTuple):
    """The topics with queues in the group that producers write to, by name."""

    alone: tuple[str, ...]
    """Topics that have queues in no active group but this one."""
    ordered: tuple[str, ...]
    """`order` topics: their keys move."""
    shared: int
    """The number of topics that have queues in another active group too."""


class DrainPlan(NamedTuple):
    """All that is left. Every kind is named up to SHOWN_MAX times."""

    topics: Topics
    unread: tuple[Unread, ...]
    unread_groups: int
    unread_messages: int
    unread_by_nobody: tuple[tuple[str, int], ...]
    """(topic, messages) of topics that no consumer group reads."""
    topics_read_by_nobody: int
    dead_letters: tuple[tuple[str, int], ...]
    """(consumer group, messages) of topics of dead letters."""
    groups_with_dead_letters: int
    timers: int
    next_due_ms: int | None
    """The time at which the first of them is due; None if none waits."""
    half_messages: int
    attempts: int
    """Attempts at staged writes that are not finished."""
    prepared_writes: int

    @property
    def is_done(self) -> bool:
        """True if nothing is left to read, to wait for or to look at."""
        left = (self.unread_groups, self.topics_read_by_nobody, self.groups_with_dead_letters, self.timers)
        return not any((*left, self.half_messages, self.attempts, self.prepared_writes))


def active_others(state: BrokerState) -> list[int]:
    """Returns the numbers of the other groups of brokers that take messages, ascending."""
    return sorted(active_groups(state.broker_groups.by_number) - {state.broker_groups.own})


def topics_of(state: BrokerState) -> Generator[None, None, Topics]:
    """Finds the topics with queues in the state's group, in steps."""
    own, others = state.broker_groups.own, set(active_others(state))
    alone: list[str] = []
    ordered: list[str] = []
    shared = 0
    for at, (name, topic) in enumerate(state.topics.items()):
        if at % TOPICS_PER_STEP == 0:
            yield
            charge(TOPICS_PER_STEP)
        if own not in topic.queues_of_groups or name.startswith(OWN_TOPICS):
            continue
        if topic.order:
            ordered.append(name)
        if others.isdisjoint(topic.queues_of_groups):
            alone.append(name)
        else:
            shared += 1
    return Topics(tuple(alone), tuple(ordered), shared)


def plan_of(
    state: BrokerState, members: Callable[[str], int], broadcasts: Callable[[str], bool]
) -> Generator[None, None, DrainPlan]:
    """Finds what is left in the state's group, in steps. `members` returns the number of members of a consumer group
    that are connected; `broadcasts`, if they read by broadcasting."""
    topics = yield from topics_of(state)
    read: set[str] = set()
    unread: list[Unread] = []
    for name, config in state.groups.items():
        yield
        behind: dict[str, int] = {}
        for at, lag in enumerate(each_lag(state, config)):
            if at % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
                yield
            read.add(lag.topic)
            if lag.lag:
                behind[lag.topic] = behind.get(lag.topic, 0) + lag.lag
        if behind:
            shown = tuple(sorted(behind)[:TOPICS_SHOWN])
            unread.append(Unread(name, sum(behind.values()), shown, members(name), broadcasts(name)))
    held = yield from _held(state, read)
    dead = [(name.removeprefix(DEAD_LETTER_PREFIX), count) for name, count in held if _is_dead(name)]
    nobodys = [(name, count) for name, count in held if not _is_dead(name)]
    timers = state.timers
    return DrainPlan(
        topics=topics,
        unread=tuple(unread[:SHOWN_MAX]),
        unread_groups=len(unread),
        unread_messages=sum(each.messages for each in unread),
        unread_by_nobody=tuple(nobodys[:SHOWN_MAX]),
        topics_read_by_nobody=len(nobodys),
        dead_letters=tuple(dead[:SHOWN_MAX]),
        groups_with_dead_letters=len(dead),
        timers=timers.counts.pending,
        next_due_ms=timers.earliest if timers.counts.pending else None,
        half_messages=state.halves.pending.count,
        attempts=sum(1 for _ in state.writes.attempts()),
        prepared_writes=len(state.prepared_writes.prepared),
    )


def _is_dead(topic: str) -> bool:
    return topic.startswith(DEAD_LETTER_PREFIX)


def _held(state: BrokerState, read: Collection[str]) -> Generator[None, None, list[tuple[str, int]]]:
    """Finds (topic, messages) of topics of dead letters, and of those that no consumer group reads, with messages."""
    found: list[tuple[str, int]] = []
    for at, (name, topic) in enumerate(state.topics.items()):
        if at % TOPICS_PER_STEP == 0:
            yield
            charge(TOPICS_PER_STEP)
        if _is_dead(name) or name not in read:
            count = yield from _messages(state, topic)
            if count:
                found.append((name, count))
    return found


def _messages(state: BrokerState, topic: TopicConfig) -> Generator[None, None, int]:
    count = 0
    for queue in range(state.stored_queues(topic)):
        if queue % QUEUES_PER_STEP == QUEUES_PER_STEP - 1:
            yield
        charge(2 * ITEM_UNITS)
        first, end = bounds(state, topic.id, queue)
        count += end - first
    return count
