"""/v1/groups: creates, changes and deletes consumer groups. Also copies the offsets of one group to another, and resets
offsets."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import DRY_RUN, Call, ChangeView, JsonAnswer, applied, decided
from cluster.admin.pagination import neighbour
from cluster.admin.refusals import error_of, not_refused
from cluster.admin.request_parsing import flag_of
from cluster.admin.route import Route
from cluster.broker.groups.group_admin import delete_group as delete_stored
from cluster.broker.groups.group_admin import group_deleted, put_group
from cluster.broker.groups.group_lag import lag_steps
from cluster.broker.groups.offset_resets import QueueOffset, ResetOrder, ResetTo, cloned_from
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.request_limits import GroupName, NewGroup, QueueId, RetryTimes, TopicName, Unsigned63
from raftlog.types import EntryId
from raftlog.work import ITEM_UNITS, charge
from raftmq_wire.codes import RequestCode
from statemachine.broker_state import BrokerState
from statemachine.consuming.groups import GroupConfig

OFFSETS_PER_STEP = 256
CLEAN_OFFSETS: Final = True
"""A deletion over HTTP also removes the group's offsets. Over remoting (request code 207), the client must ask for
that."""

_SETTINGS = ("retry_max_times", "consume_enable")


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/groups`. Fields that are left out keep their default or, in an update, their value."""

    name: NewGroup
    retry_max_times: RetryTimes | None = None
    """The number of times that a message is delivered again before it becomes a dead letter; RocketMQ's default is
    16."""
    consume_enable: bool | None = None
    """False to give no messages to the group's consumers. null: unchanged, or true for a new group."""
    if_exists: Literal["fail", "keep", "update"] = "fail"


class GroupChanged(ChangeView, frozen=True, kw_only=True):
    """The answer after a group was created, changed, kept or deleted by the log entry (term, index)."""

    result: Literal["created", "kept", "updated", "deleted"]
    name: str
    retry_max_times: int
    consume_enable: bool
    offsets: int
    """Number of queues in which the group has committed an offset. A deletion removes these offsets."""
    lag: int
    members: int
    """Number of connected consumers that the leader knows. If one is left, its next heartbeat creates a deleted group
    again."""
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


class CloneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/groups/{name}/clone`. The group gets the offsets of `source`; it is created if it does not
    exist."""

    source: GroupName
    topic: TopicName | None = None
    """The topic whose offsets are copied; null for every topic in which the source has committed."""
    dry_run: bool = False
    """True to change nothing, and only return what would change."""


class ClonedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The offset that the group gets in one queue."""

    topic: str
    queue_id: int
    offset: int
    before: int | None
    """The former offset of the group; null if it had committed none."""


class GroupCloned(ChangeView, frozen=True, kw_only=True):
    """The answer to a clone: the offsets that the group has now, or would have after a dry run."""

    group: str
    source: str
    offsets: list[ClonedOffset]
    dry_run: bool
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


async def create_group(call: Call) -> JsonAnswer:
    """Creates a consumer group. `if_exists` says what happens to an existing one."""
    wanted: GroupRequest = call.body
    config: dict[str, Any] = {"name": wanted.name}
    config |= {name: value for name in _SETTINGS if (value := getattr(wanted, name)) is not None}
    existed, keep = wanted.name in call.port.state.groups, wanted.if_exists != "update"
    try:
        party = call.caller.party
        entry, result = await applied(lambda done: put_group(call.port.services, config, done, party, if_absent=keep))
    except Refused as refused:
        raise error_of(refused, "correct it; nothing was changed") from None
    if result.code == "exists" and wanted.if_exists == "fail":
        fix = 'send "if_exists": "update" to change it, "keep" to be content with it as it is'
        raise ApiError("exists", f"group {wanted.name} is there already", fix)
    verb: Any = "kept" if result.code == "exists" else "updated" if existed else "created"
    return JsonAnswer(201 if verb == "created" else 200, await _view(call, result.value, verb, entry))


async def delete_group(call: Call) -> GroupChanged:
    """Deletes a consumer group and its offsets. Its retry and dead-letter topics stay."""
    group = await find_group(call, call.params["name"])
    dry_run = flag_of(call.query, DRY_RUN)
    held = await _view(call, group, "deleted", call.port.state.applied, dry_run=dry_run)
    if dry_run:
        return held
    entry, _ = await applied(partial(delete_stored, call.port.services, group.name, clean_offsets=CLEAN_OFFSETS))
    call.note_change(f"group {group.name}", group_deleted(clean_offsets=CLEAN_OFFSETS, offsets=held.offsets))
    return msgspec.structs.replace(held, term=entry.term, index=entry.index)


async def clone_group(call: Call) -> GroupCloned:
    """Copies the committed offsets of another consumer group to this one."""
    wanted: CloneRequest = call.body
    state, name, topic = call.port.state, call.params["name"], wanted.topic or ""
    resets = call.port.served.resets
    before, offsets, entry = state.offsets_by_topic(name), list[ClonedOffset](), state.applied
    try:
        for topic_id, queue, offset in resets.to_clone(wanted.source, name, topic, call.caller.party):
            if len(offsets) % OFFSETS_PER_STEP == 0:
                await call.breathe()
            charge(ITEM_UNITS)
            known, was = state.topics_by_id.get(topic_id), before.get(topic_id, {}).get(queue)
            if known is not None:
                offsets.append(ClonedOffset(topic=known.name, queue_id=queue, offset=offset, before=was))
        if not wanted.dry_run:
            entry, _ = await decided(partial(resets.clone, wanted.source, name, topic, call.caller.party))
            call.note_change(f"group {name}", cloned_from(wanted.source, topic))
    except Refused as refused:
        if refused.reason is Reason.NO_GROUP:
            await find_group(call, wanted.source)
        raise error_of(refused, codes={Reason.NO_PERMISSION: "denied"}) from None
    return GroupCloned(
        node=call.port.config.node.id,
        term=entry.term,
        index=entry.index,
        group=name,
        source=wanted.source,
        offsets=offsets,
        dry_run=wanted.dry_run,
    )


async def find_group(call: Call, name: str) -> GroupConfig:
    """Returns the group. Raises ApiError if there is none; its hint names the most similar group if the caller may list
    all."""
    state = call.port.state
    group = state.groups.get(name)
    if group is None:
        match = await neighbour(call, name, state.groups)
        hint = (
            f"did you mean {match}?" if match else "GET /v1/groups lists all; consumers make theirs when they connect"
        )
        raise ApiError("not_found", f"there is no group {name}", hint)
    return group


async def _view(
    call: Call,
    group: GroupConfig,
    result: Literal["created", "kept", "updated", "deleted"],
    entry: EntryId,
    *,
    dry_run: bool = False,
) -> GroupChanged:
    state = call.port.state
    lags = await call.done(lag_steps(state, group))
    return GroupChanged(
        node=call.port.config.node.id,
        term=entry.term,
        index=entry.index,
        result=result,
        name=group.name,
        retry_max_times=group.retry_max_times,
        consume_enable=group.consume_enable,
        offsets=sum(map(len, state.offsets_by_topic(group.name).values())),
        lag=sum(each.lag for each in lags),
        members=call.port.served.member_count(group.name),
        dry_run=dry_run,
    )


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/groups/{name}/reset`. `value` goes with two values of `to`: the time in ms since 1970 for
    `time`, the offset for `offset`."""

    topic: TopicName
    to: Literal["earliest", "latest", "time", "offset"]
    value: Unsigned63 | None = None
    queue_id: QueueId | None = None
    """The queue; null for every queue of the topic."""
    dry_run: bool = False
    """True to change nothing, and only return what would change."""


class ResetOffset(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, and the offset to which it was reset."""

    queue_id: int
    offset: int
    before: int | None = None
    """The group's offset before; null if it had committed none, or if that is not known."""
    again: int = 0
    """Number of messages that the group had committed before and will get again."""
    skipped: int = 0
    """Number of messages that the group had not committed and will not get."""


