"""Defines the document of topics, groups and offsets that `raftmq metadata` exports as JSON. Also finds out what an
import of it would change.

An import never removes anything. To import the same document again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from cluster.placement.registry_state import GroupNumber
from cluster.runtime.request_limits import (
    Attributes,
    ExpressionText,
    NewGroup,
    NewTopic,
    Perm,
    QueueCount,
    QueueId,
    RetryTimes,
    Signed64,
    TopicName,
    Unsigned31,
    Unsigned32,
    Unsigned63,
    Word,
)
from raftlog.format_versions import is_known, why_unknown
from raftlog.types import FIRST_GROUP
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.json_text import MALFORMED
from raftmq_wire.queue_numbers import number_of, queue_text
from raftmq_wire.topic_identity import TopicIdentity, why_another
from statemachine.broker_state import BrokerState
from statemachine.commands import Command
from statemachine.consuming.groups import GroupConfig, PutGroup, Subscribe
from statemachine.topics.topics import CreateTopic, Place, TopicConfig, living_place, place_rows

SCHEMA = 11
KIND = "raftmq metadata"


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic with all of its settings."""

    name: NewTopic
    read_queues: QueueCount
    write_queues: QueueCount
    perm: Perm
    order: bool
    sys_flag: Unsigned32
    attributes: Attributes
    place: list[tuple[GroupNumber, Unsigned31, Unsigned31]] = []
    """[group of brokers, read queues, write queues] of each group that has queues of the topic; [] if only the first
    group has. If it is not empty, `read_queues` and `write_queues` are the largest numbers in it."""


class ConsumerGroupRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A consumer group with all of its settings and its subscriptions."""

    name: NewGroup
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: Unsigned31
    retry_max_times: RetryTimes
    group_retry_policy: str
    broker_id: Unsigned31
    which_broker_when_consume_slowly: Unsigned31
    notify_consumer_ids_changed_enable: bool
    group_sys_flag: Unsigned31
    consume_timeout_minute: Unsigned31
    attributes: Attributes
    subscriptions: dict[TopicName, tuple[Word, ExpressionText, Signed64]]
    """Topic -> (expression_type, expression, version)."""


class OffsetRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The committed offset of one consumer group in one queue."""

    group: NewGroup
    topic: NewTopic
    queue_id: QueueId
    offset: Unsigned63
    """The offset of the next message that the group will consume."""


class FurtherGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offsets in the queues of a further group of brokers. The fields mean the same as in `Metadata`."""

    cluster_uuid: str
    group_id: GroupNumber
    applied_index: int
    offsets: list[OffsetRecord]
    ends: dict[str, list[int]]
    topic_ids: dict[str, int]

    def identity(self, topic: str) -> TopicIdentity | None:
        """Returns the identity of the topic with that name in this group of brokers; None if the topic is not there."""
        found = self.topic_ids.get(topic)
        return None if found is None else TopicIdentity(self.cluster_uuid, self.group_id, found)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON document with topics, groups and offsets."""

    kind: str = KIND
    schema: int = SCHEMA
    cluster_uuid: str
    applied_index: int
    """Index of the last log entry that is certainly reflected in the document."""
    topics: list[TopicRecord]
    groups: list[ConsumerGroupRecord]
    offsets: list[OffsetRecord]
    ends: dict[str, list[int]]
    """Topic -> the offset after the last message of each queue. It is not imported. It shows which consumer offsets are
    valid."""
    group_id: int = 0
    """The number of the group of brokers. Together with `cluster_uuid` and `topic_ids` it identifies the topics to
    which the offsets belong."""
    topic_ids: dict[str, int] = {}
    """Topic -> its id. The cluster never gives an id to a second topic. {} in documents of format 10."""
    further: list[FurtherGroup] = []
    """The offsets of the further groups of brokers. A document of the whole cluster has them; one from a single node
    does not."""

    def identity(self, topic: str) -> TopicIdentity | None:
        """Returns the identity of the topic with that name; None if the document does not have its id."""
        found = self.topic_ids.get(topic)
        return None if found is None else TopicIdentity(self.cluster_uuid, self.group_id, found)


