"""/v1/groups: shows consumer groups with their subscriptions, connected members and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from cluster.admin import route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.handlers.group_changes import find_group
from cluster.admin.node_interface import MemberView
from cluster.admin.pagination import Page, after_of, limit_of, list_route
from cluster.admin.route import PAGE_ITEMS_MAX, Route
from cluster.admin.streamed_json import Pieces
from cluster.broker.groups.assignment import own_place, owner
from cluster.broker.groups.group_lag import QueueLag, lag_steps
from raftmq_wire.codes import RequestCode
from statemachine.consuming.groups import GroupConfig
from statemachine.consuming.queue_locks import QueueLock

QUEUES_PER_PAGE = 20_000
"""The most queues of all groups of a page together. A group with more queues is alone on its page."""
QUEUE_DIGITS = 5


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of a group's subscription."""

    topic: str
    expression_type: str
    expression: str
    version: int


class OffsetView(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress in one queue. `committed_offset` is null if the group has never committed there."""

    topic: str
    queue_id: int
    committed_offset: int | None
    min_offset: int
    max_offset: int
    lag: int
    """Number of messages from the committed offset to the end of the queue. If the group never committed, all stored
    messages; if the committed offset lies beyond the end, 0."""
    hidden: bool = False
    """True if consumers do not read this queue, because the topic has fewer read queues now."""
    beyond_end: int = 0
    """Number of offsets by which the committed offset lies beyond the end of the queue. The group would skip as many
    new messages."""
    lag_ms: int = 0
    """Milliseconds since the first message that the group has not committed was stored; 0 without lag."""
    committed_age_ms: int | None = None
    """Milliseconds since the group's last commit in this queue; null if the leader has observed none."""
    owner: str | None = None
    """Client id of the consumer that has locked the queue. If it is not locked: the consumer to which RocketMQ's
    default strategy gives it. null if nobody reads it."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in a list."""

    name: str
    topics: list[str]
    members: int
    """Number of connected consumers that this node knows from heartbeats."""
    lag: int
    """Number of uncommitted messages in all queues in which the group has committed, or to which it subscribes."""
    hidden: int = 0
    """The part of `lag` that lies in hidden queues, which consumers do not read."""
    beyond_end: int = 0
    """Number of queues in which the group's committed offset lies beyond the end."""
    lag_ms: int = 0
    """The largest `lag_ms` of the group's queues: the age of its oldest uncommitted message, in milliseconds."""


class GroupsView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/groups`."""

    groups: list[GroupView]
    next: str | None
    """The value of `after` for the next page; null on the last page."""


class GroupDetail(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/groups/{name}`. `members` are always those that the answering node knows from heartbeats,
    also with consistency=linearizable."""

    name: str
    retry_max_times: int
    subscriptions: list[SubscriptionView]
    members: list[MemberView]
    """The first PAGE_ITEMS_MAX consumers by client id. A client id is listed once for each of its connections."""
    members_total: int = 0
    offsets: list[OffsetView]
    lag: int
    """Number of uncommitted messages in all queues of the group, also those on other pages."""
    hidden: int = 0
    """The part of `lag` that lies in hidden queues, which consumers do not read."""
    beyond_end: int = 0
    """Number of queues in which the group's committed offset lies beyond the end."""
    lag_ms: int = 0
    next: str | None
    """The value of `after` for the next page of queues; null on the last page."""


async def list_groups(call: Call) -> Pieces:
    """Lists consumer groups by name, a page of them."""
    state = call.port.state
    applied = state.applied.index
    page, after, queues = Page(call, limit_of(call)), after_of(call), 0
    names = state.groups.keys_from(after, page.items_max + 1)
    left = len(names) > page.items_max
    for name in names[: page.items_max]:
        config = state.groups.get(name)
        if config is None:
            continue
        await page.turn()
        lags = await call.done(lag_steps(state, config))
        queues += len(lags)
        view = GroupView(
            name=name,
            topics=sorted({each.topic for each in lags} | set(config.subscriptions)),
            members=call.port.served.member_count(name),
            lag=sum(each.lag for each in lags),
            hidden=sum(each.lag for each in lags if each.hidden),
            beyond_end=sum(1 for each in lags if each.beyond_end),
            lag_ms=max([await _age_ms(call, each) for each in lags if each.lag], default=0),
        )
        if (page.items and queues > QUEUES_PER_PAGE) or not page.add(view):
            left = True
            break
        after = name
    else:
        after = names[-2] if left else None
    answer = GroupsView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        groups=[],
        next=after if left else None,
    )
    return page.answer(answer, "groups")


