"""The configuration that is equal on every node, stored as rows of the replicated state (docs/adr/0069).

A change names the version it was made for, so two changes that were checked against the same configuration cannot both
take effect. The leader that proposes a change knows the meaning and the range of each key
(`cluster.config.cluster_keys`); to this module keys are mere names, and values are integers, texts or booleans. The
state machine itself reads no setting: the leader writes everything that depends on a setting into entries.

The module also holds the list of nodes in maintenance, which an operator sets and which survives restarts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, NamedTuple, Self

import msgpack
from msgspec import Meta

from statemachine.cluster_wide.truth_journal import TruthJournal, TruthKind
from statemachine.commands import U64, Command, CommandResult, InvalidCommandError, Text, done
from statemachine.family import Families, Family, Reads, applies, family_of
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage

SettingValue = bool | int | str
KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
KEY_LENGTH_MAX = 96
VALUE_LENGTH_MAX = 4096
KEYS_MAX = 1024
CHANGES_KEPT = 256
"""The number of configuration changes whose rows are kept. Applying a change removes older ones."""
NODE_MAX = 65535


class Setting(NamedTuple):
    """The value of one configuration key."""

    value: SettingValue
    version: int
    """The version of the configuration whose change set the value."""


class Change(NamedTuple):
    """One change of the configuration, which made a new version of it."""

    version: int
    time_ms: int
    """Log time at which the change was proposed."""
    author: str
    reason: str
    values: Mapping[str, tuple[SettingValue | None, SettingValue]]
    """The changed keys: key -> (value before, None if it had none; new value)."""


class Maintenance(NamedTuple):
    """The maintenance of one node: the time at which it began, who began it, and why."""

    since_ms: int
    """Log time at which the maintenance began."""
    author: str
    reason: str


class SetConfig(Command, tag="set_config", frozen=True):
    """Sets keys of the cluster's configuration, if the configuration still has the version in the command."""

    OF_TRUTH: ClassVar[bool] = True
    version: U64
    now_ms: U64
    """Log time of the proposal."""
    author: Text
    reason: Text
    values: Mapping[str, object]


class SetMaintenance(Command, tag="set_maintenance", frozen=True):
    """Begins the maintenance of a node, or ends it if the reason is None."""

    node: Annotated[int, Meta(ge=1, le=NODE_MAX)]
    now_ms: U64
    """Log time of the proposal."""
    author: Text
    reason: Text | None


