"""Topics, groups and offsets as one JSON document, and the changes that importing one would make.

Importing never removes anything, and is idempotent.
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
    """A topic with everything that was ever set on it."""

    name: NewTopic
    read_queues: QueueCount
    write_queues: QueueCount
    perm: Perm
    order: bool
    sys_flag: Unsigned32
    attributes: Attributes
    place: list[tuple[GroupNumber, Unsigned31, Unsigned31]] = []
    """[group of brokers, read queues, write queues] of each that has queues of the topic; empty if the first one alone
    has. With it, `read_queues` and `write_queues` are the most that one of them has."""


class ConsumerGroupRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A consumer group with everything that was ever set on it, and its subscriptions."""

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
    """The progress of one group in one queue."""

    group: NewGroup
    topic: NewTopic
    queue_id: QueueId
    offset: Unsigned63
    """The offset of the next message that the group consumes."""


class FurtherGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offsets in the queues of a further group of brokers, as `Metadata` has those of the first."""

    cluster_uuid: str
    group_id: GroupNumber
    applied_index: int
    offsets: list[OffsetRecord]
    ends: dict[str, list[int]]
    topic_ids: dict[str, int]

    def identity(self, topic: str) -> TopicIdentity | None:
        """Returns the identity of the topic of that name in this group of brokers; None if it has none."""
        found = self.topic_ids.get(topic)
        return None if found is None else TopicIdentity(self.cluster_uuid, self.group_id, found)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON document with topics, groups and offsets."""

    kind: str = KIND
    schema: int = SCHEMA
    cluster_uuid: str
    applied_index: int
    """The last log entry that is reflected in the document."""
    topics: list[TopicRecord]
    groups: list[ConsumerGroupRecord]
    offsets: list[OffsetRecord]
    ends: dict[str, list[int]]
    """Topic -> the offset after the last message of each queue. It is not imported, but tells which consumer offsets
    are valid."""
    group_id: int = 0
    """The Raft group; with `cluster_uuid` and `topic_ids` it says in which topics the offsets count."""
    topic_ids: dict[str, int] = {}
    """Topic -> its id, which no other topic of the cluster ever gets. Documents of format 10 have none."""
    further: list[FurtherGroup] = []
    """The parts of the other groups of brokers, in a document of the whole cluster; a node tells of its own alone."""

    def identity(self, topic: str) -> TopicIdentity | None:
        """Returns the identity of the topic of that name; None if the document does not say."""
        found = self.topic_ids.get(topic)
        return None if found is None else TopicIdentity(self.cluster_uuid, self.group_id, found)


def export(state: BrokerState, cluster_uuid: str, group_id: int = 0) -> Metadata:
    """Returns the metadata that the state holds. Entries that are applied during the call may be reflected in a part of
    it."""
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
    """Converts a topic into its record in the document. `living`: its queues in groups of brokers that have not
    retired; no cluster gives a topic queues in others."""
    if not topic.place:
        return TopicRecord(**topic.to_map())
    place = place_rows(living)
    most = {"read_queues": max(read for _, read, _ in place), "write_queues": max(write for *_, write in place)}
    return TopicRecord(**(topic.to_map() | most), place=place)


def as_text(document: Metadata) -> bytes:
    """Returns the document as a file has it. That of a cluster of one group is as earlier releases read it."""
    told = msgspec.to_builtins(document)
    if not document.further:
        del told["further"]
    return msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"


def of_cluster(told: Mapping[int, Metadata]) -> Metadata:
    """Returns one document of what the groups of brokers tell, group -> its own."""
    first, *others = (told[group] for group in sorted(told))
    if not others:
        return first
    further = [
        FurtherGroup(**{name: getattr(each, name) for name in FurtherGroup.__struct_fields__}) for each in others
    ]
    return msgspec.structs.replace(first, further=further)


def group_record(group: GroupConfig) -> ConsumerGroupRecord:
    """Converts a group into its record in the document."""
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
    """Decodes the document from a file called `name`. Raises LocalError if there is none, or if it is damaged or of
    another format."""
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
    """One line of the difference between document and cluster."""

    sign: str
    """`+`: new; `~`: changed; `!`: left out."""
    what: str


class Plan(NamedTuple):
    """The changes that an import would make."""

    topics: list[TopicRecord]
    groups: list[ConsumerGroupRecord]
    offsets: list[OffsetRecord]
    changes: list[Change]
    kept: int
    """The number of topics and groups that only the cluster has; they stay as they are."""
    further: Mapping[int, list[OffsetRecord]] = MappingProxyType({})
    """The offsets in further groups of brokers: group -> those in its queues."""

    @property
    def wanted(self) -> int:
        """The number of things that would be created or changed."""
        offsets = len(self.offsets) + sum(len(each) for each in self.further.values())
        return len(self.topics) + len(self.groups) + offsets


Record = TypeVar("Record", TopicRecord, ConsumerGroupRecord)


def plan(wanted: Metadata, present: Metadata) -> Plan:
    """Compares the document `wanted` with `present`, the metadata of the cluster."""
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
            old = msgspec.structs.replace(old, place=[])  # a document of one group leaves a topic where it is
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
    """Returns the offsets to set, and adds their lines to `changes`. Leaves out offsets beyond a queue's end, and those
    that count in another topic of the same name, because a consumer that starts there would miss messages."""
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
    """Returns the state machine's commands that create or change the topic or group to match `record`."""
    config = msgspec.to_builtins(record)
    if isinstance(record, TopicRecord):
        if record.place:  # the place has all numbers of queues
            del config["read_queues"], config["write_queues"]
        return [CreateTopic(config, if_absent=False)]
    rows = [(topic, *row) for topic, row in config.pop("subscriptions").items()]
    return [PutGroup(config, if_absent=False), Subscribe(record.name, rows)]
