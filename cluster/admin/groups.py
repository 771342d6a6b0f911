"""/v1/groups: consumer groups, their subscriptions, connected members and lag."""

from __future__ import annotations

import asyncio

import msgspec

from cluster.admin.call import Call, ReadView
from cluster.admin.group_changes import find_group
from cluster.admin.port import MemberView
from cluster.broker.assignment import averagely
from cluster.broker.group_lag import QueueLag, queue_lags
from statemachine.broker_state import BrokerState
from statemachine.groups import GroupConfig

GROUPS_PER_TURN = 64
"""Groups of the list that are counted before the event loop serves others."""


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of a group's subscription."""

    topic: str
    expression_type: str
    expression: str
    version: int


class OffsetView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one queue; `committed_offset` is null where it never committed."""

    topic: str
    queue_id: int
    committed_offset: int | None
    min_offset: int
    max_offset: int
    lag: int
    """Messages from the committed offset to the end, or all that are kept where there is none; 0 beyond the end."""
    lag_ms: int = 0
    """Since the oldest message that the group has not committed was stored; 0 without lag."""
    committed_age_ms: int | None = None
    """Since the group's last commit in this queue, as far as the leader has seen it; null if it has seen none."""
    owner: str | None = None
    """The client id that holds the queue's lock or, without one, has the queue by RocketMQ's default strategy."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group in the list."""

    name: str
    topics: list[str]
    members: int
    """Connected consumers, as this node knows them from heartbeats."""
    lag: int
    """Over all queues the group has committed or subscribes to."""
    lag_ms: int = 0
    """Of the queue with the oldest message that the group has not committed."""


class GroupsView(ReadView, frozen=True, kw_only=True):
    """`GET /v1/groups`."""

    groups: list[GroupView]


class GroupDetail(ReadView, frozen=True, kw_only=True):
    """`GET /v1/groups/{name}`. Members are what this node knows from heartbeats, whatever the consistency."""

    name: str
    retry_max_times: int
    subscriptions: list[SubscriptionView]
    members: list[MemberView]
    offsets: list[OffsetView]
    lag: int
    lag_ms: int = 0


async def list_groups(call: Call) -> GroupsView:
    """All consumer groups, by name."""
    state = call.port.state
    applied = state.applied.index
    groups = []
    for at, (name, config) in enumerate(sorted(state.groups.items())):
        if at % GROUPS_PER_TURN == 0:
            await asyncio.sleep(0)
        offsets = _offsets(call, config)
        groups.append(
            GroupView(
                name=name,
                topics=sorted({each.topic for each in offsets} | set(config.subscriptions)),
                members=len(call.port.members(name)),
                lag=_lag(offsets),
                lag_ms=_lag_ms(offsets),
            )
        )
    return GroupsView(node=call.port.config.node.id, consistency=call.consistency, applied_index=applied, groups=groups)


async def describe_group(call: Call) -> GroupDetail:
    """One consumer group."""
    state, name = call.port.state, call.params["name"]
    applied = state.applied.index
    config = find_group(state, name)
    offsets = _offsets(call, config)
    return GroupDetail(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        name=name,
        retry_max_times=config.retry_max_times,
        subscriptions=[
            SubscriptionView(topic=topic, expression_type=kind, expression=text, version=version)
            for topic, (kind, text, version) in sorted(config.subscriptions.items())
        ],
        members=call.port.members(name),
        offsets=offsets,
        lag=_lag(offsets),
        lag_ms=_lag_ms(offsets),
    )


def _lag_ms(offsets: list[OffsetView]) -> int:
    return max((each.lag_ms for each in offsets), default=0)


def _lag(offsets: list[OffsetView]) -> int:
    return sum(each.lag for each in offsets)


def _offsets(call: Call, group: GroupConfig) -> list[OffsetView]:
    port, state = call.port, call.port.state
    now_ms, wall_ms = int(1000 * asyncio.get_running_loop().time()), port.wall_ms()
    clients = sorted(member.client_id for member in port.members(group.name))
    locks = state.locks_of_group(group.name)
    found = []
    for each in queue_lags(state, group):
        topic = state.topics.get(each.topic)
        lock = locks.get((topic.id, each.queue_id)) if topic is not None else None
        found.append(
            OffsetView(
                topic=each.topic,
                queue_id=each.queue_id,
                committed_offset=each.committed,
                min_offset=each.min_offset,
                max_offset=each.max_offset,
                lag=each.lag,
                lag_ms=_age_ms(state, each, wall_ms),
                committed_age_ms=call.watch.groups.committed_age_ms(group.name, each.topic, each.queue_id, now_ms),
                owner=lock.client_id
                if lock is not None
                else _owner(clients, each.queue_id, topic.read_queues if topic is not None else 0),
            )
        )
    return found


def _owner(clients: list[str], queue_id: int, queues: int) -> str | None:
    return next((each for each in clients if queue_id in averagely(range(queues), clients, each)), None)


def _age_ms(state: BrokerState, each: QueueLag, wall_ms: int) -> int:
    """Since the first message that is not committed was stored."""
    topic = state.topics.get(each.topic)
    if not each.lag or topic is None:
        return 0
    first = state.fetch(topic.id, each.queue_id, max(each.min_offset, each.committed or 0), 1)
    return max(0, wall_ms - first[0].store_time_ms) if first else 0
