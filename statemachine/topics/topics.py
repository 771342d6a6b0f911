"""Topics: their configuration, and the ids by which all other rows name them.

An id is assigned when a topic is created and never reused, so rows of a deleted topic cannot be mistaken for those of a
later topic with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self, cast

import msgpack
from msgspec import Meta

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.cluster_wide.broker_groups import BrokerGroup, BrokerGroups, is_inactive, is_retired
from statemachine.cluster_wide.cluster_level import ClusterLevel
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import (
    Command,
    CommandResult,
    InvalidCommandError,
    check_fields,
    checked_bool,
    checked_int,
    checked_name,
    checked_str,
    checked_str_map,
    converted,
    done,
    not_found,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import CHANGES_LEVEL, GATHERS_LEVEL, GROUPS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META, TOPICS
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

NAME_LENGTH_MAX = 256
"""The most characters of a topic's name that limits.topic_length_max may allow (RocketMQ: 127). A command with a longer
name creates no topic."""
DERIVED_NAME_LENGTH_MAX = 255
"""The most characters of the names %RETRY%group and %DLQ%group."""
DERIVED_NAMES = ("%RETRY%", "%DLQ%")
"""The beginnings of names of topics that belong to a consumer group."""
OWN_TOPICS = (*DERIVED_NAMES, "TRANS_CHECK_MAX_TIME_TOPIC")
"""The beginnings of names of topics that a group of brokers creates for itself, even while it drains: DERIVED_NAMES,
and the topic for messages whose transactions nobody ends."""
QUEUES_DEFAULT = 8
QUEUES_MAX = 65_535
PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
DEDUP_MODES = ("off", "retry", "strict")
ACK_LEVELS = ("leader", "quorum", "quorum+fsync", "all")
RETENTION = "retention.ms"
RETENTION_DIGITS_MAX = 15
BACKLOG_POLICY = "backlog.policy"
BACKLOG_POLICIES = ("refuse", "evict")

_FIELDS = frozenset({"name", "read_queues", "write_queues", "perm", "order", "sys_flag", "attributes"})
_QUEUES = ("read_queues", "write_queues")
_PLACE = "place"
_FIELDS_OF_CHANGES = 3
"""The number of fields that CHANGES_LEVEL added to a topic's row, after those of _FIELDS."""
_Number = Annotated[int, Meta(ge=FIRST_GROUP, le=GROUPS_MAX)]
_Queues = Annotated[int, Meta(ge=0, le=QUEUES_MAX)]
PlaceRow = tuple[_Number, Annotated[int, Meta(ge=1, le=QUEUES_MAX)], _Queues]
"""The queues of a topic in one group of brokers, as rows contain them: (group, read queues, write queues). From level
17 on, the number of write queues may be 0."""
PlaceRows = Annotated[tuple[PlaceRow, ...], Meta(min_length=1, max_length=GROUPS_MAX)]
_Wishes = Annotated[tuple[tuple[_Number, _Queues, _Queues], ...], Meta(min_length=1, max_length=GROUPS_MAX)]
"""The queues of a topic in several groups of brokers, as commands contain them: (group, read queues, write queues) of
each group. If both numbers are 0, the topic leaves the group."""
Place = Mapping[int, tuple[int, int]]
"""The queues of a topic: number of a group of brokers -> (read queues, write queues)."""


