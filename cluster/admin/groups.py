"""/v1/groups: consumer groups, their subscriptions, connected members and lag."""

from __future__ import annotations

import asyncio

import msgspec

from cluster.admin.call import Call, ReadView
from cluster.admin.errors import ApiError
from cluster.admin.port import MemberView
from cluster.broker.group_lag import queue_lags
from cluster.config.source import nearest
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


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group in the list."""

    name: str
    topics: list[str]
    members: int
    """Connected consumers, as this node knows them from heartbeats."""
    lag: int
    """Over all queues the group has committed or subscribes to."""


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


async def list_groups(call: Call) -> GroupsView:
    """All consumer groups, by name."""
    state = call.port.state
    applied = state.applied.index
    groups = []
    for at, (name, config) in enumerate(sorted(state.groups.items())):
        if at % GROUPS_PER_TURN == 0:
            await asyncio.sleep(0)
        offsets = _offsets(state, config)
        groups.append(
            GroupView(
                name=name,
                topics=sorted({each.topic for each in offsets} | set(config.subscriptions)),
                members=len(call.port.members(name)),
                lag=_lag(offsets),
            )
        )
    return GroupsView(node=call.port.config.node.id, consistency=call.consistency, applied_index=applied, groups=groups)


async def describe_group(call: Call) -> GroupDetail:
    """One consumer group."""
    state, name = call.port.state, call.params["name"]
    applied = state.applied.index
    config = state.groups.get(name)
    if config is None:
        match = nearest(name, state.groups)
        hint = (
            f"did you mean {match}?" if match else "GET /v1/groups lists all; consumers make theirs when they connect"
        )
        raise ApiError("not_found", f"there is no group {name}", hint)
    offsets = _offsets(state, config)
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
    )


def _lag(offsets: list[OffsetView]) -> int:
    return sum(each.lag for each in offsets)


def _offsets(state: BrokerState, group: GroupConfig) -> list[OffsetView]:
    return [
        OffsetView(
            topic=each.topic,
            queue_id=each.queue_id,
            committed_offset=each.committed,
            min_offset=each.min_offset,
            max_offset=each.max_offset,
            lag=each.lag,
        )
        for each in queue_lags(state, group)
    ]
