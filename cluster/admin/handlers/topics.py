"""/v1/topics: the topics and the offsets of their queues; creates and deletes topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import DRY_RUN, Call, ChangeView, JsonAnswer, ReadView, applied, confirm_read
from cluster.admin.pagination import AFTER, Page, after_of, limit_of, list_route, neighbour
from cluster.admin.refusals import error_of
from cluster.admin.request_parsing import flag_of, number_of
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.broker.evicted.evicted_pulls import evicts_now
from cluster.broker.groups.group_lag import QUEUES_PER_STEP, bounds
from cluster.broker.groups.hidden_queues import check_hides_nothing
from cluster.broker.refusal import Refused
from cluster.broker.topic_sizes import TopicSize
from cluster.broker.topics import ATTRIBUTE_VALUES, OTHER_ATTRIBUTES, RANGES, Topics, without_effect, without_home
from cluster.runtime.request_limits import ATTRIBUTES_MAX, NewTopic, Text
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftlog.work import ITEM_UNITS, charge
from raftmq_wire.codes import RequestCode
from statemachine.cluster_wide.broker_groups import active_groups
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import TopicConfig, living_place, no_further

NewQueues = Annotated[int, msgspec.Meta(ge=1, extra_json_schema={"maximum": RANGES["read_queues"][1]})]
NewGroups = Annotated[
    list[Annotated[int, msgspec.Meta(ge=FIRST_GROUP, le=GROUPS_MAX)]],
    msgspec.Meta(min_length=1, max_length=GROUPS_MAX),
]
NewPerm = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": RANGES["perm"][1]})]
NewAttributes = Annotated[
    dict[str, Text],
    msgspec.Meta(
        max_length=ATTRIBUTES_MAX,
        extra_json_schema={
            "properties": {
                **{name: {"enum": list(values)} for name, values in ATTRIBUTE_VALUES.items()},
                **{name: {"type": "string", "pattern": pattern} for name, pattern in OTHER_ATTRIBUTES.items()},
            },
            "propertyNames": {"enum": [*ATTRIBUTE_VALUES, *OTHER_ATTRIBUTES]},
        },
    ),
]
"""Attributes that can be asked for. The OpenAPI document shows these ranges, and `Topics.check` judges by them: a topic
may have more already, and an update sends that again."""


class QueuesInGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a topic's queues in a group of brokers."""

    group: int
    read_queues: int
    write_queues: int


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration and the number of its messages."""

    name: str
    id: int
    read_queues: int
    write_queues: int
    perm: int
    """The permission, RocketMQ's bits: 4 read, 2 write."""
    order: bool
    attributes: dict[str, str]
    created_ms: int | None = None
    """Log time of its creation; null if the cluster had not reached level 12 then."""
    changed_ms: int | None = None
    """Log time of its last change; null if the cluster had not reached level 12 then."""
    changed_by: str | None = None
    """The author of that change; null if it had none, as when a send creates a topic."""
    groups: list[int] = []
    """The groups of brokers in which it has queues; empty in a cluster of one group. The numbers of queues and of
    messages are those of the group that answers."""
    queues_in_groups: list[QueuesInGroup] = []
    """The numbers of queues in each of these groups."""
    messages: int
    hidden: int = 0
    """The part of these messages that no consumer reads: they lie in queues above `read_queues`, which the topic had
    more of. They are there again once it has."""
    evicted: int = 0
    """The part of these messages that has left the nodes (`tier.evict`): the tier alone has them, and they are read
    there."""
    bytes: int | None = None
    """Stored bytes of the messages in the log of the answering node (`cluster.broker.topic_sizes`). null: not measured,
    as in the answer to a change."""
    bytes_exact: bool = True
    """False if `bytes` is an estimate: the mean size of some of the messages times their number."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: messages min_offset (inclusive) to max_offset (exclusive) can be read."""

    queue_id: int
    min_offset: int
    max_offset: int
    hidden: bool = False
    """True if consumers do not read it: the topic has fewer read queues."""


