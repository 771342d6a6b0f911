"""Loads a `Config` from a file, then environment variables, then flags. An error names the line of the mistake and a
remedy."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from cluster.config.config import Config
from cluster.config.cross_key_rules import check, complete
from cluster.config.key_facts import meta_of, plain
from cluster.config.local_layout import node_object
from cluster.config.ranges import range_of
from cluster.config.source import ConfigError, KeyPath, Source, did_you_mean, dotted, toml_value
from raftlog.types import NodeId


def load(
    path: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Reads the configuration from the file, then `env`, then `overrides` ({"raft.tick_ms": 20}); later sources win.
    Raises ConfigError if the file cannot be read, or if the configuration is not valid."""
    source = Source()
    if path is not None:
        source.read_file(Path(path))
    source.read_env(env or {})
    source.read_overrides(overrides or {})
    config: Config = _build(Config, source.tree, (), source)
    config = complete(config, source, Path(path).parent if path is not None else None)
    check(config, source)
    return config


def written_keys(path: str | Path, env: Mapping[str, str]) -> frozenset[str]:
    """Returns the keys, "section.name", that the file or a variable sets; tables of a list are left out. Raises
    ConfigError for a file that cannot be read."""
    source = Source()
    source.read_file(Path(path))
    source.read_env(env)
    return frozenset(
        f"{section}.{name}" for section, keys in source.tree.items() if isinstance(keys, dict) for name in keys
    )


def unknown_keys(path: Path) -> list[KeyPath]:
    """Returns the keys and sections of the file that this version does not know, in the order of the file. Raises
    ConfigError for a file that cannot be read."""
    source = Source()
    source.read_file(path)
    return list(_unknown(Config, source.tree, ()))


