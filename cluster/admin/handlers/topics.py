"""/v1/topics: lists, creates, changes and deletes topics, and shows the offsets of their queues."""

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
"""The attributes that a request may set. The OpenAPI document shows their ranges, but `Topics.check` decides what is
accepted. A topic may have values outside these ranges from before, and an update may send them again."""


class QueuesInGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of read and write queues that a topic has in one group of brokers."""

    group: int
    read_queues: int
    write_queues: int


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration, and the number of its messages in the answering node's group of brokers."""

    name: str
    id: int
    read_queues: int
    write_queues: int
    perm: int
    """The permission as RocketMQ's bits: 4 for reading, 2 for writing."""
    order: bool
    attributes: dict[str, str]
    created_ms: int | None = None
    """Log time of the topic's creation in ms since 1970; null if the cluster had not reached level 12 then."""
    changed_ms: int | None = None
    """Log time of the topic's last change in ms since 1970; null if the cluster had not reached level 12 then."""
    changed_by: str | None = None
    """The author of the last change; null if it had none, as when a send creates a topic."""
    groups: list[int] = []
    """Numbers of the groups of brokers in which the topic has queues; [] in a cluster of one group. The other fields
    count the queues and messages of the answering node's group."""
    queues_in_groups: list[QueuesInGroup] = []
    """The numbers of queues in each of the groups in `groups`."""
    messages: int
    hidden: int = 0
    """The part of `messages` that no consumer reads. They are in queues from `read_queues` on: the topic once had more
    read queues. If it gets these queues again, consumers can read them."""
    evicted: int = 0
    """The part of `messages` that is only in the tier (`tier.evict`). Consumers read them from there."""
    bytes: int | None = None
    """Bytes of the topic's messages in the answering node's log (`cluster.broker.topic_sizes`). null if they were not
    measured, as in the answer to a change."""
    bytes_exact: bool = True
    """False if `bytes` is an estimate: the mean size of a sample of the messages, times their number."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue. Messages from `min_offset`, inclusive, to `max_offset`, exclusive, can be read."""

    queue_id: int
    min_offset: int
    max_offset: int
    hidden: bool = False
    """True if consumers do not read the queue, because the topic has fewer read queues now."""


class TopicsView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics`."""

    topics: list[TopicView]
    bytes_applied_index: int
    """Index of the last log entry that was applied when `bytes` was measured, some seconds ago."""
    next: str | None
    """The value of `after` for the next page; null on the last page."""


class TopicDetail(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/topics/{name}`."""

    topic: TopicView
    queues: list[QueueView]
    next: int | None
    """The value of `after` for the next page of queues; null on the last page."""


class TopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/topics`. `queues` sets both numbers of queues. Fields that are left out have their default
    for a new topic, and stay unchanged in an update."""

    name: NewTopic
    queues: NewQueues | None = None
    read_queues: NewQueues | None = None
    write_queues: NewQueues | None = None
    perm: NewPerm | None = None
    order: bool | None = None
    attributes: NewAttributes | None = None
    groups: NewGroups | None = None
    """The groups of brokers in which a new topic gets its queues; null for all. For an existing topic and with
    `move_keys`, groups in which it also gets queues."""
    move_keys: bool = False
    """True to allow that an existing topic gets queues in further groups, or in fewer. Messages with the same key may
    then go to other queues than before."""
    gather: bool = False
    """True to let an existing topic take new messages in `groups` only. Consumers read its queues in the other groups
    to the end; then these queues are removed."""
    if_exists: Literal["fail", "keep", "update"] = "fail"
    now: bool = False
    """True to allow that messages are hidden that are not consumed, because the topic gets fewer read queues. False
    refuses such a change."""


class TopicChanged(ChangeView, frozen=True, kw_only=True):
    """The answer after a topic was created, changed, kept or deleted by the log entry (term, index)."""

    result: Literal["created", "kept", "updated", "deleted"]
    topic: TopicView
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""
    remark: str = ""
    """Names attributes of the topic that are stored but have no effect; "" if there are none."""


async def list_topics(call: Call) -> Pieces:
    """Lists topics by name, a page of them."""
    state = call.port.state
    applied = state.applied.index  # read first, so that everything that is read later is at least as new
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
    """Returns one topic with a page of its queues."""
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
    """Creates a topic. `if_exists` says what happens to an existing one."""
    wanted: TopicRequest = call.body
    existed = wanted.name in call.port.state.topics
    if wanted.gather:
        return await _gather(call, wanted)
    fields, groups = _fields(wanted), _groups_of(call, wanted, existed=existed)
    topics, keep = Topics(call.port.services), wanted.if_exists != "update"
    if existed and groups is not None:
        fields["attributes"] = without_home(fields.get("attributes", call.port.state.topics[wanted.name].attributes))
    try:
        topics.check(fields)  # here, because a dry run must find errors too
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
    """Limits the groups of brokers in which a topic takes new messages to those of the request. Raises ApiError if the
    topic takes none in one of them, if the request does not allow keys to move, or if the change is refused."""
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
    """Returns the answer to a dry run, with the topic as it is now. Raises ApiError if the topic does not exist, or if
    it exists and `if_exists` is "fail"."""
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
    """Raises ApiError if one of the changes hides messages that are not consumed. It first waits until this node has
    applied everything that was acknowledged before. `configs` are `config` arguments of create_topic."""
    await confirm_read(call.port, may_be_local=False)
    try:
        for config in configs:
            await call.done(check_hides_nothing(call.port.state, config))
    except Refused as refused:
        fix = 'consume them first, or hide them with --now ("now": true); as many queues as before bring them back'
        raise error_of(refused, fix) from None


async def delete_topic(call: Call) -> TopicChanged:
    """Deletes a topic with its queues and with all groups' offsets in it."""
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
    """Returns the topic. Raises ApiError if there is none; its hint names the most similar topic if the caller may list
    all."""
    state = call.port.state
    config = state.topics.get(name)
    if config is None:
        match = await neighbour(call, name, state.topics)
        hint = f"did you mean {match}?" if match else "GET /v1/topics lists all; POST /v1/topics makes one"
        raise ApiError("not_found", f"there is no topic {name}", hint)
    return config


def _fields(wanted: TopicRequest) -> dict[str, Any]:
    """Returns the `config` argument of create_topic, which has only the fields that the request gives."""
    fields: dict[str, Any] = {"name": wanted.name}
    if wanted.queues is not None:
        fields["read_queues"] = fields["write_queues"] = wanted.queues
    for name in ("read_queues", "write_queues", "perm", "order", "attributes"):
        value = getattr(wanted, name)
        if value is not None:
            fields[name] = value
    return fields


def _groups_of(call: Call, wanted: TopicRequest, *, existed: bool) -> list[int] | None:
    """Returns the groups of brokers, ascending, in which the topic gets queues: all of a new topic, or the further ones
    of an existing one. Returns None if the request adds no group, or if the cluster has only one group. Raises ApiError
    if a group does not exist or takes no queues, or if keys would move and the request does not allow it."""
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
