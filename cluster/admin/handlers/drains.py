"""/v1/broker-groups/{group}/drain: what is left in a group of brokers, and the begin and the end of its drain
(docs/adr/0113). A node of the group itself answers: what is left is in its log."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, applied, decided
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route import Route
from cluster.broker.drain_plan import SHOWN_MAX, TOPICS_SHOWN, DrainPlan, Topics, active_others, plan_of, topics_of
from cluster.requests.verb import Serves
from raftlog.types import FIRST_GROUP
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import BrokerGroup, DrainBrokerGroup
from statemachine.commands import Command
from statemachine.levels import DRAINS_LEVEL
from statemachine.topics.topics import CreateTopic

SPREAD_AT_ONCE: Final = 64
"""The topics that get queues elsewhere in one entry."""
NAMED: Final = 3
"""The topics that a refusal names."""


class DrainUnreadView(msgspec.Struct, frozen=True, kw_only=True):
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


class DrainTopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with messages that no consumer group reads."""

    topic: str
    messages: int


class DrainDeadLettersView(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a consumer group."""

    consumer_group: str
    messages: int


class BrokerGroupDrainView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a group of brokers, and what is left in it. Of each kind 100 are named, and all are counted."""

    node: int
    group: int
    state: str
    """`active` or `draining`."""
    since_ms: int | None
    """Log time of the first group since when it drains; null if it does not."""
    applied_index: int
    done: bool
    """True if nothing is left to read, to wait for or to look at."""
    other_groups: list[int]
    """The other groups that take messages."""
    topics_alone: list[str]
    """Topics to which nobody could write while the group drains: they have queues in no other active group."""
    topics_alone_total: int
    order_topics: list[str]
    """`order` topics with queues here, whose keys come to other queues."""
    order_topics_total: int
    topics_shared: int
    """Topics with queues here and in another active group. What is sent to them by a key comes to other queues."""
    unread: list[DrainUnreadView]
    unread_groups: int
    unread_messages: int
    unread_by_nobody: list[DrainTopicView]
    topics_read_by_nobody: int
    dead_letters: list[DrainDeadLettersView]
    groups_with_dead_letters: int
    timers: int
    """Messages that wait for a time, also those to be tried again."""
    next_due_ms: int | None
    half_messages: int
    attempts: int
    """Attempts at staged writes that are not finished."""
    prepared_writes: int
    dry_run: bool = False
    """True if nothing was changed."""


class BrokerGroupDrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/broker-groups/{group}/drain`."""

    spread: bool = False
    """True to give topics that have queues in no other active group as many in each of those first."""
    move_keys: bool = False
    """True if keys of `order` topics may come to other queues."""
    dry_run: bool = False
    """True to only answer what is left."""


async def get_drain(call: Call) -> BrokerGroupDrainView:
    """Tells what is left in a group of brokers, whether it drains or not."""
    _own_row(call)
    return await _view(call)


async def begin_drain(call: Call) -> BrokerGroupDrainView:
    """Begins to drain a group of brokers: it takes no new messages, and is read until nothing is left.

    The group of the path must be the node's own (?broker_group=2 asks group 2). Topics need queues in other groups
    first.
    """
    wanted: BrokerGroupDrainRequest = call.body
    row = _own_row(call)
    if wanted.dry_run:
        return msgspec.structs.replace(await _view(call), dry_run=True)
    if row.is_active:
        state = call.port.state
        others = active_others(state)
        if not others:
            raise ApiError("refused", "no other group of brokers takes messages", "add one: raftmq up --groups")
        topics = await call.done(topics_of(state))
        _check(topics, wanted)
        await _spread(call, topics.alone, others)
        await _change(call, draining=True)
        call.note_change(f"group {state.broker_groups.own}", "a drain of this group of brokers was begun")
    return await _view(call)


async def cancel_drain(call: Call) -> BrokerGroupDrainView:
    """Ends the drain of a group of brokers: it takes messages again."""
    if not _own_row(call).is_active:
        await _change(call, draining=False)
        call.note_change(f"group {call.port.state.broker_groups.own}", "the drain of this group of brokers was ended")
    return await _view(call)


def _own_row(call: Call) -> BrokerGroup:
    """Returns the row of the group of the path, which must be the node's own. Raises ApiError."""
    state, named = call.port.state, call.params["group"]
    own, rows = state.broker_groups.own, state.broker_groups.by_number
    number = int(named) if named.isascii() and named.isdecimal() and len(named) < 4 else 0
    if number == FIRST_GROUP:
        why = f"group {FIRST_GROUP} has what all groups copy: topics, users and the configuration"
        raise ApiError(
            "refused", f"{why}. It cannot be drained", "drain another group: GET /v1/broker-groups lists all"
        )
    if number not in rows and (number != own or rows):
        raise ApiError("not_found", f"there is no group {named:.64}", "GET /v1/broker-groups lists all")
    if number != own:
        why = f"this node is of group {own}, and what is left in group {number} is in that one's log"
        raise ApiError("refused", why, f"ask with ?{BROKER_GROUP}={number}")
    if own not in rows:
        raise ApiError("refused", "this group has not copied yet what the groups share", "try again")
    if state.level < DRAINS_LEVEL:
        why = f"the cluster has level {state.level}, and drains need {DRAINS_LEVEL}"
        raise ApiError("refused", why, "raftmq upgrade finalize")
    return rows[own]


def _check(topics: Topics, wanted: BrokerGroupDrainRequest) -> None:
    """Raises ApiError if the request does not say what becomes of some topics."""
    if topics.alone and not wanted.spread:
        why = f"{_named(topics.alone)} in no other group that takes messages: nobody could write there"
        raise ApiError("refused", why, 'send "spread": true to give them some, or raftmq topic spread NAME')
    if topics.ordered and not wanted.move_keys:
        why = f"{_named(topics.ordered)} here, and order: keys would come to other queues"
        fix = 'send "move_keys": true; order is kept in each queue, not of a key across this moment'
        raise ApiError("refused", why, fix)


def _named(topics: tuple[str, ...]) -> str:
    if len(topics) == 1:
        return f"topic {topics[0]} has queues"
    more = f" and {len(topics) - NAMED} more" if len(topics) > NAMED else ""
    return f"topics {', '.join(topics[:NAMED])}{more} have queues"


async def _spread(call: Call, names: tuple[str, ...], others: list[int]) -> None:
    """Gives the topics as many queues in each of the other groups as they have here. Raises ApiError."""
    state, services = call.port.state, call.port.services
    for first in range(0, len(names), SPREAD_AT_ONCE):
        await call.breathe()
        found = [topic for name in names[first : first + SPREAD_AT_ONCE] if (topic := state.topics.get(name))]
        places = {topic.name: [[each, topic.read_queues, topic.write_queues] for each in others] for topic in found}
        run: list[Command] = [CreateTopic({"name": name, "place": place}, False) for name, place in places.items()]
        if run:
            _, results = await decided(partial(services.propose, run, author=call.asker))
            for result in results:
                if not result.ok:
                    raise ApiError("refused", str(result.value), "the group does not drain yet; correct it, ask again")


async def _change(call: Call, *, draining: bool) -> None:
    state: BrokerState = call.port.state
    command = DrainBrokerGroup(state.broker_groups.own, draining)
    await applied(lambda done: call.port.services.propose([command], done, author=call.asker))


async def _view(call: Call) -> BrokerGroupDrainView:
    state = call.port.state
    applied_index = state.applied.index
    row = state.broker_groups.by_number[state.broker_groups.own]
    return _shown(
        call, row, applied_index, await call.done(plan_of(state, call.port.member_count, call.port.broadcasts))
    )


def _shown(call: Call, row: BrokerGroup, applied_index: int, plan: DrainPlan) -> BrokerGroupDrainView:
    state, topics = call.port.state, plan.topics
    return BrokerGroupDrainView(
        node=call.port.config.node.id,
        group=state.broker_groups.own,
        state=row.state.name.lower(),
        since_ms=None if row.is_active else row.since_ms,
        applied_index=applied_index,
        done=plan.is_done,
        other_groups=active_others(state),
        topics_alone=list(topics.alone[:SHOWN_MAX]),
        topics_alone_total=len(topics.alone),
        order_topics=list(topics.ordered[:SHOWN_MAX]),
        order_topics_total=len(topics.ordered),
        topics_shared=topics.shared,
        unread=[
            DrainUnreadView(
                consumer_group=each.consumer_group,
                messages=each.messages,
                topics=list(each.topics),
                members=each.members,
                broadcasts=each.broadcasts,
            )
            for each in plan.unread
        ],
        unread_groups=plan.unread_groups,
        unread_messages=plan.unread_messages,
        unread_by_nobody=[DrainTopicView(topic=topic, messages=count) for topic, count in plan.unread_by_nobody],
        topics_read_by_nobody=plan.topics_read_by_nobody,
        dead_letters=[DrainDeadLettersView(consumer_group=name, messages=count) for name, count in plan.dead_letters],
        groups_with_dead_letters=plan.groups_with_dead_letters,
        timers=plan.timers,
        next_due_ms=plan.next_due_ms,
        half_messages=plan.half_messages,
        attempts=plan.attempts,
        prepared_writes=plan.prepared_writes,
    )


_PATH: Final = "/v1/broker-groups/{group}/drain"
_COST: Final = route.page((5 + TOPICS_SHOWN) * SHOWN_MAX)
ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", _PATH, get_drain, BrokerGroupDrainView, _COST, route_rights.CLUSTER_GET, Serves.CONFIRMED),
    Route(
        "POST",
        _PATH,
        begin_drain,
        BrokerGroupDrainView,
        _COST,
        route_rights.SUPER,
        Serves.LEADER,
        BrokerGroupDrainRequest,
    ),
    Route("DELETE", _PATH, cancel_drain, BrokerGroupDrainView, _COST, route_rights.SUPER, Serves.LEADER),
)