def _unknown(kind: type[Any], raw: dict[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        inner, within = fields.get(key), (*path, key)
        if key not in fields:
            yield within
        elif typing.get_origin(inner) is tuple and isinstance(value, list):
            for i, each in enumerate(value):
                if isinstance(each, dict):
                    yield from _unknown(typing.get_args(inner)[0], each, (*within, i))
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(value, dict):
            yield from _unknown(inner, value, within)


def _build(kind: type[Any], raw: Any, path: KeyPath, source: Source) -> Any:
    """Returns the Struct of one table, made from raw values. Raises ConfigError for an unknown key, a missing required
    key, or a value of the wrong type or outside the range."""
    if not isinstance(raw, dict):
        raise _wrong_shape(path, "a table", raw, source, f"write it as [{dotted(path)}] with its keys below")
    fields = _fields_of(kind)  # type: ignore[arg-type]  # a class is hashable
    for key in raw:
        if key not in fields:
            raise _unknown_key(kind, key, path, source)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in raw:
            values[name] = value_of(field.type, raw[name], (*path, name), source)
        elif field.required and typing.get_origin(field.type) is None and isinstance(field.type, type):
            values[name] = _build(field.type, {}, (*path, name), source)  # names the first required key of that table
        elif field.required:
            raise _missing_key(name, field.type, path, source)
    return kind(**values)


@cache
def _fields_of(kind: type[Any]) -> dict[str, msgspec.structs.FieldInfo]:
    """Returns name -> field of a table. The result is cached: msgspec evaluates all annotations to make it, and a
    reload runs on the node's event loop."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def value_of(kind: Any, raw: Any, path: KeyPath, source: Source) -> Any:
    """Returns the raw value of a key in the key's type. Raises ConfigError if the value does not have that type, or is
    outside its bounds."""
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(raw, list):
            raise _wrong_shape(path, "a list of tables", raw, source, f"write each item as [[{dotted(path)}]]")
        return tuple(_build(item, each, (*path, i), source) for i, each in enumerate(raw))
    if typing.get_origin(plain(kind)) is dict:
        if not isinstance(raw, dict):
            raise _wrong_shape(path, expected(kind), raw, source, 'write {broker = "127.0.0.1:10911"}')
        return {key: value_of(str, each, (*path, key), source) for key, each in raw.items()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _build(kind, raw, path, source)
    try:
        return msgspec.convert(raw, kind, strict=not source.is_textual(path))
    except msgspec.ValidationError:
        raise ConfigError(
            f"{source.where(path)}: {dotted(path)} cannot be {toml_value(raw)}",
            f"{dotted(path)} is {expected(kind)}",
            f"write, for example: {path[-1]} = {_example(kind, path)}",
        ) from None


def _wrong_shape(path: KeyPath, expected: str, raw: Any, source: Source, fix: str) -> ConfigError:
    return ConfigError(
        f"{source.where(path)}: {dotted(path)} cannot be {toml_value(raw)}", f"{dotted(path)} is {expected}", fix
    )


def _unknown_key(kind: type[Any], key: str, path: KeyPath, source: Source) -> ConfigError:
    known = [field.name for field in msgspec.structs.fields(kind)]
    what = "key" if path else "section"
    owner = f"[{dotted(path)}]" if path else "a configuration"
    fix = did_you_mean(key, known)
    if source.is_from_file((*path, key)):
        fix += f" If a newer version wrote it: raftmq config downgrade {source.file}"
    return ConfigError(
        f"{source.where((*path, key))}: unknown {what} {dotted((*path, key))}",
        f"{owner} has {', '.join(known)}",
        fix,
    )


def _missing_key(name: str, kind: Any, path: KeyPath, source: Source) -> ConfigError:
    key = (*path, name)
    variable = "RAFTMQ_" + "__".join(str(part) for part in key).upper()
    return ConfigError(
        f"{source.where(path)}: {dotted(key)} is missing",
        f"{dotted(key)} is {expected(kind)} and has no default",
        f"write {name} = {_example(kind, key)} under [{dotted(path)}], or set {variable}",
    )


def expected(kind: Any) -> str:
    """Returns the type of a single value in words, for an error."""
    base, meta = plain(kind), meta_of(kind)
    if typing.get_origin(base) is dict:
        return 'a table of name = "host:port"'
    if typing.get_origin(base) is tuple:
        return 'a list of "host:port"'
    if base is bool:
        return "true or false"
    if typing.get_origin(base) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(base))
    if base is str:
        if meta is None:
            return "a text in quotes"
        if meta.pattern and ";" in meta.pattern:
            return 'node ids, best first, as "2;1", or empty'
        return "a text in quotes, not empty" if meta.min_length else "a UUID in lower case, or empty"
    known = range_of(kind)
    assert known is not None
    return f"{'0, or ' if known.zero else ''}a whole number from {known.low} to {known.high}"


def _example(kind: Any, path: KeyPath) -> str:
    """Returns a valid value of a key as TOML, for an error: the default if there is one."""
    section = next((f.type for f in msgspec.structs.fields(Config) if f.name == path[0]), None)
    owner = typing.get_args(section)[0] if typing.get_origin(section) is tuple else section
    for field in msgspec.structs.fields(owner) if owner is not None else ():
        if field.name == path[-1] and field.default is not msgspec.NODEFAULT:
            return toml_value(field.default)
    return {"id": "1", "port": "10911", "data_dir": '"/var/lib/raftmq"', "name": '"broker"'}.get(
        str(path[-1]), '"127.0.0.1:10911"'
    )


def own_object(config: Config) -> str:
    """Returns the name of this node in findings, events and errors."""
    return node_object(config.cluster.group, config.node.id)


def own_address(config: Config) -> str:
    """Returns the advertised address that message ids contain: that of the first listener."""
    return config.listeners[0].advertised


def addresses_behind(
    config: Config, listener: str, advertised: Callable[[str], dict[NodeId, str]]
) -> dict[NodeId, str]:
    """Returns the advertised addresses that clients of the listener are given: its own, or those of the listener that
    it names as its `routes`."""
    return advertised(config.routed_by(listener))