async def describe_group(call: Call) -> Pieces:
    """Returns one consumer group with a page of its queues."""
    state, name = call.port.state, call.params["name"]
    applied = state.applied.index
    config = await find_group(call, name)
    lags = await call.done(lag_steps(state, config))
    page, left = Page(call, limit_of(call)), False
    members = call.port.served.members(name)
    sharers: dict[str, list[str | None]] = {}
    locks, lag_ms, before = state.locks_of_group(name), 0, _place(call)
    for each in lags:
        await page.turn()
        age_ms = await _age_ms(call, each)
        lag_ms = max(lag_ms, age_ms)
        if left or (before is not None and (each.topic, each.queue_id) <= before):
            continue
        if each.topic not in sharers:
            sharers[each.topic] = call.port.served.sharers(name, each.topic)
        if page.add(_offset(call, config, each, age_ms, sharers[each.topic], locks)):
            last = each
        left = page.full and each is not lags[-1]
    view = GroupDetail(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        name=name,
        retry_max_times=config.retry_max_times,
        subscriptions=[
            SubscriptionView(topic=topic, expression_type=kind, expression=text, version=version)
            for topic, (kind, text, version) in sorted(config.subscriptions.items())
        ],
        members=members[:PAGE_ITEMS_MAX],
        members_total=len(members),
        offsets=[],
        lag=sum(each.lag for each in lags),
        hidden=sum(each.lag for each in lags if each.hidden),
        beyond_end=sum(1 for each in lags if each.beyond_end),
        lag_ms=lag_ms,
        next=f"{last.topic}/{last.queue_id}" if left else None,
    )
    return page.answer(view, "offsets")


def _place(call: Call) -> tuple[str, int] | None:
    """Returns (topic, queue) from ?after=TOPIC/QUEUE; None without the parameter. Raises ApiError if it has another
    form."""
    after = after_of(call)
    if after is None:
        return None
    topic, slash, queue = after.rpartition("/")
    if not slash or not (queue.isascii() and queue.isdecimal() and len(queue) <= QUEUE_DIGITS):
        raise ApiError("bad_query", f"after cannot be {after[:64]}", "give the `next` of the page before")
    return topic, int(queue)


def _offset(
    call: Call,
    group: GroupConfig,
    each: QueueLag,
    age_ms: int,
    clients: list[str | None],
    locks: Mapping[tuple[int, int], QueueLock],
) -> OffsetView:
    topic = call.port.state.topics.get(each.topic)
    lock = locks.get((topic.id, each.queue_id)) if topic is not None else None
    now_ms = int(1000 * asyncio.get_running_loop().time())
    return OffsetView(
        topic=each.topic,
        queue_id=each.queue_id,
        committed_offset=each.committed,
        min_offset=each.min_offset,
        max_offset=each.max_offset,
        lag=each.lag,
        hidden=each.hidden,
        beyond_end=each.beyond_end,
        lag_ms=age_ms,
        committed_age_ms=call.port.served.group_watch.committed_age_ms(group.name, each.topic, each.queue_id, now_ms),
        owner=lock.client_id
        if lock is not None
        else owner(*own_place(call.port.services, each.topic, each.queue_id), clients),
    )


async def _age_ms(call: Call, each: QueueLag) -> int:
    """Returns the milliseconds since the queue's first uncommitted message was stored; 0 if there is none."""
    state = call.port.state
    topic = state.topics.get(each.topic)
    if not each.lag or topic is None:
        return 0
    await call.breathe()
    first = state.fetch(topic.id, each.queue_id, each.stands_at, 1)
    return max(0, call.port.wall_ms() - first[0].store_time_ms) if first else 0


ROUTES: Final[tuple[Route, ...]] = (
    list_route(
        "/v1/groups",
        list_groups,
        GroupsView,
        route_rights.of_verb(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    ),
    list_route(
        "/v1/groups/{name}",
        describe_group,
        GroupDetail,
        route_rights.of_verb(RequestCode.GET_CONSUME_STATS, consumerGroup="name"),
    ),
)