class TopicsView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics`."""

    topics: list[TopicView]
    bytes_applied_index: int
    """The entry as of which `bytes` was measured, some seconds ago."""
    next: str | None
    """The value of `after` for the next page; null on the last."""


class TopicDetail(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics/{name}`."""

    topic: TopicView
    queues: list[QueueView]
    next: int | None
    """The value of `after` for the next page of queues; null on the last."""


class TopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/topics`. `queues` sets both numbers; fields that are left out keep their default or, in an
    update, their value."""

    name: NewTopic
    queues: NewQueues | None = None
    read_queues: NewQueues | None = None
    write_queues: NewQueues | None = None
    perm: NewPerm | None = None
    order: bool | None = None
    attributes: NewAttributes | None = None
    groups: NewGroups | None = None
    """The groups of brokers in which a new topic gets these numbers of queues each; null for all. With `move_keys` also
    those in which a topic that is there gets some."""
    move_keys: bool = False
    """True to give a topic that is there queues in further groups, or fewer: keys come to other queues then."""
    gather: bool = False
    """True to let a topic that is there take new messages in `groups` alone. Its queues in other groups are read out,
    and then it has none there."""
    if_exists: Literal["fail", "keep", "update"] = "fail"
    now: bool = False
    """True to hide messages that are not consumed, if the topic gets fewer read queues; false refuses that."""


class TopicChanged(ChangeView, frozen=True, kw_only=True):
    """A topic was created, changed, kept or deleted by the log entry (term, index)."""

    result: Literal["created", "kept", "updated", "deleted"]
    topic: TopicView
    dry_run: bool = False
    """True if nothing was changed; term and index are those of the last applied entry."""
    remark: str = ""
    """Names attributes that are kept and decide nothing."""


async def list_topics(call: Call) -> Pieces:
    """Topics by name, a page of them."""
    state = call.port.state
    applied = state.applied.index  # read before the rest: what follows is at least as new
    page, after = Page(call, limit_of(call)), after_of(call)
    names = state.topics.keys_from(after, page.items_max + 1)
    found = [config for name in names[: page.items_max] if (config := state.topics.get(name)) is not None]
    measured = await call.port.storage.topic_sizes.among(found)
    left = len(names) > page.items_max
    for config in found:
        await page.turn()
        if not page.add(await _view(call, config, measured.sizes.get(config.id))):
            left = True
            break
        after = config.name
    else:
        after = names[-2] if left else None
    view = TopicsView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        topics=[],
        bytes_applied_index=measured.applied_index,
        next=after if left else None,
    )
    return page.answer(view, "topics")


async def describe_topic(call: Call) -> Pieces:
    """One topic with its queues, a page of them."""
    state = call.port.state
    applied = state.applied.index
    config = await find_topic(call, call.params["name"])
    size = await call.port.storage.topic_sizes.of(config)
    page = Page(call, limit_of(call))
    first = number_of(call.query, AFTER, -1) + 1
    stored = state.stored_queues(config)
    for queue in range(first, stored):
        if page.full:
            break
        await page.turn(2 * ITEM_UNITS)
        low, high = bounds(state, config.id, queue)
        hidden = queue >= config.read_queues
        page.add(QueueView(queue_id=queue, min_offset=low, max_offset=high, hidden=hidden))
    end = first + page.items
    view = TopicDetail(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        topic=await _view(call, config, size),
        queues=[],
        next=end - 1 if end < stored else None,
    )
    return page.answer(view, "queues")


async def create_topic(call: Call) -> JsonAnswer:
    """Creates a topic; what happens to an existing one is the request's choice."""
    wanted: TopicRequest = call.body
    existed = wanted.name in call.port.state.topics
    if wanted.gather:
        return await _gather(call, wanted)
    fields, groups = _fields(wanted), _groups_of(call, wanted, existed=existed)
    topics, keep = Topics(call.port.services), wanted.if_exists != "update"
    if existed and groups is not None:
        fields["attributes"] = without_home(fields.get("attributes", call.port.state.topics[wanted.name].attributes))
    try:
        topics.check(fields)  # before a dry run answers
    except Refused as refused:
        raise error_of(refused, "correct it; nothing was changed") from None
    if not (keep or wanted.now):
        await refuse_to_hide(call, [fields])
    if flag_of(call.query, DRY_RUN):
        return JsonAnswer(200, await _would_be(call, wanted, existed=existed))
    try:
        entry_id, result = await applied(
            lambda done: topics.put(
                fields, done, if_absent=keep, author=call.asker, party=call.caller.party, groups=groups
            )
        )
    except Refused as refused:
        raise error_of(refused, "correct it; nothing was changed") from None
    if result.code == "exists" and wanted.if_exists == "fail":
        raise _exists(wanted.name)
    verb: Any = "kept" if result.code == "exists" else "updated" if existed else "created"
    view = TopicChanged(
        node=call.port.config.node.id,
        term=entry_id.term,
        index=entry_id.index,
        result=verb,
        topic=await _view(call, result.value),
        remark=without_effect(result.value.attributes),
    )
    return JsonAnswer(201 if verb == "created" else 200, view)


