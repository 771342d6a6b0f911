"""Consumer groups: their configuration and their subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Self

import msgpack
from msgspec import Meta

from raftlog.format_versions import BASELINE
from raftmq_wire.names import NAME
from statemachine.cluster_wide.cluster_level import ClusterLevel
from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import (
    I64,
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
from statemachine.levels import SETTINGS_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import GROUPS, KV
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

NAME_LENGTH_MAX = 120
"""The most characters of a group's name, so that %RETRY%group is a topic name of at most 127 characters."""
GroupName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=rf"^{NAME.pattern}\Z")]
"""The name of a consumer group: 1 to NAME_LENGTH_MAX characters."""
Subscription = tuple[str, str, str, I64]
"""A subscription: (topic, expression_type, sub_string, sub_version)."""


class PutGroup(Command, tag="put_group", frozen=True):
    """Creates a consumer group, or changes the named fields of an existing one unless `if_absent` is set."""

    OF_TRUTH: ClassVar[bool] = True
    config: Mapping[str, object]
    """The group's name, and fields of `GroupConfig` with their values. `consume_broadcast_enable` has an effect from
    level 13 on."""
    if_absent: bool


class Subscribe(Command, tag="subscribe", frozen=True):
    """Replaces a group's subscriptions."""

    group: str
    subscriptions: Sequence[Subscription]


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configuration of a consumer group (RocketMQ's SubscriptionGroupConfig), and its subscriptions."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: str = ""
    """The group's groupRetryPolicy as the JSON text that the client sent; "" is the default ({"type":"CUSTOMIZED"})."""
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    refuses_broadcasts: bool = False
    """True if an entry of level 13 or later set `consume_broadcast_enable` to False. Before level 13 the value had no
    effect, and mqadmin sets False unless it is told otherwise."""
    subscriptions: Mapping[str, tuple[str, str, int]] = field(default_factory=dict)
    """The group's subscriptions: topic name -> (expression_type, sub_string, sub_version)."""

    def to_map(self) -> dict[str, Any]:
        """Returns the `config` argument of a put_group command that recreates this group, without its subscriptions."""
        config = asdict(self)
        del config["subscriptions"], config["refuses_broadcasts"]
        config["consume_broadcast_enable"] = not self.refuses_broadcasts
        return config

    @property
    def is_ignored_broadcast(self) -> bool:
        """True if `consume_broadcast_enable` is False and was set below level 13. It has no effect until it is set
        again."""
        return not (self.consume_broadcast_enable or self.refuses_broadcasts)


_CONFIG_FIELDS = tuple(f.name for f in fields(GroupConfig) if f.name not in ("subscriptions", "refuses_broadcasts"))


_SETTINGS = (*_CONFIG_FIELDS[1:], "refuses_broadcasts")


def group_settings(group: GroupConfig) -> list[Any]:
    """Returns the fields of a consumer group that groups of brokers copy (truth.py): its settings, without its
    subscriptions."""
    return [dict(value) if isinstance(value := getattr(group, name), Mapping) else value for name in _SETTINGS]


def settings_map(row: Sequence[object]) -> dict[str, object]:
    """Converts a list that `group_settings` returned back into a map from field to value. Raises InvalidCommandError
    if the list has another length."""
    if len(row) != len(_SETTINGS):
        raise InvalidCommandError(f"a group has {len(_SETTINGS)} settings, not {len(row)}")
    return dict(zip(_SETTINGS, row, strict=True))


def check_group_name(name: Any) -> str:
    """Returns `name` if it is a valid name of a consumer group; otherwise raises InvalidCommandError."""
    return checked_name(name, "group name", NAME_LENGTH_MAX)


def check_group_config(base: GroupConfig, config: Mapping[str, object]) -> GroupConfig:
    """Returns `base` with the fields in `config` set, after checking them. Raises InvalidCommandError, which names the
    field."""
    changes: dict[str, Any] = {}
    for name, value in config.items():
        default = getattr(base, name)
        if name == "attributes":
            changes[name] = checked_str_map(value, name)
        elif isinstance(default, bool):
            changes[name] = checked_bool(value, name)
        elif isinstance(default, int):
            changes[name] = checked_int(value, name, -1 if name == "retry_max_times" else 0, 2**31 - 1)
        else:
            changes[name] = checked_str(value, name)
    return replace(base, **changes)


class Groups(Family):
    """All consumer groups. Any thread may read `by_name` at any time. The changes of a batch of entries appear there
    once it is written. During apply, other families call `current` and `exists`, which include the batch's changes."""

    ROWS = ((GROUPS, b""),)
    LATER_ROWS = (
        LaterRows(SETTINGS_LEVEL, GROUPS, is_later=lambda row: len(msgpack.unpackb(row)) > len(_CONFIG_FIELDS)),
    )

    def __init__(self, kv: KV, journal: TruthJournal, level: Callable[[], int] = lambda: BASELINE) -> None:
        """`level` returns the level of the cluster at the command that is being applied."""
        self._journal = journal
        self._level = level
        rows = kv.scan(GROUPS, keys.FIRST, keys.LAST)
        self.changed: dict[str, GroupConfig | None] = {}
        """Groups that the batch being applied has changed; None for a deleted one."""
        self.by_name = SortedMap((key.decode("ascii"), _unpack_row(key, value)) for key, value in rows)

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TruthJournal], families[ClusterLevel].staged)

    def current(self, name: str) -> GroupConfig | None:
        """Returns the group, with the changes of the batch being applied (apply thread only); None if there is none."""
        return self.changed[name] if name in self.changed else self.by_name.get(name)

    def exists(self, name: str) -> bool:
        """Returns True if the group exists, with the changes of the batch being applied (apply thread only)."""
        return self.current(name) is not None

    @applies(PutGroup)
    def put(self, stage: Stage, command: PutGroup) -> CommandResult:
        """Creates the group, or updates the given fields of an existing one. With `if_absent`, an existing group stays
        as it is, and the result is `exists`. The result's value is the group's GroupConfig."""
        config = command.config
        check_fields(config, frozenset(_CONFIG_FIELDS))
        name = check_group_name(config.get("name"))
        existing = self.current(name)
        group = check_group_config(existing or GroupConfig(name), config)
        if command.if_absent and existing is not None:
            return CommandResult(True, "exists", existing)
        if self._level() >= SETTINGS_LEVEL and "consume_broadcast_enable" in config:
            group = replace(group, refuses_broadcasts=not group.consume_broadcast_enable)
        self._journal.note(stage, TruthKind.GROUP, name)
        return done(self._store(stage, group))

    def copy(self, stage: Stage, group: GroupConfig) -> None:
        """Stores a consumer group with the settings that it has in the first group of brokers. Its subscriptions here
        stay: each group of brokers learns them from the consumers."""
        existing = self.current(group.name) or GroupConfig(group.name)
        self._store(stage, replace(group, subscriptions=existing.subscriptions))

    @applies(Subscribe)
    def subscribe(self, stage: Stage, command: Subscribe) -> CommandResult:
        """Replaces the group's subscriptions. The result's value is its GroupConfig. The result is `not_found` if there
        is no such group."""
        group = self.current(command.group)
        if group is None:
            return not_found(f"no group {command.group!r}")
        subscriptions = {topic: (kind, text, version) for topic, kind, text, version in command.subscriptions}
        return done(self._store(stage, replace(group, subscriptions=dict(sorted(subscriptions.items())))))

    def delete(self, stage: Stage, name: str) -> CommandResult:
        """Deletes the configuration of the group `name`; the caller removes the group's offsets. The result is
        `not_found` if there is no such group. The result's value is its last GroupConfig."""
        group = self.current(name)
        if group is None:
            return not_found(f"no group {name!r}")
        self.changed[group.name] = None
        stage.delete(GROUPS, group.name.encode("ascii"))
        self._journal.end(stage, TruthKind.GROUP, name)
        return done(group)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            changed, self.changed = self.changed, {}
            for name, group in changed.items():
                if group is not None:
                    self.by_name.put(name, group)
                elif name in self.by_name:
                    self.by_name.remove(name)

    def _store(self, stage: Stage, group: GroupConfig) -> GroupConfig:
        self.changed[group.name] = group
        stage.put(GROUPS, group.name.encode("ascii"), _pack_row(group))
        return group


