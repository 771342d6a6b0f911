"""Defines which keys of raftmq.toml belong to the cluster: their values are equal on every node, and kept in the log
(docs/adr/0069).

The type of a key says whether it belongs to the cluster (`cluster.config.key_facts`). All other keys belong to one
host: its addresses and directories, the speed of its disk, and the ticks of elections, which are needed before the node
knows any entry of the log.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from cluster.config.config import Config
from cluster.config.cross_key_rules import check
from cluster.config.key_facts import facts, fields_of
from cluster.config.loading import value_of
from cluster.config.ranges import Range, range_of
from cluster.config.source import ConfigError, KeyPath, Source, TooSmallError, nearest
from raftlog.kept_errors import bare

logger = logging.getLogger(__name__)

Value = bool | int | str

FIELDS: Final = {key: fields_of(Config)[key].type for key, said in facts(Config).items() if said.is_clusters}
"""Name of each key of the cluster ("section.name") -> its type, in the order of the sections."""
CLUSTER_KEYS: Final = tuple(FIELDS)
"""Names of the keys of the cluster ("section.name"), in the order of the sections."""


def _defaults() -> dict[str, Value]:
    sections = {each.name: each.default for each in msgspec.structs.fields(Config)}
    return {key: getattr(sections[key.split(".")[0]], key.split(".")[1]) for key in CLUSTER_KEYS}


USUAL: Final = _defaults()
"""Name of each key of the cluster -> its default value."""


AsksFirst = Callable[[Config, Config], bool]
"""A function that returns True if `raftmq config set` asks for confirmation before a change. Its arguments are the
configurations before and after the change."""


def _never(before: Config, after: Config) -> bool:
    return False


class _Change(Source):
    """The source of values for a change of the cluster's configuration. The values are from JSON, or texts from a
    command line."""

    def is_textual(self, path: KeyPath) -> bool:
        return True

    def where(self, path: KeyPath) -> str:
        return "the change"


def cluster_values(config: Config) -> dict[str, Value]:
    """Returns the name of every key of the cluster -> its value in `config`."""
    return {key: attrgetter(key)(config) for key in CLUSTER_KEYS}


def in_force(own: Config, values: Mapping[str, object]) -> Config:
    """Returns `own`, the configuration from a node's file, with `values` for the cluster's keys. A value that this
    release does not know, because a newer release wrote it, is left out, so that the node need not stop."""
    sections: dict[str, dict[str, Value]] = {}
    for key in CLUSTER_KEYS:
        if key not in values:
            continue
        section, name = key.split(".")
        try:
            sections.setdefault(section, {})[name] = in_type(key, values[key])
        except ConfigError as error:
            logger.warning("this release cannot use the cluster's %s and goes by its own file: %s", key, error.why)
    return replace(own, **{name: replace(getattr(own, name), **found) for name, found in sections.items()})


def changed(config: Config, values: Mapping[str, object], asks: AsksFirst = _never) -> tuple[Config, dict[str, Value]]:
    """Returns (`config` with the new values, the new values in the types of their keys). Raises ConfigError if a key is
    not the cluster's, if a value is not allowed for its key, or if values do not fit together. The last line of the
    error is a command that works as shown and does not ask for confirmation."""
    try:
        converted = {key: in_type(key, value) for key, value in values.items()}
        for key, value in converted.items():
            _check_range(config, key, value, asks)
        fresh = in_force(config, converted)
        check(fresh, _Change())
    except ConfigError as error:
        fix = error.fix if error.fix.startswith("raftmq ") else f"{_explained(next(iter(values)))}    ({error.fix})"
        if isinstance(error, TooSmallError):
            fix = advised(config, _enlarged(config, converted, error), asks) or fix
        raise ConfigError(error.what.removeprefix("the change: "), error.why, fix) from None
    return fresh, converted


def advised(config: Config, values: Mapping[str, Value], asks: AsksFirst) -> str:
    """Returns the command that sets these values; "" if they are not valid. If the command would ask for confirmation,
    the returned command is a dry run instead."""
    after = in_force(config, values)
    try:
        check(after, _Change())
    except ConfigError:
        return ""
    if any((known := range_of(FIELDS[key])) is not None and not known.has(int(each)) for key, each in values.items()):
        return ""
    shown = " --dry-run    (then with --yes: it takes something away)" if asks(config, after) else ""
    return f"raftmq config set {' '.join(f'{key} {typed(value)}' for key, value in values.items())}{shown}"


def _enlarged(config: Config, values: Mapping[str, Value], error: TooSmallError) -> dict[str, Value]:
    """Returns the values with larger values added for keys that would be too small. A larger value may make another key
    too small, which is then enlarged as well. `error` is the first such error."""
    found = dict(values)
    for _ in CLUSTER_KEYS:
        found[error.key] = error.least
        try:
            check(in_force(config, found), _Change())
        except TooSmallError as next_one:
            error = bare(next_one)
        except ConfigError:
            break
        else:
            break
    return found


def in_type(key: str, value: object) -> Value:
    """Returns the value in the type of a cluster's key. A text such as "20" or "true" becomes a number or a bool.
    Raises ConfigError if the key is not the cluster's, or if the value does not have the key's type and bounds."""
    if key not in FIELDS:
        raise _unknown(key)
    section, name = key.split(".")
    try:
        converted: Value = value_of(FIELDS[key], value, (section, name), _Change())
    except ConfigError as error:
        raise ConfigError(error.what.removeprefix("the change: "), error.why, _explained(key)) from None
    if type(converted) is int and converted >= 1 << 63:
        raise ConfigError(f"{key} cannot be {converted}", f"{key} is below 2^63", _explained(key))
    return converted


def _explained(key: str) -> str:
    return f"raftmq config explain {key}"


def typed(value: Value) -> str:
    """Returns the value as it is typed in a command."""
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def _check_range(config: Config, key: str, value: Value, asks: AsksFirst) -> None:
    known = range_of(FIELDS[key])
    if known is not None and not known.has(int(value)):
        or_zero = "0, or " if known.zero else ""
        raise ConfigError(
            f"{key} cannot be {value}",
            f"with {or_zero}{known.low} to {known.high} the cluster serves, and its memory is bounded",
            _instead(config, key, known, int(value), asks),
        )


def _instead(config: Config, key: str, known: Range, value: int, asks: AsksFirst) -> str:
    """Returns the command that sets the key to the nearest valid value for which the command does not ask for
    confirmation. If there is none, returns a dry run with the nearest valid value."""
    near = known.nearest(value)
    usual = min(max(near, known.usual_low), known.usual_high)
    commands = [advised(config, {key: each}, asks) for each in dict.fromkeys((near, usual, USUAL[key]))]
    possible = [command for command in commands if command]
    silent = [command for command in possible if "--dry-run" not in command]
    return next(iter((*silent, *possible)), _explained(key))


def _unknown(key: str) -> ConfigError:
    section, _, name = key.partition(".")
    kind = next((each.type for each in msgspec.structs.fields(Config) if each.name == section), None)
    what = f"{key} is not a key of the cluster"
    if name and name in getattr(kind, "__struct_fields__", ()):
        why = f"{key} belongs to one host: it stands in the raftmq.toml of each node"
        fix = "change it there, then: raftmq reload    (it names the keys that wait for a restart)"
        return ConfigError(what, why, fix)
    near = nearest(key, CLUSTER_KEYS)
    why = "no key of that name is kept equal on all nodes"
    return ConfigError(what, why, f"raftmq config show {near}" if near else "raftmq config show")
