"""/v1/config: the configuration of the cluster, its changes, and the configuration of one node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ReadView, decided
from cluster.admin.node_interface import AdminPort
from cluster.admin.request_parsing import number_of
from cluster.admin.route import Route
from cluster.config.cluster_keys import CLUSTER_KEYS, FIELDS, USUAL, Value, advised, changed, cluster_values
from cluster.config.config import Config, ConfigError
from cluster.config.local_layout import node_object
from cluster.config.ranges import dangers
from cluster.config.reload import ReloadView
from cluster.config.source import toml_value
from cluster.replication.acks.ack_levels import Ack, default_level
from cluster.requests.verb import Serves
from cluster.runtime.request_limits import Note, Unsigned63
from raftlog.types import EntryId
from raftmq_wire.codes import RequestCode
from statemachine.cluster_wide.settings import Change, SetConfig, Settings
from statemachine.commands import Command

if TYPE_CHECKING:
    from cluster.admin.findings.finding import FindingsView


CHANGES_MAX: Final = 100
"""The most changes in one answer."""
BEFORE: Final = "before"
LIMIT: Final = "limit"
ConfigValues = msgspec.defstruct(
    "ConfigValues",
    [(key.replace(".", "__"), kind | msgspec.UnsetType, msgspec.UNSET) for key, kind in FIELDS.items()],
    rename={key.replace(".", "__"): key for key in FIELDS},
    namespace={"__doc__": "Keys of the cluster -> value, as in raftmq.toml."},
    frozen=True,
    forbid_unknown_fields=True,
)


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the cluster's configuration with its value in force."""

    key: str
    value: Value
    default: Value
    version: int
    """Version of the change that set the key. 0: no change has set it, and the value is from the answering node's
    file."""
    set_ms: int | None
    """Log time of that change in ms since 1970; null if the change is no longer remembered."""
    author: str | None


class ConfigView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/config`: settings that are equal on every node."""

    version: int
    """Number of changes so far. 0: each node still uses its own file."""
    settings: list[SettingView]
    overruled: list[str]
    """Keys that the answering node's file, or an environment variable, sets to another value. That value is ignored."""


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/config`."""

    values: ConfigValues  # type: ignore[valid-type]  # made from the table of keys
    """Key -> new value. All of them take effect with one log entry, or none does."""
    author: Note = ""
    """The name of the person who makes the change, for the history; "" for none."""
    reason: Note = ""
    version: Unsigned63 | None = None
    """The version on which the change is based. If it is not the present one, the change is refused. null accepts any
    version."""
    dry_run: bool = False
    """True to change nothing, and only return what would change."""
    force: bool = False
    """True to make the change even if it sets dangerous values. A dry run lists their dangers."""


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose value changed, or would change."""

    key: str
    before: Value | None
    """The value before; null if the key had none."""
    after: Value


class ConfigChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after the configuration was changed, or after a dry run."""

    node: int
    dry_run: bool
    """True if nothing was changed."""
    version: int
    """The version that this change made; the present version if nothing was written."""
    term: int | None
    index: int | None
    """Index of the log entry; null if nothing was written."""
    changes: list[ValueChange]
    warnings: list[str]
    """Sentences about data or functions that the change takes away."""


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the configuration."""

    version: int
    time_ms: int
    """Log time of the change."""
    author: str
    reason: str
    changes: list[ValueChange]


