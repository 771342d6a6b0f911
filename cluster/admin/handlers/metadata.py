"""/v1/metadata: exports and imports topics, groups and offsets as one document. /v1/alarms/{key}/ack acknowledges the
alarm of an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError, done_in_part
from cluster.admin.handler_request import Call, ChangeView, applied, decided
from cluster.admin.handlers.topics import refuse_to_hide
from cluster.admin.node_interface import AdminPort
from cluster.admin.refusals import error_of
from cluster.admin.route import Route, RouteCost
from cluster.admin.streamed_json import Pieces
from cluster.backup.metadata import ConsumerGroupRecord, Metadata, OffsetRecord, TopicRecord, commands_for, export
from cluster.broker.groups.group_admin import check_settings
from cluster.broker.name_rules import check_restored_topic
from cluster.broker.refusal import Reason, Refused
from cluster.members.service import EVENT
from cluster.requests.verb import Serves
from cluster.runtime import metered_json
from raftlog.types import EntryId
from statemachine.cluster_wide.members import Acknowledge
from statemachine.consuming.consumer_offsets import Commit, CommitOffsets
from statemachine.topics.topics import no_further

ROWS_PER_STEP = 128
COST = RouteCost(1, lambda limits: 24 << 20)
"""The cost of an export. The document contains all topics, groups and offsets, so only few are made at a time."""

_NOT_RESTORED: Final = {Reason.INVALID: "refused"}
"""Reason of a refusal -> error code, where it differs from the usual one: the document is readable, but a part of it is
not accepted."""


class MetadataChange(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/metadata`: a part of an exported document. A topic must exist before its offsets are
    sent, so it belongs in an earlier request."""

    topics: list[TopicRecord] = []
    groups: list[ConsumerGroupRecord] = []
    offsets: list[OffsetRecord] = []
    dry_run: bool = False
    """True to change nothing, and only check the document and return its size. A real import overwrites offsets and
    attributes."""
    now: bool = False
    """True to accept that an import hides messages, because a topic gets fewer read queues and they are not consumed.
    False refuses that."""


class MetadataChanged(ChangeView, frozen=True, kw_only=True):
    """The answer to an import, which is one log entry. The fields count the topics, groups and offsets in it."""

    topics: int
    groups: int
    offsets: int
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


class AlarmAcknowledged(ChangeView, frozen=True, kw_only=True):
    """The answer to `POST /v1/alarms/{key}/ack`."""

    key: str
    event: str
    """The text of the event whose alarm was acknowledged."""


async def get_metadata(call: Call) -> Pieces:
    """Returns all topics, groups and offsets with every attribute, as one document."""
    # On a thread: an export of tens of thousands of groups takes most of a second, and would delay clients meanwhile.
    cluster_id, group_id = call.port.status().cluster_id, call.port.nodes.membership.identity.group_id
    made = await asyncio.get_running_loop().run_in_executor(None, export, call.port.state, cluster_id, group_id)
    text = msgspec.json.encode(msgspec.structs.replace(made, topics=[], groups=[], offsets=[], ends={}, topic_ids={}))
    parts = [text[: text.index(b'"topics":[]')]]
    for name, records in (("topics", made.topics), ("groups", made.groups), ("offsets", made.offsets)):
        parts += [b'"%b":[' % name.encode(), *await _encoded(call, records), b"],"]
    for name, table in (("ends", made.ends), ("topic_ids", made.topic_ids)):
        parts += [b'"%b":{' % name.encode(), *await _encoded(call, list(table.items()), dict), b"},"]
    return Pieces([*parts, b'"group_id":%d}' % made.group_id])


async def _encoded(call: Call, rows: Sequence[Any], kind: Callable[[Sequence[Any]], Any] = list) -> list[bytes]:
    """Returns the JSON of many rows without the enclosing brackets, made in steps of a few rows. `kind` makes a list or
    a dict of the rows of a step."""
    parts: list[bytes] = []
    for start in range(0, len(rows), ROWS_PER_STEP):
        await call.breathe()
        part = metered_json.encode(kind(rows[start : start + ROWS_PER_STEP]))[1:-1]
        parts += [b",", part] if parts else [part]
    return parts


async def change_metadata(call: Call) -> MetadataChanged:
    """Creates and updates the given topics, groups and offsets; removes nothing."""
    wanted: MetadataChange = call.body
    _check_topics(wanted.topics)
    _check_places(call.port, wanted.topics)
    _check_groups(call.port, wanted.groups)
    if wanted.topics and not wanted.now:
        await refuse_to_hide(call, [_own(record, call.port.config.cluster.group) for record in wanted.topics])
    records: list[TopicRecord | ConsumerGroupRecord] = [*wanted.topics, *wanted.groups]
    run = [command for record in records for command in commands_for(record)]
    if wanted.offsets:
        run.append(CommitOffsets(await _rows(call, wanted.offsets)))
    if not run:
        raise ApiError("refused", "there is nothing to change", "send topics, groups or offsets")
    if wanted.dry_run:
        return _changed(call.port, wanted, call.port.state.applied)
    fix = "correct it and import again"
    entry, results = await decided(lambda done: call.port.services.propose(run, done), fix)
    refused = next((answer for answer in results if not answer.ok), None)
    if refused is None:
        return _changed(call.port, wanted, entry)
    stored = refused.value if isinstance(refused.value, int) else None  # the number of offsets that were stored
    why = str(refused.value) if stored is None else "a topic was deleted meanwhile: its offsets were left out"
    if stored or any(answer.ok for answer in results):
        raise done_in_part(why, fix)
    raise ApiError("bad_command", why, f"{fix}; nothing was changed")


