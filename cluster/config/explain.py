"""Explains a key of the configuration: its meaning, unit, default and range, and when a new value takes effect.

Types, defaults and ranges come from `Config`. The meaning is the key's row in docs/configuration.md, to which
`data/configuration.md` is a link; a wheel contains its text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from cluster.config.config import Config
from cluster.config.key_facts import KeyFacts, facts, fields_of
from cluster.config.loading import expected
from cluster.config.ranges import range_of
from cluster.config.source import ConfigError, nearest, toml_value

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ROW: Final = re.compile(r"^\| `(\w+)` \| .+? \| (.*) \|$")
_HEADING: Final = re.compile(r"^## .*`\[+(\w+)\]+`")


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one key. Each field but `reload` is a text for people."""

    key: str
    meaning: str
    unit: str
    """The unit of the value; "" if it has none, such as a name or a switch."""
    default: str
    """The default value in TOML; "required" if the key has none."""
    range: str
    usual: str
    """The values that a change may set without `force`; "" if these are all values of the range."""
    effect: str
    """The effect of values outside `usual`; "" if there are none."""
    change: str
    """The file or the command that changes the key, and when the change takes effect."""
    reload: bool
    """True if a change takes effect without a restart."""


def keys() -> tuple[str, ...]:
    """Returns the names of all keys that a file may have, "section.name", in the order of the sections."""
    return tuple(fields_of(Config))


def explain(key: str) -> Explained:
    """Returns the explanation of the key. Raises ConfigError for a key that does not exist."""
    field = fields_of(Config).get(key)
    if field is None:
        raise _unknown(key)
    known = range_of(field.type)
    said = facts(Config)[key]
    usual = f"{known.usual_low} to {known.usual_high}" if known is not None and known.why else ""
    return Explained(
        key=key,
        meaning=_meanings().get(key, ""),
        unit=said.unit.value if said.unit is not None else "",
        default=default_of(field),
        range=expected(field.type),
        usual=usual,
        effect=known.why if known is not None else "",
        change=_change(key, said),
        reload=said.reload,
    )


def default_of(field: Any) -> str:
    """Returns the default of a key as TOML; "required" if it has none."""
    if field.required:
        return "required"
    return "{}" if field.default is msgspec.NODEFAULT else toml_value(field.default)


def _change(key: str, said: KeyFacts) -> str:
    if said.is_clusters:
        return f"raftmq config set {key} VALUE: on every node at once, without a restart"
    where = "in the raftmq.toml of each node, then: "
    return where + ("raftmq reload (no restart)" if said.reload else "restart the node")


@cache
def _meanings() -> dict[str, str]:
    """Returns key -> its meaning as plain text, from the table in docs/configuration.md."""
    page = (files("cluster.config") / "data" / "configuration.md").read_text(encoding="utf-8")
    found, section = {}, ""
    for line in page.splitlines():
        if heading := _HEADING.match(line):
            section = heading[1]
        elif row := _ROW.match(line):
            found[f"{section}.{row[1]}"] = _LINK.sub(r"\1", row[2]).replace("`", "").replace("\\|", "|").strip()
    return found


def _unknown(key: str) -> ConfigError:
    section, _, name = key.partition(".")
    own = [each for each in keys() if each.startswith(f"{section}.")]
    if not name:  # a key without its section, or a section
        own = own or [each for each in keys() if each.partition(".")[2] == section]
    if own and (not name or nearest(key, own) is None):
        return ConfigError(f"{key} is not a key", f"there is {', '.join(own)}", f"raftmq config explain {own[0]}")
    near = nearest(key, own or keys())
    why = "a key is written section.name, as in raft.tick_ms"
    return ConfigError(f"{key} is not a key", why, f"raftmq config explain {near}" if near else "raftmq config explain")