def export(state: BrokerState, cluster_uuid: str, group_id: int = 0) -> Metadata:
    """Returns the document for a state. Entries that are applied during the call may be reflected in a part of it
    only."""
    applied = state.applied.index
    rows = state.broker_groups.by_number
    topics = sorted((each for each in state.topics.values() if living_place(rows, each)), key=lambda topic: topic.name)
    groups = sorted(state.groups.values(), key=lambda group: group.name)
    return Metadata(
        cluster_uuid=cluster_uuid,
        applied_index=applied,
        topics=[topic_record(topic, living_place(rows, topic)) for topic in topics],
        groups=[group_record(group) for group in groups],
        offsets=[offset for group in groups for offset in _offsets(state, group.name)],
        ends={
            topic.name: [state.max_offset(topic.id, queue) for queue in range(state.stored_queues(topic))]
            for topic in topics
        },
        group_id=group_id,
        topic_ids={topic.name: topic.id for topic in topics},
    )


def topic_record(topic: TopicConfig, living: Place) -> TopicRecord:
    """Returns the document's record of a topic. `living` are the topic's queues in groups of brokers that have not
    retired. Queues in other groups are left out, because no cluster could create them."""
    if not topic.place:
        return TopicRecord(**topic.to_map())
    place = place_rows(living)
    most = {"read_queues": max(read for _, read, _ in place), "write_queues": max(write for *_, write in place)}
    return TopicRecord(**(topic.to_map() | most), place=place)


def as_text(document: Metadata) -> bytes:
    """Returns the text of a file with the document. For a cluster of one group, it is a text that earlier releases can
    read."""
    told = msgspec.to_builtins(document)
    if not document.further:
        del told["further"]
    return msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"


def of_cluster(told: Mapping[int, Metadata]) -> Metadata:
    """Returns one document for the whole cluster, made of the groups' own: group of brokers -> its document."""
    first, *others = (told[group] for group in sorted(told))
    if not others:
        return first
    further = [
        FurtherGroup(**{name: getattr(each, name) for name in FurtherGroup.__struct_fields__}) for each in others
    ]
    return msgspec.structs.replace(first, further=further)


def group_record(group: GroupConfig) -> ConsumerGroupRecord:
    """Returns the document's record of a consumer group."""
    return ConsumerGroupRecord(**group.to_map(), subscriptions=dict(group.subscriptions))


def _offsets(state: BrokerState, group: str) -> list[OffsetRecord]:
    records = []
    for topic_id, queue_id, offset in state.offsets_of_group(group):
        topic = state.topics_by_id.get(topic_id)
        if topic is not None:
            records.append(OffsetRecord(group=group, topic=topic.name, queue_id=queue_id, offset=offset))
    return records