async def _gather(call: Call, wanted: TopicRequest) -> JsonAnswer:
    """Lets a topic take new messages in fewer groups of brokers. Raises ApiError."""
    topic, asked = await find_topic(call, wanted.name), set(wanted.groups or ())
    call.check_level(GATHERS_LEVEL, "gathers")
    living = topic.written_groups & active_groups(call.port.state.broker_groups.by_number)
    if not asked or asked - living:
        which = ", ".join(map(str, sorted(living)))
        why = f"groups: topic {topic.name} can stay in the groups in which it takes messages: {which}"
        raise ApiError("bad_field", why, "name some of them; raftmq topic spread gives it queues in others")
    if not wanted.move_keys:
        why = f"topic {topic.name} would take messages in fewer groups, and keys would move"
        raise ApiError("refused", why, 'send "move_keys": true (raftmq topic gather)')
    if flag_of(call.query, DRY_RUN) or topic.written_groups == asked:
        told = await _would_be(call, msgspec.structs.replace(wanted, if_exists="update"), existed=True)
        return JsonAnswer(200, told)
    try:
        topics = Topics(call.port.services)
        entry_id, result = await applied(lambda done: topics.gather(topic.name, asked, done, author=call.asker))
    except Refused as refused:
        raise error_of(refused, "correct it; nothing was changed") from None
    call.note_change(f"topic {topic.name}", f"takes messages in group {', '.join(map(str, sorted(asked)))} alone")
    told = TopicChanged(
        node=call.port.config.node.id,
        term=entry_id.term,
        index=entry_id.index,
        result="updated",
        topic=await _view(call, result.value),
    )
    return JsonAnswer(200, told)


async def _would_be(call: Call, wanted: TopicRequest, *, existed: bool) -> TopicChanged:
    """Returns the answer to a dry run of a change, with the topic as it is now. Raises ApiError if the topic does not
    exist, or exists but must not."""
    if existed and wanted.if_exists == "fail":
        raise _exists(wanted.name)
    topic = await _view(call, await find_topic(call, wanted.name))
    node, (term, index) = call.port.config.node.id, call.port.state.applied
    verb: Any = "kept" if wanted.if_exists == "keep" else "updated"
    return TopicChanged(node=node, term=term, index=index, result=verb, topic=topic, dry_run=True)


def _exists(name: str) -> ApiError:
    fix = 'send "if_exists": "update" to change it, "keep" to be content with it as it is'
    return ApiError("exists", f"topic {name} is there already", fix)


async def refuse_to_hide(call: Call, configs: Iterable[dict[str, Any]]) -> None:
    """Raises ApiError if one of these changes of topics, arguments of create_topic, hides messages that are not
    consumed: of those that were acknowledged until now, also by an earlier leader."""
    await confirm_read(call.port, may_be_local=False)
    try:
        for config in configs:
            await call.done(check_hides_nothing(call.port.state, config))
    except Refused as refused:
        fix = 'consume them first, or hide them with --now ("now": true); as many queues as before bring them back'
        raise error_of(refused, fix) from None


async def delete_topic(call: Call) -> TopicChanged:
    """Deletes a topic, its queues and all groups' offsets of it."""
    config = await find_topic(call, call.params["name"])
    held = await _view(call, config, await call.port.storage.topic_sizes.of(config))
    if flag_of(call.query, DRY_RUN):
        node, (term, index) = call.port.config.node.id, call.port.state.applied
        return TopicChanged(node=node, term=term, index=index, result="deleted", topic=held, dry_run=True)
    entry_id, _ = await applied(lambda done: Topics(call.port.services).delete(config.name, done))
    call.note_change(f"topic {config.name}", f"the topic was deleted with its {held.messages} messages")
    return TopicChanged(
        node=call.port.config.node.id, term=entry_id.term, index=entry_id.index, result="deleted", topic=held
    )


