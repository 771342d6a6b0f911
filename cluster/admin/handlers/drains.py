"""/v1/broker-groups/{group}/drain and /retire: begins and ends the drain of a group of brokers, shows what is left in
it, and retires it (docs/adr/0113).

Only a node of the group itself can answer, because what is left is in its log.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.drain_plan import (
    SHOWN_MAX,
    TOPICS_SHOWN,
    DrainPlan,
    SendableTopics,
    active_others,
    plan_of,
    topics_of,
)
from cluster.admin.errors import ApiError, done_in_part
from cluster.admin.handler_request import Call, applied, comes_true, decided
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route import Route
from cluster.requests.verb import Serves
from raftlog.types import FIRST_GROUP
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import BrokerGroup, DrainBrokerGroup
from statemachine.cluster_wide.closed_log import CloseBrokerGroup
from statemachine.commands import Command
from statemachine.levels import DRAINS_LEVEL
from statemachine.topics.topics import CreateTopic, place_in

SPREAD_AT_ONCE: Final = 64
"""The most topics that get queues in other groups with one log entry."""
NAMED: Final = 3
"""The most topics that an error message names."""


class BrokerGroupDrainView(DrainPlan, frozen=True, kw_only=True):
    """The state of a group of brokers, and what is left in it."""

    node: int
    group: int
    state: str
    """`active`, `draining`, `closed` or `retired`. `closed`: its log takes no more messages, and it is telling the
    first group that it has retired."""
    since_ms: int | None
    """Log time of the first group, in ms since 1970, at which the group stopped being active; null while it is
    active."""
    applied_index: int
    other_groups: list[int]
    """Numbers of the other groups that take messages."""
    dry_run: bool = False
    """True if the request was a dry run, so nothing was changed."""


class BrokerGroupDrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/broker-groups/{group}/drain`."""

    spread: bool = False
    """True to first give topics that have queues in no other active group as many queues in each of the other
    groups."""
    move_keys: bool = False
    """True to allow that messages with a key of an `order` topic are sent to other queues than before."""
    dry_run: bool = False
    """True to change nothing, and only return what is left."""


class BrokerGroupRetireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/broker-groups/{group}/retire`."""

    force: bool = False
    """True to retire the group although something is left in it. Nobody can read that any more."""
    dry_run: bool = False
    """True to change nothing, and only return what is left."""


async def get_drain(call: Call) -> BrokerGroupDrainView:
    """Returns what is left in a group of brokers, also if it does not drain."""
    _own_row(call)
    return await _view(call)


async def begin_drain(call: Call) -> BrokerGroupDrainView:
    """Begins to drain a group of brokers: it takes no new messages, and consumers read the old ones.

    The group in the path must be the node's own (a request with ?broker_group=2 is sent to group 2). The topics need
    queues in other groups before.
    """
    wanted: BrokerGroupDrainRequest = call.body
    row = _own_row(call)
    if wanted.dry_run:
        return msgspec.structs.replace(await _view(call), dry_run=True)
    _check_is_there(call, row)
    state = call.port.state
    others = active_others(state)
    if row.is_active and not others:
        raise ApiError("refused", "no other group of brokers takes messages", "add one: raftmq up --groups")
    topics = await call.done(topics_of(state))
    if row.is_active:
        _check(topics, wanted)
    changed: list[str] = []
    try:
        if wanted.spread:
            await _spread(call, topics.alone, others, changed)
        if row.is_active:
            group = f"group {state.broker_groups.own}"
            await _change(call, draining=True)
            changed.append(group)
            call.note_change(group, "a drain of this group of brokers was begun")
            if wanted.spread:  # a topic may have been created here between the spread and the drain
                await _spread(call, (await call.done(topics_of(state))).alone, others, changed)
    except ApiError as error:
        if not changed or error.code == "unknown_outcome":
            raise
        fix = f"GET {_PATH.format(group=state.broker_groups.own)} shows how far it is; correct it, ask again"
        raise done_in_part(error.message, fix) from None
    return await _view(call)


async def cancel_drain(call: Call) -> BrokerGroupDrainView:
    """Ends the drain of a group of brokers, which takes new messages again."""
    row = _own_row(call)
    _check_is_there(call, row)
    if not row.is_active:
        await _change(call, draining=False)
        call.note_change(f"group {call.port.state.broker_groups.own}", "the drain of this group of brokers was ended")
    return await _view(call)


async def retire_group(call: Call) -> BrokerGroupDrainView:
    """Closes the log of a drained group of brokers, and retires the group for ever.

    The group in the path must be the node's own (a request with ?broker_group=2 is sent to group 2). If something is
    left in the group, the request needs `force`.
    """
    wanted: BrokerGroupRetireRequest = call.body
    row, state = _own_row(call), call.port.state
    view = await _view(call)
    if wanted.dry_run:
        return msgspec.structs.replace(view, dry_run=True)
    if not (row.is_retired or state.closed_log.is_closed):
        _check_left(call, row, view, wanted)
        close = CloseBrokerGroup(row.since_ms, view.applied_index, force=not view.done)
        _, (result,) = await decided(partial(call.port.services.propose, [close], author=call.asker))
        if not result.ok:
            raise ApiError("refused", f"nothing was changed: {result.value}", "ask again")
        left = "" if view.done else ", with what was left"
        call.note_change(f"group {state.broker_groups.own}", f"this group of brokers was retired{left}")
    groups = state.broker_groups
    await comes_true(lambda: groups.by_number[groups.own].is_retired, call.port.waits.retired_s)
    return await _view(call)


def _check_is_there(call: Call, row: BrokerGroup) -> None:
    """Raises ApiError if the group has retired, or has closed its log to do so."""
    if row.is_retired or call.port.state.closed_log.is_closed:
        why = f"group {call.port.state.broker_groups.own} has retired, for ever"
        raise ApiError("refused", why, "add another group: raftmq up --groups")


def _check_left(call: Call, row: BrokerGroup, view: BrokerGroupDrainView, wanted: BrokerGroupRetireRequest) -> None:
    """Raises ApiError if the group may not retire yet: it does not drain, something is left in it, or clients with old
    routes may still send to it. `force` overrides the last two."""
    if row.is_active:
        why = f"group {view.group} takes messages, and is drained before it retires"
        raise ApiError("refused", why, f"raftmq broker-group drain {view.group}")
    if wanted.force:
        return
    if not view.done:
        why = f"something is left in group {view.group}: {_left(view)}"
        fix = f'raftmq broker-group drain {view.group} --plan shows all; "force": true (--force) loses it'
        raise ApiError("refused", why, fix)
    if left_ms := call.port.limits.grace_left_ms():
        why = f"clients with a route of before may send to group {view.group} for {-(-left_ms // 1000)} s more"
        raise ApiError("refused", why, "ask again after that")


def _left(view: BrokerGroupDrainView) -> str:
    """Returns a text about the first thing that is left. There must be one."""
    for unread in view.unread:
        return f"consumer group {unread.consumer_group} has {unread.messages} messages to read"
    for topic in view.unread_by_nobody:
        return f"topic {topic.topic} has {topic.messages} messages, and no consumer group reads it"
    for dead in view.dead_letters:
        return f"consumer group {dead.consumer_group} has {dead.messages} dead letters"
    counts = {
        "messages are not due": view.timers,
        "half messages": view.half_messages,
        "attempts at staged writes": view.attempts,
        "prepared writes": view.prepared_writes,
    }
    return next(f"{count} {what}" for what, count in counts.items() if count)


def _own_row(call: Call) -> BrokerGroup:
    """Returns the row of the group in the path. Raises ApiError if that is not a further group, or not this node's
    own."""
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
    call.check_level(DRAINS_LEVEL, "drains")
    return rows[own]


def _check(topics: SendableTopics, wanted: BrokerGroupDrainRequest) -> None:
    """Raises ApiError if the drain needs `spread` or `move_keys`, and the request does not have it."""
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


async def _spread(call: Call, names: tuple[str, ...], others: list[int], changed: list[str]) -> None:
    """Gives the topics as many queues in each of the other groups as they have in this one, and adds the names of those
    that have them to `changed`. Raises ApiError if a topic cannot be changed."""
    state, services = call.port.state, call.port.services
    for first in range(0, len(names), SPREAD_AT_ONCE):
        await call.breathe()
        found = [topic for name in names[first : first + SPREAD_AT_ONCE] if (topic := state.topics.get(name))]
        places = {
            topic.name: place_in(topic, others, topic.read_queues, topic.write_queues or topic.read_queues)
            for topic in found
        }
        run: list[Command] = [CreateTopic({"name": name, "place": place}, False) for name, place in places.items()]
        if run:
            _, results = await decided(partial(services.propose, run, author=call.asker))
            changed += (name for name, result in zip(places, results, strict=True) if result.ok)
            for result in results:
                if not result.ok:
                    raise ApiError("refused", str(result.value), "correct it, ask again")


async def _change(call: Call, *, draining: bool) -> None:
    state: BrokerState = call.port.state
    command = DrainBrokerGroup(state.broker_groups.own, draining)
    await applied(lambda done: call.port.services.propose([command], done, author=call.asker))


async def _view(call: Call) -> BrokerGroupDrainView:
    state = call.port.state
    applied_index = state.applied.index
    row = state.broker_groups.by_number[state.broker_groups.own]
    plan = await call.done(plan_of(state, call.port.served.member_count, call.port.served.broadcasts))
    closed = state.closed_log.is_closed and not row.is_retired
    return BrokerGroupDrainView(
        node=call.port.config.node.id,
        group=state.broker_groups.own,
        state="closed" if closed else row.state.name.lower(),
        since_ms=None if row.is_active else row.since_ms,
        applied_index=applied_index,
        other_groups=active_others(state),
        **{name: getattr(plan, name) for name in DrainPlan.__struct_fields__},
    )


_PATH: Final = "/v1/broker-groups/{group}/drain"
_RETIRE: Final = "/v1/broker-groups/{group}/retire"
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
    Route(
        "POST",
        _RETIRE,
        retire_group,
        BrokerGroupDrainView,
        _COST,
        route_rights.SUPER,
        Serves.LEADER,
        BrokerGroupRetireRequest,
    ),
)
