"""/v1/config: the configuration of the cluster, its changes, and the configuration of one node."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cluster.admin.body import number_of
from cluster.admin.call import Call, ReadView, decided
from cluster.admin.config_guard import dangers_of, warnings_of, why_it_stops
from cluster.admin.errors import ApiError
from cluster.admin.port import AdminPort
from cluster.broker.command_levels import raising
from cluster.broker.refusal import Refused
from cluster.config.cluster_keys import CLUSTER_KEYS, FIELDS, USUAL, Value, changed, cluster_values
from cluster.config.config import ConfigError
from cluster.config.reload import ReloadView
from cluster.runtime.request_limits import Unsigned63
from raftlog.types import EntryId
from statemachine.commands import SET_CONFIG, SETTINGS_LEVEL
from statemachine.settings import TEXT_LENGTH_MAX, Change, Settings

CHANGES_MAX: Final = 100
"""Of one answer."""
BEFORE: Final = "before"
LIMIT: Final = "limit"
Note = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
ConfigValues = msgspec.defstruct(
    "ConfigValues",
    [(key.replace(".", "__"), kind | msgspec.UnsetType, msgspec.UNSET) for key, kind in FIELDS.items()],
    rename={key.replace(".", "__"): key for key in FIELDS},
    namespace={"__doc__": "Keys of the cluster -> value, as in raftmq.toml."},
    frozen=True,
    forbid_unknown_fields=True,
)


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the cluster."""

    key: str
    value: Value
    default: Value
    version: int
    """Of the change that set it; 0: the cluster has no value yet, and this one is from the file of the node that
    answers."""
    set_ms: int | None
    """Log time of that change; null if it is forgotten."""
    author: str | None


class ConfigView(ReadView, frozen=True, kw_only=True):
    """`GET /v1/config`: what is equal on every node."""

    version: int
    """Rises by one with each change; 0: each node goes by its file."""
    settings: list[SettingView]
    overruled: list[str]
    """Keys to which the file or a variable of the node that answers gives another value; it does not count."""


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """`PUT /v1/config`."""

    values: ConfigValues  # type: ignore[valid-type]  # made from the table of keys
    """All of them take effect with one entry, or none does."""
    author: Note = ""
    """Who changes it, for the history."""
    reason: Note = ""
    version: Unsigned63 | None = None
    """The version that it is meant for; another one is refused. null: whichever it is."""
    dry_run: bool = False
    """Only answer what would change."""
    force: bool = False
    """Also if a value is dangerous: the warnings of a dry run say what it does."""


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose value is another one now."""

    key: str
    before: Value | None
    """null: it had none."""
    after: Value


class ConfigChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was changed, or would be."""

    node: int
    dry_run: bool
    """Nothing was changed."""
    version: int
    """Since then, or now."""
    term: int | None
    index: int | None
    """The entry; null if nothing was written."""
    changes: list[ValueChange]
    warnings: list[str]
    """What the change takes away."""


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    version: int
    time_ms: int
    """Log time."""
    author: str
    reason: str
    changes: list[ValueChange]


class HistoryOfConfig(ReadView, frozen=True, kw_only=True):
    """`GET /v1/config/history`: the changes that are remembered, the newest first."""

    version: int
    changes: list[VersionView]
    next: int | None
    """Of `?before=` for the next page; null on the last."""


async def get_config(call: Call) -> ConfigView:
    """The configuration that is equal on every node: values, and who set them when."""
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
        overruled=[each.key for each in port.overruled()],
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
        after, values = changed(port.config, given)
    except ConfigError as error:
        raise ApiError("refused", f"{error.what}: {error.why}; nothing was changed", error.fix) from None
    await call.watch.ask_around()
    for why, fix in why_it_stops(port.config, after, call.watch.nodes()):
        raise ApiError("refused", f"{why}; nothing was changed", fix)
    dangerous = list(dangers_of(port.config, after))
    if dangerous and not (wanted.force or wanted.dry_run):
        fix = "raftmq config set asks first; over HTTP, add force: true to the change"
        raise ApiError("refused", f"{'; '.join(dangerous)}: nothing was changed", fix)
    warnings = [*warnings_of(port.config, after), *dangerous]
    changes = _changes(settings, values)
    if wanted.dry_run or not changes:
        return _changed(port, wanted.dry_run, settings.version, None, changes, warnings)
    try:
        run = list(raising(port.services, SETTINGS_LEVEL, "the configuration of the cluster"))
    except Refused as refused:
        raise ApiError("refused", f"{refused.remark}: nothing was changed", "raftmq node list") from None
    author, now_ms = wanted.author or "unknown", port.services.log_time_ms()
    run.append([SET_CONFIG, settings.version, now_ms, author, wanted.reason, values])
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
    """The changes of the configuration, the newest first: who changed what, and when."""
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
    """Reads the configuration again; an invalid one changes nothing."""
    try:
        return call.port.reload()
    except ConfigError as error:
        raise ApiError("refused", f"{error.what}; {error.why}; nothing was changed", error.fix) from None