def _own(record: TopicRecord, group: int) -> dict[str, Any]:
    """Returns the topic's name, and its number of read queues in this group of brokers."""
    placed = {number: read for number, read, _ in record.place}
    return {"name": record.name, "read_queues": placed.get(group, record.read_queues)}


def _check_topics(records: Sequence[TopicRecord]) -> None:
    """Raises ApiError for a topic that must not be restored. Of RocketMQ's own topics, only those that a send creates
    may be restored."""
    for record in records:
        try:
            check_restored_topic(record.name)
        except Refused as refused:
            fix = "correct the document: leave this topic out, with its offsets; nothing was changed"
            raise error_of(refused, fix, codes=_NOT_RESTORED) from None


def _check_places(port: AdminPort, records: Sequence[TopicRecord]) -> None:
    """Raises ApiError if a topic would get queues in a group of brokers that takes none, because it drains or has
    retired."""
    rows = port.state.broker_groups.by_number
    for record in records:
        known = port.state.topics.get(record.name)
        has = known.queues_of_groups if known is not None else {}
        if why := no_further(rows, record.name, [group for group, *_ in record.place], has):
            fix = "give it queues in other groups in the document; nothing was changed"
            raise ApiError("refused", f"topic {record.name}: {why}", fix)


def _check_groups(port: AdminPort, records: Sequence[ConsumerGroupRecord]) -> None:
    """Raises ApiError if a setting of a group would be refused in a request that creates the group."""
    for record in records:
        config = msgspec.structs.asdict(record)
        del config["subscriptions"]
        try:
            check_settings(port.state, config)
        except Refused as refused:
            fix = f"correct group {record.name} in the document; nothing was changed"
            raise error_of(refused, fix, codes=_NOT_RESTORED) from None


def _changed(port: AdminPort, wanted: MetadataChange, entry: EntryId) -> MetadataChanged:
    return MetadataChanged(
        node=port.config.node.id,
        term=entry.term,
        index=entry.index,
        topics=len(wanted.topics),
        groups=len(wanted.groups),
        offsets=len(wanted.offsets),
        dry_run=wanted.dry_run,
    )


async def _rows(call: Call, records: Sequence[OffsetRecord]) -> list[Commit]:
    rows = []
    for at, record in enumerate(records):
        if at % ROWS_PER_STEP == 0:
            await call.breathe()
        rows.append(_row(call.port, record))
    return rows


def _row(port: AdminPort, record: OffsetRecord) -> Commit:
    topic = port.state.topics.get(record.topic)
    if topic is None:
        raise ApiError("not_found", f"there is no topic {record.topic}", "send the topic first; nothing was changed")
    end = port.state.max_offset(topic.id, record.queue_id)
    if record.offset > end:
        where = f"offset {record.offset} of group {record.group} in {record.topic}/{record.queue_id}"
        why = f"{where} lies beyond the end of the queue, {end}: the group would miss messages"
        raise ApiError("refused", why, "leave it out; nothing was changed")
    return record.group, topic.id, record.queue_id, record.offset


async def acknowledge_alarm(call: Call) -> AlarmAcknowledged:
    """Acknowledges the alarm of an event, permanently and on every node."""
    key, state = call.params["key"], call.port.state
    members = state.membership
    if key != EVENT:
        raised = [alarm.key for alarm in call.port.observed.alarms.all()]
        hint = "it ends when its cause does" if key in raised else "raftmq alarm list"
        raise ApiError("not_found", f"{key[:80]} is no alarm that a person can acknowledge", hint)
    if members is None or state.acknowledged >= members.index:
        raise ApiError("not_found", f"there is no event behind {key} any more", "raftmq alarm list")
    entry, _ = await applied(lambda done: call.port.services.propose([Acknowledge(members.index)], done))
    return AlarmAcknowledged(
        node=call.port.config.node.id, term=entry.term, index=entry.index, key=key, event=members.detail
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/metadata", get_metadata, Metadata, COST, route_rights.CLUSTER_GET, Serves.READ),
    Route(
        "POST",
        "/v1/metadata",
        change_metadata,
        MetadataChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        MetadataChange,
    ),
    Route(
        "POST",
        "/v1/alarms/{key}/ack",
        acknowledge_alarm,
        AlarmAcknowledged,
        route.CONSTANT,
        route_rights.CLUSTER_UPDATE,
        Serves.LEADER,
    ),
)