class HistoryOfConfig(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/config/history`: the remembered changes, the newest first."""

    version: int
    changes: list[VersionView]
    next: int | None
    """The value of `before` for the next page; null on the last page."""


async def get_config(call: Call) -> ConfigView:
    """Returns the settings that are equal on every node, and who set them when."""
    port, state = call.port, call.port.state
    settings = state.settings
    values = cluster_values(port.config)
    known = {change.version: change for change in settings.changes(settings.version + 1, settings.version)}
    rows = []
    for key in CLUSTER_KEYS:
        setting = settings.by_key.get(key)
        change = None if setting is None else known.get(setting.version)
        rows.append(
            SettingView(
                key=key,
                value=values[key] if setting is None else setting.value,
                default=USUAL[key],
                version=0 if setting is None else setting.version,
                set_ms=None if change is None else change.time_ms,
                author=None if change is None else change.author,
            )
        )
    return ConfigView(
        node=port.config.node.id,
        consistency=call.consistency,
        applied_index=state.applied.index,
        version=settings.version,
        settings=rows,
        overruled=[each.key for each in port.configuration.overruled()],
    )


async def change_config(call: Call) -> ConfigChanged:
    """Changes keys of the cluster's configuration on all nodes, with one entry."""
    wanted: ConfigChange = call.body
    port, settings = call.port, call.port.state.settings
    given: dict[str, Value] = msgspec.to_builtins(wanted.values)
    if not given:
        raise ApiError("bad_field", "field values is not valid: it names no key", "GET /v1/config lists the keys")
    if wanted.version is not None and wanted.version != settings.version:
        what = f"the configuration has version {settings.version}, and the change is meant for {wanted.version}"
        raise ApiError("refused", f"{what}: nothing was changed", "look at it, then decide again: raftmq config show")
    try:
        after, values = changed(port.config, given, _asks)
    except ConfigError as error:
        raise ApiError("refused", f"{error.what}: {error.why}; nothing was changed", error.fix) from None
    await call.watch.ask_around()
    for stop in why_it_stops(port.config, after, call.watch.nodes()):
        command = advised(port.config, {**values, stop.key: stop.least}, _asks)
        fix = f"{command}    (or {stop.instead})" if command and stop.instead else command or stop.instead
        raise ApiError("refused", f"{stop.why}; nothing was changed", fix)
    dangerous = list(dangers_of(port.config, after))
    if dangerous and not (wanted.force or wanted.dry_run):
        fix = "raftmq config set asks first; over HTTP, add force: true to the change"
        raise ApiError("refused", f"{'; '.join(dangerous)}: nothing was changed", fix)
    warnings = [*warnings_of(port.config, after), *dangerous]
    changes = _changes(settings, values)
    if wanted.dry_run or not changes:
        return _changed(port, wanted.dry_run, settings.version, None, changes, warnings)
    author, now_ms = wanted.author or "unknown", port.services.log_time_ms()
    run: list[Command] = [SetConfig(settings.version, now_ms, author, wanted.reason, values)]
    entry, results = await decided(lambda done: port.services.propose(run, done))
    if not results[-1].ok:
        code = "refused" if results[-1].code == "conflict" else "bad_command"
        raise ApiError(code, f"{results[-1].value}: nothing was changed", "look at it, then decide again")
    return _changed(port, False, results[-1].value, entry, changes, warnings)


def _changes(settings: Settings, values: dict[str, Value]) -> list[ValueChange]:
    known = settings.by_key
    before = {key: known[key].value if key in known else None for key in values}
    return [
        ValueChange(key=key, before=before[key], after=value)
        for key, value in values.items()
        if before[key] != value or type(before[key]) is not type(value)
    ]


def _changed(
    port: AdminPort, dry_run: bool, version: int, entry: EntryId | None, changes: list[ValueChange], warnings: list[str]
) -> ConfigChanged:
    return ConfigChanged(
        node=port.config.node.id,
        dry_run=dry_run,
        version=version,
        term=None if entry is None else entry.term,
        index=None if entry is None else entry.index,
        changes=changes,
        warnings=warnings,
    )


async def list_config_changes(call: Call) -> HistoryOfConfig:
    """Lists the changes of the configuration, newest first: who changed what, and when."""
    settings = call.port.state.settings
    limit = number_of(call.query, LIMIT, default=CHANGES_MAX, most=CHANGES_MAX)
    if not limit:
        raise ApiError("bad_query", "limit cannot be 0", f"use a whole number from 1 to {CHANGES_MAX}")
    before = number_of(call.query, BEFORE, default=settings.version + 1)
    found = list(settings.changes(before, limit + 1))
    return HistoryOfConfig(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=call.port.state.applied.index,
        version=settings.version,
        changes=[_version(change) for change in found[:limit]],
        next=found[limit - 1].version if len(found) > limit else None,
    )


def _version(change: Change) -> VersionView:
    return VersionView(
        version=change.version,
        time_ms=change.time_ms,
        author=change.author,
        reason=change.reason,
        changes=[ValueChange(key=key, before=old, after=new) for key, (old, new) in change.values.items()],
    )


async def reload_config(call: Call) -> ReloadView:
    """Reads this node's configuration files again; an invalid configuration changes nothing."""
    try:
        return call.port.configuration.reload()
    except ConfigError as error:
        raise ApiError("refused", f"{error.what}; {error.why}; nothing was changed", error.fix) from None


# Changes of the configuration that are valid and would still stop the cluster, or take something away.
#
# A change that would stop the cluster is refused with an explanation. A change that takes something away causes
# warnings: a dry run shows them, and the command asks for confirmation.

DEADLINE_MS_MIN: Final = 100
"""The least send.deadline_ms, in milliseconds, with which writes succeed. An fdatasync and a network round trip take a
few milliseconds. During an election the whole deadline passes."""
_HOUR_MS: Final = 3_600_000
_WEAKEST_FIRST: Final = (Ack.LEADER, Ack.QUORUM, Ack.QUORUM_FSYNC)


class Stop(NamedTuple):
    """A new value of a key with which the cluster could no longer serve its clients."""

    key: str
    least: int
    """The least value of the key with which the cluster goes on serving."""
    why: str
    instead: str = ""
    """The advice to the operator instead of this value, such as a command; "" for none."""


def why_it_stops(before: Config, after: Config, nodes: Mapping[int, FindingsView]) -> Iterator[Stop]:
    """Yields the new values with which the cluster would stop serving. `before` and `after` are the whole
    configurations. `nodes`: node id -> its last answer, for disk usage and connections."""
    old, new = before.retention, after.retention
    if new.disk_refuse_writes_percent < old.disk_refuse_writes_percent:
        for node, view in sorted(nodes.items()):
            if view.disk_used_percent >= new.disk_refuse_writes_percent:
                yield Stop(
                    "retention.disk_refuse_writes_percent",
                    min(100, int(view.disk_used_percent) + 5),
                    f"retention.disk_refuse_writes_percent = {new.disk_refuse_writes_percent}: the disk of "
                    f"{node_object(before.cluster.group, node)} is in use by {view.disk_used_percent:.1f} % already, "
                    "so it would refuse every write",
                    "free space there",
                )
    if after.limits.connections_max < before.limits.connections_max:
        for node, view in sorted(nodes.items()):
            if view.connections > after.limits.connections_max:
                yield Stop(
                    "limits.connections_max",
                    view.connections,
                    f"limits.connections_max = {after.limits.connections_max}: {view.connections} clients are "
                    f"connected to {node_object(before.cluster.group, node)}, and those above the limit could not come "
                    "back",
                    "disconnect clients first: raftmq status",
                )
    if after.send.deadline_ms < min(DEADLINE_MS_MIN, before.send.deadline_ms):
        yield Stop(
            "send.deadline_ms",
            DEADLINE_MS_MIN,
            f"send.deadline_ms = {after.send.deadline_ms}: no write is decided so soon, and each would be answered "
            "with an unknown outcome",
        )


def _asks(before: Config, after: Config) -> bool:
    """Returns True if `raftmq config set` asks for confirmation before this change."""
    return any(warnings_of(before, after)) or any(dangers_of(before, after))


def warnings_of(before: Config, after: Config) -> Iterator[str]:
    """Yields a sentence about each kind of data or function that the change takes away."""
    old, new = before.retention, after.retention
    go = "leave the nodes, and can be read in the tier," if after.tier.evicts else "are removed"
    if _kept(new.keep_ms) < _kept(old.keep_ms):
        gone = go.rstrip(",")
        yield f"messages older than {_time(new.keep_ms)} {gone}; until now {_until(old.keep_ms)}"
    if new.bytes_max and (not old.bytes_max or new.bytes_max < old.bytes_max):
        yield f"the oldest messages {go} as soon as the log is larger than {new.bytes_max} bytes"
    if new.disk_force_clean_percent < old.disk_force_clean_percent:
        percent = new.disk_force_clean_percent
        yield f"above {percent} % of the leader's disk in use the oldest messages {go} before their time"
    if old.protect_unconsumed and not new.protect_unconsumed:
        yield f"messages {go} although a group has not consumed them"
    if before.tier.evict and not after.tier.evict:
        yield "what retention takes from the nodes is gone for everybody, and no longer kept in the tier"
    if _WEAKEST_FIRST.index(default_level(after.modes)) < _WEAKEST_FIRST.index(default_level(before.modes)):
        yield "sends are acknowledged before a majority has them on disk: what is acknowledged may be lost"
    if after.cluster.producer_aliases != before.cluster.producer_aliases:
        yield "routes have another number of names: keys of topics on several groups of brokers move to other queues"
    if after.dedup.session_hours < before.dedup.session_hours:
        hours = after.dedup.session_hours
        yield f"producers that were silent for {hours} h are forgotten: a send that is repeated later is stored again"


def dangers_of(before: Config, after: Config) -> Iterator[str]:
    """Yields a sentence about each dangerous value that the change sets. Such a change needs `force`."""
    known = dangers(before)
    for key, why in dangers(after).items():
        if key not in known or attrgetter(key)(before) != attrgetter(key)(after):
            yield f"{key} = {toml_value(attrgetter(key)(after))}: {why}"


def _kept(keep_ms: int) -> float:
    return keep_ms or float("inf")


def _time(ms: int) -> str:
    return f"{ms / _HOUR_MS:g} h" if ms >= _HOUR_MS else f"{ms} ms"


def _until(keep_ms: int) -> str:
    return f"they were kept for {_time(keep_ms)}" if keep_ms else "they were kept for ever"


ROUTES: Final[tuple[Route, ...]] = (
    Route.of_verb(
        "GET",
        "/v1/config",
        get_config,
        ConfigView,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.GET_BROKER_CONFIG),
        serves=Serves.READ,
        because=route.CALLER_CHOOSES,
    ),
    Route(
        "PUT",
        "/v1/config",
        change_config,
        ConfigChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        ConfigChange,
    ),
    Route(
        "GET",
        "/v1/config/history",
        list_config_changes,
        HistoryOfConfig,
        route.page(CHANGES_MAX),
        route_rights.CLUSTER_GET,
        Serves.READ,
        asks=(BEFORE, LIMIT),
    ),
    Route("POST", "/v1/config/reload", reload_config, ReloadView, route.CONSTANT, route_rights.SUPER),
)
