"""Applies a configuration that is read again while the node runs (SIGHUP, `POST /v1/config/reload`).

Only the keys in RELOADABLE change. Keys of the cluster come from the log. Other changes are reported, and take effect
at the next start. If the file cannot be used, nothing changes, and the node reports the reason.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config
from cluster.config.key_facts import facts
from cluster.config.source import toml_value

RELOADABLE: Final = tuple(key for key, said in facts(Config).items() if said.reload and not said.is_clusters)
"""Keys of the host that take effect without a restart, in the order of the sections."""
SECRET_KEY: Final = "the secret"
"""The name under which a changed secret is reported. Its keys are never shown."""

TLS_KEY: Final = "the files of [tls]"
"""The name under which a change in one of the files of [tls] is reported."""


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose value has changed, with the values before and after as texts."""

    key: str
    before: str
    after: str


class ReloadView(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a reload of the configuration found."""

    node: int
    applied: list[KeyChange]
    """The changes that have taken effect."""
    needs_restart: list[KeyChange]
    """The changes in the file that take effect only after a restart."""
    overruled: list[KeyChange] = []
    """Keys of the cluster that this node's file sets to another value (`after`) than the cluster's value in force
    (`before`). Only `raftmq config set` changes the latter."""


def differences(old: Config, new: Config) -> list[KeyChange]:
    """Returns every key that differs between two configurations, in the order of the sections."""
    found = []
    # Names only: msgspec.structs.fields evaluates every annotation anew, some 5 ms of the event loop at each reload.
    for section in Config.__struct_fields__:
        before, after = getattr(old, section), getattr(new, section)
        if isinstance(before, tuple):
            if before != after:
                found.append(KeyChange(key=section, before=f"{len(before)} tables", after=f"{len(after)} tables"))
            continue
        for name in before.__struct_fields__:
            one, other = getattr(before, name), getattr(after, name)
            if one != other:
                found.append(KeyChange(key=f"{section}.{name}", before=toml_value(one), after=toml_value(other)))
    return found


def merged(old: Config, new: Config) -> Config:
    """Returns `old` with the values of `new` for keys that need no restart: the reloadable ones, and those of the
    cluster. The latter are in force only until the cluster has its own values in the log."""
    changed: dict[str, dict[str, Any]] = {}
    for key in (*RELOADABLE, *CLUSTER_KEYS):
        section, name = key.split(".")
        changed.setdefault(section, {})[name] = getattr(getattr(new, section), name)
    sections = {section: replace(getattr(old, section), **values) for section, values in changed.items()}
    return replace(old, **sections)
