"""Topics: their configuration, and the ids that stand for them in every other row.

An id is assigned when a topic is created and never reused, so rows of a deleted topic cannot be mistaken for those of a
later topic with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgpack

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from statemachine.cluster_wide.cluster_level import ClusterLevel
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
    done,
    not_found,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import CHANGES_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import KV, META, TOPICS
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

NAME_LENGTH_MAX = 256
"""The most characters of a topic's name that limits.topic_length_max may allow (RocketMQ: 127). A command with a longer
name creates no topic."""
DERIVED_NAME_LENGTH_MAX = 255
"""The most characters of the names %RETRY%group and %DLQ%group."""
QUEUES_DEFAULT = 8
QUEUES_MAX = 65_535
PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
DEDUP_MODES = ("off", "retry", "strict")
ACK_LEVELS = ("leader", "quorum", "quorum+fsync", "all")
RETENTION = "retention.ms"
RETENTION_DIGITS_MAX = 15

_FIELDS = frozenset({"name", "read_queues", "write_queues", "perm", "order", "sys_flag", "attributes"})


class CreateTopic(Command, tag="create_topic", frozen=True):
    """Creates a topic, or changes the named fields of an existing one unless `if_absent` is set. Apply gives the id."""

    config: Mapping[str, object]
    """The name, and fields of `TopicConfig`."""
    if_absent: bool


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic (RocketMQ's TopicConfig), and its id. `attributes` contains at least what clients
    set; `dedup` and `retention_ms` read one of them each."""

    id: int
    name: str
    read_queues: int = QUEUES_DEFAULT
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

    @property
    def dedup(self) -> str:
        """The topic's detection of repeated sends: off, retry or strict (docs/adr/0011)."""
        return self.attributes.get("dedup", "retry")

    @property
    def retention_ms(self) -> int | None:
        """The time in milliseconds of log time for which the topic's messages are kept (0: for ever); None if the
        cluster's general retention applies."""
        text = self.attributes.get(RETENTION, "")
        return int(text) if is_retention(text) else None

    @property
    def queues(self) -> int:
        """The number of queues that have rows or may get some: the larger of `read_queues` and `write_queues`."""
        return max(self.read_queues, self.write_queues)

    def to_map(self) -> dict[str, Any]:
        """Returns the `config` argument of a create_topic command that recreates this topic."""
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
    """Returns `name` if it is a valid name of a topic. Raises InvalidCommandError (remoting code 29)."""
    derived = checked_str(name, "topic name").startswith(("%RETRY%", "%DLQ%"))
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
    return replace(
        base,
        read_queues=checked_int(config.get("read_queues", base.read_queues), "read_queues", 1, QUEUES_MAX),
        write_queues=checked_int(config.get("write_queues", base.write_queues), "write_queues", 1, QUEUES_MAX),
        perm=checked_int(config.get("perm", base.perm), "perm", 0, 15),
        order=checked_bool(config.get("order", base.order), "order"),
        sys_flag=checked_int(config.get("sys_flag", base.sys_flag), "sys_flag", 0, keys.U32_MAX),
        attributes=attributes,
    )


class Topics(Family):
    """All topics. Any thread may read `by_name` and `by_id` at any time. The changes of a batch of entries appear there
    once it is written. Families that apply the batch ask `current`, `exists` and `has_queue`, which know them."""

    ROWS = ((TOPICS, b""), (META, keys.NEXT_TOPIC_ID_KEY))
    LATER_ROWS = (LaterRows(CHANGES_LEVEL, TOPICS, is_later=lambda row: len(msgpack.unpackb(row)) > len(_FIELDS)),)

    def __init__(self, kv: KV, level: Callable[[], int] = lambda: BASELINE) -> None:
        """`level` returns the level of the cluster at the command that is being applied."""
        self._level = level
        found = [_unpack_row(keys.U32.unpack(key)[0], value) for key, value in kv.scan(TOPICS, keys.FIRST, keys.LAST)]
        row = kv.get(META, keys.NEXT_TOPIC_ID_KEY)
        self._next_id: int = keys.U32.unpack(row)[0] if row is not None else 1
        self._ids = {topic.id: topic for topic in found}
        """The topics by id, with the changes of the batch being applied."""
        self.changed: dict[str, TopicConfig | None] = {}
        """Topics that the batch being applied has changed; None for a deleted one."""
        self.by_name = SortedMap((topic.name, topic) for topic in found)
        self.by_id = SortedMap(self._ids)
        self.queues = sum([topic.queues for topic in found])
        """The number of queues of all topics together."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes the family of a state."""
        return cls(families.kv, families[ClusterLevel].staged)

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
        """Creates the topic, or updates the given fields of an existing one. The result's value is its TopicConfig,
        with time and author of the entry from level 12 on."""
        config = command.config
        check_fields(config, _FIELDS)
        name = check_topic_name(config.get("name"))
        existing = self.current(name)
        topic = check_topic_config(existing or TopicConfig(self._next_id, name), config)
        if command.if_absent and existing is not None:
            return CommandResult(True, "exists", existing)
        if self._level() >= CHANGES_LEVEL:
            stamp = stage.stamp
            made_ms = stamp.now_ms if existing is None else topic.created_ms
            topic = replace(topic, created_ms=made_ms, changed_ms=stamp.now_ms, changed_by=stamp.author)
        if existing is None:
            if self._next_id >= keys.U32_MAX:
                raise InvariantViolationError(f"topic ids are used up: the next would be {self._next_id}")
            self._next_id += 1
            stage.put(META, keys.NEXT_TOPIC_ID_KEY, keys.U32.pack(self._next_id))
        stage.put(TOPICS, keys.U32.pack(topic.id), _pack_row(topic))
        self._remember(topic)
        return done(topic)

    def delete(self, stage: Stage, name: str) -> CommandResult:
        """Deletes the topic's configuration; the caller removes its rows in queues. The result's value is its last
        TopicConfig."""
        topic = self.current(name)
        if topic is None:
            return not_found(f"no topic {name!r}")
        del self._ids[topic.id]
        self.changed[topic.name] = None
        stage.delete(TOPICS, keys.U32.pack(topic.id))
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

    def _remember(self, topic: TopicConfig) -> None:
        self._ids[topic.id] = topic
        self.changed[topic.name] = topic


class TopicReads(Reads):
    """The reads of a state about topics."""

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
    if topic.changed_ms:
        fields += [topic.created_ms, topic.changed_ms, topic.changed_by]
    row: bytes = msgpack.packb(fields)
    return row


def _unpack_row(topic_id: int, row: bytes) -> TopicConfig:
    return TopicConfig(topic_id, *msgpack.unpackb(row))