class GroupReads(Reads):
    """Read access to what a state holds about consumer groups."""

    _groups = family_of(Groups)

    @property
    def groups(self) -> SortedMap[str, GroupConfig]:
        """Every consumer group by name, in a map that changes like `TopicReads.topics`."""
        return self._groups.by_name


def _pack_row(group: GroupConfig) -> bytes:
    """Returns the packed row of a group. It has the form of earlier levels unless the group refuses broadcasting
    consumers."""
    config: dict[str, Any] = {name: getattr(group, name) for name in _CONFIG_FIELDS[1:]}
    config["attributes"] = dict(sorted(group.attributes.items()))
    subscriptions = {topic: list(row) for topic, row in sorted(group.subscriptions.items())}
    more = [True] if group.refuses_broadcasts else []
    row: bytes = msgpack.packb([*config.values(), subscriptions, *more])
    return row


def _unpack_row(key: bytes, row: bytes) -> GroupConfig:
    values = msgpack.unpackb(row)
    size = len(_CONFIG_FIELDS) - 1
    config, subscriptions, more = values[:size], values[size], values[size + 1 :]
    return GroupConfig(
        key.decode("ascii"),
        **dict(zip(_CONFIG_FIELDS[1:], config, strict=True)),
        refuses_broadcasts=more == [True],
        subscriptions={topic: tuple(row) for topic, row in subscriptions.items()},
    )