class Settings(Family):
    """The configuration of the cluster. The apply thread changes it; `by_key`, `version` and `maintenance` are replaced
    and never changed, so any thread may read them."""

    ROWS = (
        (META, meta_keys.SETTING_PREFIX),
        (META, meta_keys.SETTING_CHANGE_PREFIX),
        (META, meta_keys.MAINTENANCE_PREFIX),
    )

    def __init__(self, kv: KV, journal: TruthJournal | None = None) -> None:
        """The journal is read from the rows if it is None."""
        self._kv = kv
        self._journal = journal or TruthJournal(kv)
        self._rows: dict[str, Setting] = {
            key[len(meta_keys.SETTING_PREFIX) :].decode(): Setting(*msgpack.unpackb(row))
            for key, row in kv.scan(META, *meta_keys.SETTINGS)
        }
        self._nodes: dict[int, Maintenance] = {
            keys.U32.unpack_from(key, len(meta_keys.MAINTENANCE_PREFIX))[0]: Maintenance(*msgpack.unpackb(row))
            for key, row in kv.scan(META, *meta_keys.MAINTENANCES)
        }
        newest = kv.seek_last(META, *meta_keys.SETTING_CHANGES)
        copied = max([setting.version for setting in self._rows.values()], default=0)
        # Only the first group of brokers has rows of changes.
        self._version = copied if newest is None else meta_keys.setting_version(newest[0])
        self.changed: bool = True
        """True if the batch being applied has changed the configuration or a maintenance."""
        self.by_key: Mapping[str, Setting] = {}
        """The configuration: key -> setting. Empty until the cluster gets its first configuration."""
        self.version = 0
        """The version of the configuration, that of the last change; 0 before the first."""
        self.maintenance: Mapping[int, Maintenance] = {}
        """The nodes in maintenance: node id -> its maintenance. Nodes that have left the cluster since stay in it."""
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[TruthJournal])

    @property
    def current(self) -> Mapping[str, Setting]:
        """The configuration, with the changes of the batch being applied (apply thread only)."""
        return self._rows

    def changes(self, before: int, limit: int) -> Iterator[Change]:
        """Yields up to `limit` changes of the configuration with versions below `before`, newest first."""
        start, end = meta_keys.SETTING_CHANGES[0], meta_keys.setting_change_key(before)
        while limit > 0 and (row := self._kv.seek_last(META, start, end)) is not None:
            time_ms, author, reason, values = msgpack.unpackb(row[1])
            pairs = {key: (old, new) for key, (old, new) in values.items()}
            yield Change(meta_keys.setting_version(row[0]), time_ms, author, reason, pairs)
            end, limit = row[0], limit - 1

    @applies(SetConfig)
    def set(self, stage: Stage, command: SetConfig) -> CommandResult:
        """Sets keys, if the configuration still has the version in the command; otherwise the result is `conflict`.
        Keys that already have their value are left out; if none is left, there is no new version. The result's value is
        the version afterwards."""
        version, wanted = command.version, _checked_values(command.values)
        if version != self._version:
            told = f"the configuration was changed meanwhile: it has version {self._version}, not {version}"
            return CommandResult(False, "conflict", told)
        changed: dict[str, list[SettingValue | None]] = {}
        for key, value in wanted.items():
            known = self._rows.get(key)
            if known is None or known.value != value or type(known.value) is not type(value):
                changed[key] = [None if known is None else known.value, value]
        if len(self._rows.keys() | changed.keys()) > KEYS_MAX:
            raise InvalidCommandError(f"a configuration has at most {KEYS_MAX} keys")
        if not changed:
            return done(self._version)
        self._version += 1
        for key in changed:
            self._rows[key] = setting = Setting(wanted[key], self._version)
            stage.put(META, meta_keys.setting_key(key), msgpack.packb(list(setting)))
            self._journal.note(stage, TruthKind.SETTING, key)
        row = msgpack.packb([command.now_ms, command.author, command.reason, changed])
        stage.put(META, meta_keys.setting_change_key(self._version), row)
        if self._version > CHANGES_KEPT:
            stage.delete(META, meta_keys.setting_change_key(self._version - CHANGES_KEPT))
        self.changed = True
        return done(self._version)

    def copy(self, stage: Stage, key: str, setting: Setting) -> None:
        """Stores a key with the value and the version that it has in the first group of brokers."""
        self._rows[key] = setting
        self._version = max(self._version, setting.version)
        self.changed = True
        stage.put(META, meta_keys.setting_key(key), msgpack.packb(list(setting)))

    @applies(SetMaintenance)
    def maintain(self, stage: Stage, command: SetMaintenance) -> CommandResult:
        """Begins the maintenance of a node, or ends it if the reason is None. A maintenance that continues keeps the
        time at which it began. The result's value is True if anything changed."""
        node, reason = command.node, command.reason
        known = self._nodes.get(node)
        if reason is None:
            if known is None:
                return done(False)
            del self._nodes[node]
            stage.delete(META, meta_keys.maintenance_key(node))
        else:
            since_ms = command.now_ms if known is None else known.since_ms
            wanted = Maintenance(since_ms, command.author, reason)
            if known == wanted:
                return done(False)
            self._nodes[node] = wanted
            stage.put(META, meta_keys.maintenance_key(node), msgpack.packb(list(wanted)))
        self.changed = True
        return done(True)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self.changed:
            self.changed = False
            self.by_key, self.maintenance = dict(self._rows), dict(self._nodes)
            self.version = self._version


class SettingReads(Reads):
    """Read access to what a state holds about the configuration."""

    settings = family_of(Settings)
    """The configuration of the cluster."""


def _checked_values(values: Mapping[str, object]) -> dict[str, SettingValue]:
    """Returns the key-value map of a command, sorted by key. Raises InvalidCommandError if it is empty, too large, or
    has a malformed key or value."""
    if not values or len(values) > KEYS_MAX:
        raise InvalidCommandError(f"values must be a map of 1 to {KEYS_MAX} keys")
    return {key: checked_value(key, value) for key, value in sorted(values.items())}


def checked_value(key: str, value: object) -> SettingValue:
    """Returns the value if a key of the configuration may have it. Raises InvalidCommandError if it may not, or if
    `key` has not the form of a key."""
    if len(key) > KEY_LENGTH_MAX or not KEY.fullmatch(key):
        raise InvalidCommandError(f"a key is section.name, not {key!r}")
    if isinstance(value, str) and len(value) > VALUE_LENGTH_MAX:
        raise InvalidCommandError(f"{key} has {len(value)} characters, {VALUE_LENGTH_MAX} are allowed")
    if not isinstance(value, bool | int | str) or (type(value) is int and not -(2**63) <= value < 2**63):
        raise InvalidCommandError(f"{key} must be true, false, a whole number or a text, not {value!r}")
    return value