class GroupReset(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a reset: the group's new offsets, or after a dry run those that it would get. Consumers learn of
    them with their next pull."""

    node: int
    group: str
    topic: str
    dry_run: bool
    """True if nothing was changed."""
    queues: list[ResetOffset]


async def reset_group(call: Call) -> GroupReset:
    """Resets the offsets of a group in one topic, also while its consumers run."""
    wanted: ResetRequest = call.body
    if (wanted.value is None) == (wanted.to in ("time", "offset")):
        raise ApiError(
            "bad_field", f'"value" goes with "to": "time" or "offset", not "{wanted.to}"', "see openapi.json"
        )
    asked = ResetOrder(
        call.params["name"], wanted.topic, ResetTo[wanted.to.upper()], wanted.value or 0, wanted.queue_id
    )
    # Needs no timeout: the service answers within [send] deadline_ms.
    resets, state = call.port.served.resets, call.port.state
    before = state.offsets_by_topic(asked.group)
    act = resets.plan if wanted.dry_run else resets.reset
    found: list[QueueOffset] = await not_refused(partial(act, asked, call.caller.party))
    topic = state.topics[asked.topic]
    if not wanted.dry_run:
        call.note_change(f"group {asked.group}", asked.done_to(len(found)))
    rows: list[ResetOffset] = []
    for each in found:
        await call.breathe()
        charge(ITEM_UNITS)
        rows.append(_row(state, topic.id, each, before.get(topic.id, {}).get(each.queue_id)))
    return GroupReset(
        node=call.port.config.node.id,
        group=asked.group,
        topic=asked.topic,
        dry_run=wanted.dry_run,
        queues=rows,
    )


def _row(state: BrokerState, topic_id: int, wanted: QueueOffset, before: int | None) -> ResetOffset:
    low, end = state.min_offset(topic_id, wanted.queue_id), state.max_offset(topic_id, wanted.queue_id)
    stood = max(low, min(before or 0, end))  # an offset beyond the end counts as the end: no messages lie between them
    return ResetOffset(
        queue_id=wanted.queue_id,
        offset=wanted.offset,
        before=before,
        again=max(0, stood - wanted.offset),
        skipped=max(0, wanted.offset - stood),
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route.of_verb(
        "POST",
        "/v1/groups",
        create_group,
        GroupChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, reads_body=True, groupName="body.name"),
        GroupRequest,
        (200, 201),
    ),
    Route.of_verb(
        "DELETE",
        "/v1/groups/{name}",
        delete_group,
        GroupChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="name"),
        asks=(DRY_RUN,),
    ),
    Route.of_verb(
        "POST",
        "/v1/groups/{name}/clone",
        clone_group,
        GroupCloned,
        route.page(),
        route_rights.of_verb(
            RequestCode.CLONE_GROUP_OFFSET, srcGroup="body.source", destGroup="name", topic="body.topic"
        ),
        CloneRequest,
    ),
    Route.of_verb(
        "POST",
        "/v1/groups/{name}/reset",
        reset_group,
        GroupReset,
        route.page(),
        route_rights.of_verb(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="name", topic="body.topic"),
        ResetRequest,
    ),
)
