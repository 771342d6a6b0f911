"""Reading the configuration again while the node runs (SIGHUP, `POST /v1/config/reload`).

Only what stands in RELOADABLE changes; what belongs to the cluster comes from the log; other differences are named and
wait for a restart. A file that cannot be used
changes nothing: the node goes on with what it has and says why.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config, HaSection
from cluster.config.source import toml_value

RELOADABLE: Final = (
    *(f"ha.{name}" for name in HaSection.__struct_fields__),
    "retention.delete_gap_ms",
    "admin.allowed_hosts",
    "auth.key_file",
    "backup.roots",
    "repair.bytes_per_second",
    "log_output.level",
)
"""Keys of one host that take effect without a restart (docs/configuration.md lists them)."""
SECRET_KEY: Final = "the secret"
"""Name of the change when a secret file holds other keys now; the keys themselves are never told."""

TLS_KEY: Final = "the files of [tls]"
"""Name of the change when one of them is another file now."""


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    """One key whose value is another one now."""

    key: str
    before: str
    after: str


class ReloadView(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that reading the configuration again brought."""

    node: int
    applied: list[KeyChange]
    """Changes in force from now on."""
    needs_restart: list[KeyChange]
    """Different in the file, and not in force."""
    overruled: list[KeyChange] = []
    """Keys of the cluster that are written in this node's file (`after`) with another value than the cluster's
    (`before`), which counts: `raftmq config set` changes it."""


def differences(old: Config, new: Config) -> list[KeyChange]:
    """Every key that differs, in the order of the sections."""
    found = []
    for section in msgspec.structs.fields(Config):
        before, after = getattr(old, section.name), getattr(new, section.name)
        if isinstance(before, tuple):
            if before != after:
                found.append(KeyChange(key=section.name, before=f"{len(before)} tables", after=f"{len(after)} tables"))
            continue
        for field in msgspec.structs.fields(before):
            one, other = getattr(before, field.name), getattr(after, field.name)
            if one != other:
                key = f"{section.name}.{field.name}"
                found.append(KeyChange(key=key, before=toml_value(one), after=toml_value(other)))
    return found


def merged(old: Config, new: Config) -> Config:
    """`old` with the keys of `new` that need no restart: the reloadable ones, and those of the cluster, which count
    only until the cluster has values of its own."""
    changed: dict[str, dict[str, Any]] = {}
    for key in (*RELOADABLE, *CLUSTER_KEYS):
        section, name = key.split(".")
        changed.setdefault(section, {})[name] = getattr(getattr(new, section), name)
    sections = {section: replace(getattr(old, section), **values) for section, values in changed.items()}
    return replace(old, **sections)