class _Head(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def read(data: bytes, name: str) -> Metadata:
    """Returns the document in `data`, the contents of a file called `name`. Raises LocalError if it is no such
    document, is damaged, or has an unknown format."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind != KIND:
            raise msgspec.DecodeError(f"its kind is {head.kind!r}, not {KIND!r}")
        if not is_known(head.schema, SCHEMA):
            raise LocalError(*why_unknown(name, head.schema, SCHEMA), ExitCode.REFUSED)
        return msgspec.json.decode(data, type=Metadata)
    except MALFORMED as error:
        raise LocalError(
            f"{name} is no metadata export", str(error), "raftmq metadata export --to FILE", ExitCode.USAGE
        ) from None


class Change(NamedTuple):
    """One line of the difference between a document and the cluster, for people."""

    sign: str
    """`+`: would be created. `~`: would be changed. `!`: is in the document, but will not be imported."""
    what: str


class Plan(NamedTuple):
    """The changes that an import would make: the records to write, and a line about each change."""

    topics: list[TopicRecord]
    groups: list[ConsumerGroupRecord]
    offsets: list[OffsetRecord]
    changes: list[Change]
    kept: int
    """Number of topics and groups that only the cluster has. An import does not change them."""
    further: Mapping[int, list[OffsetRecord]] = MappingProxyType({})
    """Number of a further group of brokers -> the offsets to set in its queues."""

    @property
    def wanted(self) -> int:
        """The number of topics, groups and offsets that would be created or changed."""
        offsets = len(self.offsets) + sum(len(each) for each in self.further.values())
        return len(self.topics) + len(self.groups) + offsets


Record = TypeVar("Record", TopicRecord, ConsumerGroupRecord)


def plan(wanted: Metadata, present: Metadata) -> Plan:
    """Returns what an import of `wanted` would change. `present` is the document of the cluster as it is now."""
    changes: list[Change] = []
    topics = _differing(wanted.topics, present.topics, "topic", changes)
    groups = _differing(wanted.groups, present.groups, "group", changes)
    offsets = _offset_changes(wanted, present, changes)
    further, known = dict[int, list[OffsetRecord]](), {each.group_id: each for each in present.further}
    for each in wanted.further:
        if (there := known.get(each.group_id)) is not None:
            further[each.group_id] = _offset_changes(each, there, changes)
        elif each.offsets:
            why = f"{len(each.offsets)} offsets are left out, the cluster does not have it"
            changes.append(Change("!", f"group of brokers {each.group_id}: {why}"))
    kept = sum(
        len({record.name for record in has} - {record.name for record in wants})
        for has, wants in ((present.topics, wanted.topics), (present.groups, wanted.groups))
    )
    return Plan(topics, groups, offsets, changes, kept, further)


def _differing(wanted: Sequence[Record], present: Sequence[Record], what: str, changes: list[Change]) -> list[Record]:
    known = {record.name: record for record in present}
    differing = []
    for record in wanted:
        old = known.get(record.name)
        if isinstance(old, TopicRecord) and not getattr(record, "place", ()):
            old = msgspec.structs.replace(old, place=[])  # a document without places does not move a topic
        if old == record:
            continue
        differing.append(record)
        if old is None:
            changes.append(Change("+", f"{what} {record.name}"))
        else:
            changes.append(Change("~", f"{what} {record.name}: {_fields(old, record)}"))
    return differing


def _fields(old: Record, new: Record) -> str:
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in old.__struct_fields__)
    return ", ".join(f"{name} {before!r} -> {after!r}" for name, before, after in pairs if before != after)


def _offset_changes(
    wanted: Metadata | FurtherGroup, present: Metadata | FurtherGroup, changes: list[Change]
) -> list[OffsetRecord]:
    """Returns the offsets to set, and adds a line about each to `changes`. An offset is left out if it lies beyond the
    queue's end, or belongs to another topic that had the same name: a consumer that started there would miss
    messages."""
    has = {(each.group, each.topic, each.queue_id): each.offset for each in present.offsets}
    taken = []
    for record in wanted.offsets:
        key = (record.group, record.topic, record.queue_id)
        ends = present.ends.get(record.topic, [])
        now, end = has.get(key), ends[record.queue_id] if record.queue_id < len(ends) else 0
        queue = number_of(present.group_id or FIRST_GROUP, record.queue_id)
        where = f"offset of {record.group} in {record.topic}/{queue_text(queue)}"
        if now == record.offset:
            continue
        if record.offset > end:
            changes.append(Change("!", f"{where}: {record.offset} is left out, the queue ends at {end} here"))
            continue
        if another := why_another(wanted.identity(record.topic), present.identity(record.topic)):
            changes.append(Change("!", f"{where}: {record.offset} is left out, {another}"))
            continue
        taken.append(record)
        again = min(now or 0, end) - record.offset
        back = f" (back: {again} again)" if again > 0 else ""
        changes.append(Change("~" if now is not None else "+", f"{where}: {now or 0} -> {record.offset}{back}"))
    return taken


def commands_for(record: TopicRecord | ConsumerGroupRecord) -> list[Command]:
    """Returns the state machine's commands that create or change a topic or a group so that it equals the record."""
    config = msgspec.to_builtins(record)
    if isinstance(record, TopicRecord):
        if record.place:  # `place` has the numbers of queues
            del config["read_queues"], config["write_queues"]
        return [CreateTopic(config, if_absent=False)]
    rows = [(topic, *row) for topic, row in config.pop("subscriptions").items()]
    return [PutGroup(config, if_absent=False), Subscribe(record.name, rows)]