async def find_topic(call: Call, name: str) -> TopicConfig:
    """Returns the topic. Raises ApiError, which names the nearest existing one to who may list all."""
    state = call.port.state
    config = state.topics.get(name)
    if config is None:
        match = await neighbour(call, name, state.topics)
        hint = f"did you mean {match}?" if match else "GET /v1/topics lists all; POST /v1/topics makes one"
        raise ApiError("not_found", f"there is no topic {name}", hint)
    return config


def _fields(wanted: TopicRequest) -> dict[str, Any]:
    """Returns the `config` argument of create_topic: only the fields that were given."""
    fields: dict[str, Any] = {"name": wanted.name}
    if wanted.queues is not None:
        fields["read_queues"] = fields["write_queues"] = wanted.queues
    for name in ("read_queues", "write_queues", "perm", "order", "attributes"):
        value = getattr(wanted, name)
        if value is not None:
            fields[name] = value
    return fields


def _groups_of(call: Call, wanted: TopicRequest, *, existed: bool) -> list[int] | None:
    """Returns the groups of brokers in which a new topic gets its queues, or an existing one some more, ascending; None
    if it keeps those that it has, or the cluster has one. Raises ApiError."""
    state = call.port.state
    known = {FIRST_GROUP, *state.broker_groups.by_number}
    asked = set(wanted.groups or ())
    if unknown := asked - known:
        raise ApiError("bad_field", f"groups: there is no group {min(unknown)}", "GET /v1/broker-groups lists all")
    topic = state.topics.get(wanted.name)
    rows, has = state.broker_groups.by_number, topic.queues_of_groups if topic is not None else {}
    if why := no_further(rows, wanted.name, sorted(asked), has):
        fix = "leave it out: GET /v1/broker-groups says which groups are active"
        raise ApiError("refused", f"groups: {why}", fix)
    if not existed:
        return sorted(asked or active_groups(rows)) if rows or asked else None
    if wanted.if_exists != "update" or not asked or topic is None:
        return None
    if further := asked - topic.written_groups:
        if not wanted.move_keys:
            why = f"topic {wanted.name} has no queues in group {min(further)}; with some there, keys would move"
            raise ApiError("refused", why, 'leave groups out, or send "move_keys": true (raftmq topic spread)')
        return sorted(further)
    return None


async def _view(call: Call, config: TopicConfig, size: TopicSize | None = None) -> TopicView:
    state, held, hidden, evicted = call.port.state, 0, 0, 0
    stored, evicts = state.stored_queues(config), evicts_now(call.port.state)
    rows = state.broker_groups.by_number
    place = sorted(living_place(rows, config).items()) if rows else ()
    placed = [QueuesInGroup(group=group, read_queues=read, write_queues=write) for group, (read, write) in place]
    for queue in range(stored):
        if queue % QUEUES_PER_STEP == 0:
            await call.breathe()
            charge(2 * ITEM_UNITS * min(QUEUES_PER_STEP, stored - queue))
        low, high = bounds(state, config.id, queue)
        held += high - low
        hidden += high - low if queue >= config.read_queues else 0
        evicted += max(0, min(state.min_offset(config.id, queue), high) - low) if evicts else 0
    return TopicView(
        name=config.name,
        id=config.id,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        perm=config.perm,
        order=config.order,
        attributes=dict(config.attributes),
        groups=[each.group for each in placed],
        queues_in_groups=placed,
        created_ms=config.created_ms or None,
        changed_ms=config.changed_ms or None,
        changed_by=config.changed_by or None,
        messages=held,
        hidden=hidden,
        evicted=evicted,
        bytes=None if size is None else size.bytes,
        bytes_exact=size is None or size.exact,
    )


ROUTES: Final[tuple[Route, ...]] = (
    list_route(
        "/v1/topics",
        list_topics,
        TopicsView,
        route_rights.of_verb(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    ),
    Route.of_verb(
        "POST",
        "/v1/topics",
        create_topic,
        TopicChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="body.name"),
        TopicRequest,
        (200, 201),
        asks=(DRY_RUN,),
    ),
    list_route(
        "/v1/topics/{name}",
        describe_topic,
        TopicDetail,
        route_rights.of_verb(RequestCode.GET_TOPIC_CONFIG, topic="name"),
    ),
    Route.of_verb(
        "DELETE",
        "/v1/topics/{name}",
        delete_topic,
        TopicChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.DELETE_TOPIC_IN_BROKER, topic="name"),
        asks=(DRY_RUN,),
    ),
)
