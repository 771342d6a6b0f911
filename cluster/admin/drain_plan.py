"""Finds, from applied state, what is left to do in a group of brokers before its drain is done. Also finds the topics
that need queues in other groups first (docs/adr/0113).

The work is cut into steps: the generators yield between them.
"""

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
"""Number of the tier's segments that are added up for one unit of work, which is about a microsecond
(`raftlog.work`)."""
SHOWN_MAX: Final = 100
"""The most rows of each kind that a plan names. The plan's totals count all of them."""
TOPICS_SHOWN: Final = 5
"""The most topics that a plan names for one consumer group with unread messages."""


class DrainUnread(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group that has not read all messages in the group of brokers."""

    consumer_group: str
    messages: int
    topics: list[str]
    """Names of the topics with unread messages: the first TOPICS_SHOWN, by name."""
    members: int
    """Number of its consumers that are connected to this group of brokers. If it is 0, nobody reads the messages."""
    broadcasts: bool
    """True if its consumers read by broadcasting and store their offsets themselves. The brokers do not know these
    offsets, so `messages` then counts all stored messages."""


class DrainTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with messages that no consumer group reads."""

    topic: str
    messages: int


class DrainDeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The number of dead letters of a consumer group."""

    consumer_group: str
    messages: int


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is left in a group of brokers. Each list has at most SHOWN_MAX rows; the number beside it counts
    all."""

    done: bool
    """True if no messages are unread, no dead letters are stored, and no timer, transaction or staged write is open."""
    topics_alone: list[str]
    """Names of topics to which nobody could write while the group drains, because they have queues in no other active
    group."""
    topics_alone_total: int
    order_topics: list[str]
    """Names of `order` topics with queues in this group. A drain sends the messages of their keys to other queues."""
    order_topics_total: int
    topics_shared: int
    """Number of topics with queues in this group and in another active one. A drain sends the messages of their keys to
    other queues."""
    unread: list[DrainUnread]
    unread_groups: int
    unread_messages: int
    unread_by_nobody: list[DrainTopic]
    topics_read_by_nobody: int
    dead_letters: list[DrainDeadLetters]
    groups_with_dead_letters: int
    timers: int
    """Number of messages that wait for their delivery time, including those that will be delivered again."""
    next_due_ms: int | None
    """Time in ms since 1970 at which the first of the waiting messages is due; null if none waits."""
    half_messages: int
    attempts: int
    """Number of attempts at staged writes that are not finished."""
    prepared_writes: int
    tier_segments: int
    """Number of segments of this group's log in the tier. They stay there after the group has retired, but no node
    reads them any more."""
    tier_bytes: int


class SendableTopics(NamedTuple):
    """The topics to which producers write and that have queues in the group. Topics of the system are left out."""

    alone: tuple[str, ...]
    """Names of topics that have queues in no active group but this one."""
    ordered: tuple[str, ...]
    """Names of `order` topics. A drain moves their keys to other queues."""
    shared: int
    """Number of topics that also have queues in another active group."""


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
    """Returns a plan of what is left in the state's own group. Yields between steps. `members` returns the number of
    connected consumers of a consumer group; `broadcasts` returns True if these consumers read by broadcasting."""
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
    """Returns a list of (topic, number of messages) for topics that hold messages: dead-letter topics, and topics that
    are not in `read`. Yields between steps."""
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
