"""Finds what is left in a group of brokers before its drain is done, and which topics need queues elsewhere first
(docs/adr/0113), from applied state and in steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import Final, NamedTuple

import msgspec

from cluster.broker.groups.group_lag import QUEUES_PER_STEP, bounds, each_lag
from cluster.broker.name_rules import DEAD_LETTER_PREFIX
from raftlog.work import ITEM_UNITS, charge
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import active_groups
from statemachine.topics.topics import OWN_TOPICS, TopicConfig

TOPICS_PER_STEP: Final = 256
SEGMENTS_PER_UNIT: Final = 4
"""Segments of the tier that are added up in a microsecond (a unit of `raftlog.work`)."""
SHOWN_MAX: Final = 100
"""The most rows of one kind that a plan names; it counts all."""
TOPICS_SHOWN: Final = 5
"""The most topics that a plan names of what one consumer group has to read."""


class DrainUnread(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group that has messages to read in the group of brokers."""

    consumer_group: str
    messages: int
    topics: list[str]
    """The first of the topics, by name."""
    members: int
    """Its members that are connected to this group of brokers. Without one, nobody reads."""
    broadcasts: bool
    """True if these members keep their places themselves. Nobody here knows what they have read, so this is all that
    is kept."""


class DrainTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with messages that no consumer group reads."""

    topic: str
    messages: int


class DrainDeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a consumer group."""

    consumer_group: str
    messages: int


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is left in a group of brokers. Of each kind 100 are named, and all are counted."""

    done: bool
    """True if nothing is left to read, to wait for or to look at."""
    topics_alone: list[str]
    """Topics to which nobody could write while the group drains: they have queues in no other active group."""
    topics_alone_total: int
    order_topics: list[str]
    """`order` topics with queues here, whose keys come to other queues."""
    order_topics_total: int
    topics_shared: int
    """Topics with queues here and in another active group. What is sent to them by a key comes to other queues."""
    unread: list[DrainUnread]
    unread_groups: int
    unread_messages: int
    unread_by_nobody: list[DrainTopic]
    topics_read_by_nobody: int
    dead_letters: list[DrainDeadLetters]
    groups_with_dead_letters: int
    timers: int
    """Messages that wait for a time, also those to be tried again."""
    next_due_ms: int | None
    """The time at which the first of them is due; null if none waits."""
    half_messages: int
    attempts: int
    """Attempts at staged writes that are not finished."""
    prepared_writes: int
    tier_segments: int
    """Segments of this group's log in the tier. They stay there when it retires, and no node reads them any more."""
    tier_bytes: int


class SendableTopics(NamedTuple):
    """The topics with queues in the group that producers write to, by name."""

    alone: tuple[str, ...]
    """Topics that have queues in no active group but this one."""
    ordered: tuple[str, ...]
    """`order` topics: their keys move."""
    shared: int
    """The number of topics that have queues in another active group too."""


def active_others(state: BrokerState) -> list[int]:
    """Returns the numbers of the other groups of brokers that take messages, ascending."""
    return sorted(active_groups(state.broker_groups.by_number) - {state.broker_groups.own})


def topics_of(state: BrokerState) -> Generator[None, None, SendableTopics]:
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
        if others.isdisjoint(topic.written_groups):
            alone.append(name)
        else:
            shared += 1
    return SendableTopics(tuple(alone), tuple(ordered), shared)


def plan_of(
    state: BrokerState, members: Callable[[str], int], broadcasts: Callable[[str], bool]
) -> Generator[None, None, DrainPlan]:
    """Finds what is left in the state's group, in steps. `members` returns the number of members of a consumer group
    that are connected; `broadcasts`, if they read by broadcasting."""
    topics = yield from topics_of(state)
    read: set[str] = set()
    unread: list[DrainUnread] = []
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
            unread.append(
                DrainUnread(
                    consumer_group=name,
                    messages=sum(behind.values()),
                    topics=sorted(behind)[:TOPICS_SHOWN],
                    members=members(name),
                    broadcasts=broadcasts(name),
                )
            )
    held = yield from _held(state, read)
    dead = [
        DrainDeadLetters(consumer_group=name.removeprefix(DEAD_LETTER_PREFIX), messages=count)
        for name, count in held
        if _is_dead(name)
    ]
    nobodys = [DrainTopic(topic=name, messages=count) for name, count in held if not _is_dead(name)]
    timers, attempts = state.timers, sum(1 for _ in state.writes.attempts())
    waiting = (timers.counts.pending, state.halves.pending.count, attempts, len(state.prepared_writes.prepared))
    segments = state.kept_segments
    charge(1 + len(segments) // SEGMENTS_PER_UNIT)
    return DrainPlan(
        done=not any((unread, nobodys, dead, *waiting)),
        topics_alone=list(topics.alone[:SHOWN_MAX]),
        topics_alone_total=len(topics.alone),
        order_topics=list(topics.ordered[:SHOWN_MAX]),
        order_topics_total=len(topics.ordered),
        topics_shared=topics.shared,
        unread=unread[:SHOWN_MAX],
        unread_groups=len(unread),
        unread_messages=sum(each.messages for each in unread),
        unread_by_nobody=nobodys[:SHOWN_MAX],
        topics_read_by_nobody=len(nobodys),
        dead_letters=dead[:SHOWN_MAX],
        groups_with_dead_letters=len(dead),
        timers=waiting[0],
        next_due_ms=timers.earliest if waiting[0] else None,
        half_messages=waiting[1],
        attempts=attempts,
        prepared_writes=waiting[3],
        tier_segments=len(segments),
        tier_bytes=sum([segment.stored_bytes for segment in segments]),
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