class CreateTopic(Command, tag="create_topic", frozen=True):
    """Creates a topic, or changes the named fields of an existing one unless `if_absent` is set. Apply gives the id."""

    OF_TRUTH: ClassVar[bool] = True
    config: Mapping[str, object]
    """The name, and fields of `TopicConfig`. From level 14 on, `place` ([[group, read queues, write queues], ...]) sets
    the topic's queues in these groups of brokers; its queues in other groups stay. `read_queues` and `write_queues`
    must then be left out. From level 17 on, the write queues of a group may be 0; if both numbers are 0, the topic
    leaves the group. Without `place`, `read_queues` and `write_queues` apply to all groups in which the topic is. A new
    topic is then in the first group."""
    if_absent: bool


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic (RocketMQ's TopicConfig), and its id. `attributes` contains the attributes that
    clients set. `dedup`, `retention_ms` and `evicts_backlog` each read one of them."""

    id: int
    name: str
    read_queues: int = QUEUES_DEFAULT
    """The number of queues, in the group of brokers whose state it is, from which consumers read; 0 if the topic has no
    queues there. `write_queues` are those of producers."""
    write_queues: int = QUEUES_DEFAULT
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0
    """Log time at which the topic was created; 0 if that was before the cluster had level 12."""
    changed_ms: int = 0
    """Log time of the topic's last change; 0 if that was before the cluster had level 12."""
    changed_by: str = ""
    """The author of the topic's last change; "" if no person asked for it."""
    place: Place = field(default_factory=dict)
    """The queues of the topic in each group of brokers; empty in the state of the first group if it has all of them."""

    @property
    def queues_of_groups(self) -> Place:
        """The queues of the topic in each group of brokers in which it has some."""
        return self.place or {FIRST_GROUP: (self.read_queues, self.write_queues)}

    @property
    def written_groups(self) -> set[int]:
        """The groups of brokers in which producers write to the topic. In its other groups the topic is only read."""
        return {group for group, (_, write) in self.queues_of_groups.items() if write}

    @property
    def is_read_out(self) -> bool:
        """True if the queues of the topic in the group of brokers whose state it is are only read."""
        return bool(self.read_queues and not self.write_queues)

    @property
    def dedup(self) -> str:
        """The topic's detection of repeated sends: off, retry or strict (docs/adr/0011)."""
        return self.attributes.get("dedup", "retry")

    @property
    def retention_ms(self) -> int | None:
        """The time, in milliseconds of log time, for which the topic's messages are kept (0: without end); None if the
        cluster's general retention applies."""
        text = self.attributes.get(RETENTION, "")
        return int(text) if is_retention(text) else None

    @property
    def evicts_backlog(self) -> bool:
        """True if the topic gives up its oldest messages when it has more than a quota allows; it refuses new ones
        otherwise (docs/adr/0115)."""
        return self.attributes.get(BACKLOG_POLICY) == "evict"

    @property
    def queues(self) -> int:
        """The number of queues that have rows or may get some: the larger of `read_queues` and `write_queues`."""
        return max(self.read_queues, self.write_queues)

    def to_map(self) -> dict[str, Any]:
        """Returns the `config` argument of a create_topic command that recreates this topic, with its queues in the
        group of brokers whose state it is, and no others."""
        return {
            "name": self.name,
            "read_queues": self.read_queues,
            "write_queues": self.write_queues,
            "perm": self.perm,
            "order": self.order,
            "sys_flag": self.sys_flag,
            "attributes": dict(self.attributes),
        }


def check_topic_name(name: Any) -> str:
    """Returns `name` if it is a valid name of a topic; otherwise raises InvalidCommandError (remoting code 29)."""
    derived = checked_str(name, "topic name").startswith(DERIVED_NAMES)
    return checked_name(name, "topic name", DERIVED_NAME_LENGTH_MAX if derived else NAME_LENGTH_MAX)


def is_retention(text: str) -> bool:
    """Returns True if the text is a valid value of the topic attribute `retention.ms`."""
    return text.isascii() and text.isdigit() and len(text) <= RETENTION_DIGITS_MAX


def check_topic_config(base: TopicConfig, config: Mapping[str, object]) -> TopicConfig:
    """Returns `base` with the fields in `config` set, after checking them. Raises InvalidCommandError, which names the
    field."""
    attributes = checked_str_map(config.get("attributes", base.attributes), "attributes")
    if attributes.get("dedup", "retry") not in DEDUP_MODES:
        raise InvalidCommandError(f"attribute dedup must be one of {', '.join(DEDUP_MODES)}")
    if attributes.get("ack.level", "quorum+fsync") not in ACK_LEVELS:
        raise InvalidCommandError(f"attribute ack.level must be one of {', '.join(ACK_LEVELS)}")
    kept = attributes.get(RETENTION, "0")
    if not is_retention(kept):
        raise InvalidCommandError(
            f"attribute {RETENTION} must be a whole number of milliseconds, 0 for ever, not {kept!r}"
        )
    queues: dict[str, Any] = {
        name: checked_int(config[name], name, 1, QUEUES_MAX) for name in _QUEUES if name in config
    }
    return replace(
        base,
        **queues,
        perm=checked_int(config.get("perm", base.perm), "perm", 0, 15),
        order=checked_bool(config.get("order", base.order), "order"),
        sys_flag=checked_int(config.get("sys_flag", base.sys_flag), "sys_flag", 0, keys.U32_MAX),
        attributes=attributes,
    )


def place_rows(place: Place) -> list[PlaceRow]:
    """Returns a place in the form of commands and rows: [(group, read queues, write queues), ...], groups ascending."""
    return [(group, *queues) for group, queues in sorted(place.items())]


class Topics(Family):
    """All topics. Any thread may read `by_name` and `by_id` at any time. The changes of a batch of entries appear there
    once it is written. During apply, other families call `current`, `exists` and `has_queue`, which include the batch's
    changes."""

    ROWS = ((TOPICS, b""), (META, meta_keys.NEXT_TOPIC_ID_KEY))
    LATER_ROWS = (
        LaterRows(CHANGES_LEVEL, TOPICS, is_later=lambda row: len(msgpack.unpackb(row)) > len(_FIELDS)),
        LaterRows(
            GROUPS_LEVEL, TOPICS, is_later=lambda row: len(msgpack.unpackb(row)) > len(_FIELDS) + _FIELDS_OF_CHANGES
        ),
        LaterRows(GATHERS_LEVEL, TOPICS, is_later=lambda row: _gathers(_unpack_row(0, row))),
    )

    def __init__(
        self,
        kv: KV,
        level: Callable[[], int] = lambda: BASELINE,
        journal: TruthJournal | None = None,
        broker_groups: BrokerGroups | None = None,
    ) -> None:
        """`level` returns the level of the cluster at the command that is being applied. The journal and the groups of
        brokers are read from the rows if they are None."""
        self._level = level
        self._journal = journal or TruthJournal(kv)
        self._broker_groups = broker_groups or BrokerGroups(kv, self._journal)
        found = [_unpack_row(keys.U32.unpack(key)[0], value) for key, value in kv.scan(TOPICS, keys.FIRST, keys.LAST)]
        row = kv.get(META, meta_keys.NEXT_TOPIC_ID_KEY)
        self._next_id: int = keys.U32.unpack(row)[0] if row is not None else 1
        self._ids = {topic.id: topic for topic in found}
        """The topics by id, with the changes of the batch being applied."""
        self.changed: dict[str, TopicConfig | None] = {}
        """Topics that the batch being applied has changed; None for a deleted one."""
        self.by_name = SortedMap((topic.name, topic) for topic in found)
        self.by_id = SortedMap(self._ids)
        self.queues = sum([topic.queues for topic in found])
        """The number of queues of all topics together."""
        self.gathered = sum(map(_gathers, found))
        """The number of topics without write queues in one or more of their groups of brokers."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        level = families[ClusterLevel].staged
        return cls(families.kv, level, families[TruthJournal], families[BrokerGroups])

    def current(self, name: str) -> TopicConfig | None:
        """Returns the topic, with the changes of the batch being applied (apply thread only); None if there is none."""
        return self.changed[name] if name in self.changed else self.by_name.get(name)

    def exists(self, topic_id: int) -> bool:
        """Returns True if the topic exists, with the changes of the batch being applied (apply thread only)."""
        return topic_id in self._ids

    def has_queue(self, topic_id: int, queue_id: int) -> bool:
        """Returns True if the topic exists with that queue, with the changes of the batch being applied (apply thread
        only)."""
        topic = self._ids.get(topic_id)
        return topic is not None and queue_id < topic.queues

    @applies(CreateTopic)
    def create(self, stage: Stage, command: CreateTopic) -> CommandResult:
        """Creates the topic, or updates the given fields of an existing one. With `if_absent`, an existing topic stays
        as it is, and the result is `exists`. The result's value is the topic's TopicConfig, from level 12 on with time
        and author of the change."""
        config = command.config
        check_fields(config, _FIELDS | {_PLACE} if self._level() >= GROUPS_LEVEL else _FIELDS)
        name = check_topic_name(config.get("name"))
        existing = self.current(name)
        topic = check_topic_config(existing or TopicConfig(self._next_id, name), config)
        if _PLACE in config or topic.place:
            topic = self._placed(topic, self._place(existing, config), topic.id)
        if command.if_absent and existing is not None:
            return CommandResult(True, "exists", existing)
        if self._level() >= CHANGES_LEVEL:
            stamp = stage.stamp
            made_ms = stamp.now_ms if existing is None else topic.created_ms
            topic = replace(topic, created_ms=made_ms, changed_ms=stamp.now_ms, changed_by=stamp.author)
        self._put(stage, topic)
        return done(topic)

    def copy(self, stage: Stage, topic: TopicConfig) -> None:
        """Stores a topic that was copied from the first group. `topic.id` is ignored: the topic keeps its id in this
        group, or gets the next one. Its numbers of queues are those of this group."""
        existing = self.current(topic.name)
        topic = self._placed(topic, topic.place, self._next_id if existing is None else existing.id)
        if topic != existing:
            self._put(stage, topic)

    def delete(self, stage: Stage, name: str) -> CommandResult:
        """Deletes the topic's configuration; the caller removes its other rows. The result's value is its last
        TopicConfig. The result is `not_found` if there is no such topic."""
        topic = self.current(name)
        if topic is None:
            return not_found(f"no topic {name!r}")
        del self._ids[topic.id]
        self.changed[topic.name] = None
        stage.delete(TOPICS, keys.U32.pack(topic.id))
        self._journal.end(stage, TruthKind.TOPIC, topic.name)
        return done(topic)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            changed, self.changed = self.changed, {}
            for name, topic in changed.items():
                self._publish_one(self.by_name.get(name), topic)

    def _publish_one(self, before: TopicConfig | None, topic: TopicConfig | None) -> None:
        if before is not None and (topic is None or topic.id != before.id):
            self.by_id.remove(before.id)
        if topic is not None:
            self.by_id.put(topic.id, topic)
            self.by_name.put(topic.name, topic)
        elif before is not None:
            self.by_name.remove(before.name)
        self.queues += (0 if topic is None else topic.queues) - (0 if before is None else before.queues)
        self.gathered += (topic is not None and _gathers(topic)) - (before is not None and _gathers(before))

    def _place(self, existing: TopicConfig | None, config: Mapping[str, object]) -> Place:
        """Returns the queues of the topic `existing` (None: a new one) in all groups after a command with the
        configuration `config`. Raises InvalidCommandError if the topic may not have these queues."""
        before = {} if existing is None else existing.queues_of_groups
        given = [name for name in _QUEUES if name in config]
        if _PLACE not in config:
            read, write = [checked_int(config.get(name, 0), name, 0, QUEUES_MAX) for name in _QUEUES]
            return {group: (read or old[0], old[1] and (write or old[1])) for group, old in before.items()}
        if given:
            raise InvalidCommandError(f"place says the queues of each group: {' and '.join(given)} must be left out")
        rows = converted(config[_PLACE], _Wishes)
        known = self._broker_groups.staged
        unknown = [group for group, *_ in rows if group != FIRST_GROUP and group not in known]
        if unknown:
            raise InvalidCommandError(f"place: there is no group {unknown[0]}")
        written = [group for group, _, write in rows if write]
        if why := no_further(known, str(config["name"]), written, before):
            raise InvalidCommandError(f"place: {why}")
        if any(not read or not write for _, read, write in rows) and self._level() < GATHERS_LEVEL:
            raise InvalidCommandError("place: a topic has at least one queue to read and one to write in each group")
        if any(write and not read for _, read, write in rows):
            raise InvalidCommandError("place: nobody would read what is written there")
        if any(before.get(group, (0, 0))[1] for group, read, _ in rows if not read):
            raise InvalidCommandError("place: a topic leaves a group in which producers do not write to it any more")
        place = {**before, **{group: (read, write) for group, read, write in rows}}
        if not any(write for _, write in place.values()):
            raise InvalidCommandError("place: producers need queues in some group")
        return {group: queues for group, queues in place.items() if queues != (0, 0)}

    def _placed(self, topic: TopicConfig, place: Place, topic_id: int) -> TopicConfig:
        """Returns `topic` with the queues in `place` and the id `topic_id`."""
        own = self._broker_groups.own
        read_queues, write_queues = place.get(own, (0, 0))
        # The first group leaves out the place of a topic that is only there. The row is then the same as in a cluster
        # with one group.
        kept = {} if own == FIRST_GROUP and place.keys() == {FIRST_GROUP} else dict(sorted(place.items()))
        return replace(topic, id=topic_id, read_queues=read_queues, write_queues=write_queues, place=kept)

    def _put(self, stage: Stage, topic: TopicConfig) -> None:
        if topic.id == self._next_id:
            if self._next_id >= keys.U32_MAX:
                raise InvariantViolationError(f"topic ids are used up: the next would be {self._next_id}")
            self._next_id += 1
            stage.put(META, meta_keys.NEXT_TOPIC_ID_KEY, keys.U32.pack(self._next_id))
        stage.put(TOPICS, keys.U32.pack(topic.id), _pack_row(topic))
        self._ids[topic.id] = topic
        self.changed[topic.name] = topic
        self._journal.note(stage, TruthKind.TOPIC, topic.name)


def _gathers(topic: TopicConfig) -> bool:
    """Returns True if the topic has no write queues in one or more of its groups of brokers."""
    return any(not write for _, write in topic.place.values())


def living_place(groups: Mapping[int, BrokerGroup], topic: TopicConfig) -> Place:
    """Returns the queues of a topic in the groups of brokers that have not retired. `groups`:
    `BrokerGroups.by_number`."""
    place = topic.queues_of_groups
    if not any(is_retired(groups, number) for number in place):
        return place
    return {number: queues for number, queues in place.items() if not is_retired(groups, number)}


def no_further(groups: Mapping[int, BrokerGroup], topic: str, wanted: Iterable[int], has: Container[int]) -> str:
    """Returns the reason why a topic may not have queues in one of the `wanted` groups of brokers; "" if it may. A
    group that drains may keep the topics that it has (`has`: the groups in which the topic is), and may create topics
    of its own (OWN_TOPICS), for retries of its messages. A group that has retired takes no topic. `groups`:
    `BrokerGroups.by_number`."""
    for number in wanted:
        if is_retired(groups, number):
            return f"group {number} has retired, and takes no topic"
        if is_inactive(groups, number) and number not in has and not topic.startswith(OWN_TOPICS):
            return f"group {number} is drained, and takes no further topic"
    return ""


def place_in(known: TopicConfig | None, groups: Iterable[int], read: int, write: int) -> list[list[int]]:
    """Returns the field `place` of a `CreateTopic` after which the topic has `read` and `write` queues in each of these
    groups of brokers. A group in which the topic was only read keeps its number of read queues if that is larger."""
    place = {} if known is None else known.queues_of_groups
    read_out = {group: queues for group, (queues, written) in place.items() if not written}
    return [[group, max(read, read_out.get(group, 0)), write] for group in groups]


def placed_in(group: int, config: Mapping[str, object], known: TopicConfig | None) -> Mapping[str, object]:
    """Converts the configuration of a `CreateTopic` with `read_queues` or `write_queues`, which apply to all groups of
    brokers, into one whose `place` sets them in the group `group` alone. A configuration with `place`, or with neither
    number, is returned as it is. `known`: the present topic, None if it does not exist."""
    given = [cast("int | None", config.get(name)) for name in _QUEUES]
    if _PLACE in config or given == [None, None]:
        return config
    there = known.queues_of_groups.get(group, (None, None)) if known is not None else (None, None)
    read, write = (mine or was for mine, was in zip(given, there, strict=True))
    rest = {name: value for name, value in config.items() if name not in _QUEUES}
    return {**rest, _PLACE: [[group, read or write, write or read]]}


class TopicReads(Reads):
    """Read access to what a state holds about topics."""

    _topics = family_of(Topics)

    @property
    def topics(self) -> SortedMap[str, TopicConfig]:
        """Every topic by name. The apply thread changes the map while others read it; `SortedMap` says which keys an
        iteration meets."""
        return self._topics.by_name

    @property
    def topics_by_id(self) -> SortedMap[int, TopicConfig]:
        """Every topic by id, in a map that changes like `topics`."""
        return self._topics.by_id

    @property
    def queue_count(self) -> int:
        """The number of queues of all topics together."""
        return self._topics.queues

    @property
    def topics_gathered(self) -> int:
        """The number of topics without write queues in one or more of their groups of brokers."""
        return self._topics.gathered


def _pack_row(topic: TopicConfig) -> bytes:
    """Returns the packed row of a topic. If no entry of level 12 has touched the topic, the row has the shorter form of
    earlier levels."""
    fields: list[Any] = [
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.perm,
        topic.order,
        topic.sys_flag,
        dict(sorted(topic.attributes.items())),
    ]
    if topic.changed_ms or topic.place:
        fields += [topic.created_ms, topic.changed_ms, topic.changed_by]
    if topic.place:
        fields.append(place_rows(topic.place))
    row: bytes = msgpack.packb(fields)
    return row


def _unpack_row(topic_id: int, row: bytes) -> TopicConfig:
    fields = msgpack.unpackb(row)
    if len(fields) > len(_FIELDS) + _FIELDS_OF_CHANGES:
        fields[-1] = {group: (read, write) for group, read, write in fields[-1]}
    return TopicConfig(topic_id, *fields)
