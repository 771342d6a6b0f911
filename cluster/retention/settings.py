"""[retention] of each node: whether the nodes agree, and which node's setting applies where they do not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cluster.config.config import RetentionSection

Setting = int | bool | str
OWN = frozenset({"delete_gap_ms"})
"""Keys by which each node goes for itself; by all others the leader goes for everybody."""


def settings_of(section: RetentionSection) -> dict[str, Setting]:
    """Key -> value in force."""
    return {field.name: getattr(section, field.name) for field in msgspec.structs.fields(section)}


def differing(nodes: Mapping[int, Mapping[str, Setting]], leader: int | None) -> list[str]:
    """A line per key that is not the same on all `nodes` (node -> its settings)."""
    lines = []
    for key in sorted({key for settings in nodes.values() for key in settings}):
        values = {node: settings[key] for node, settings in sorted(nodes.items()) if key in settings}
        if len({repr(value) for value in values.values()}) < 2:
            continue
        told = ", ".join(f"{_said(value)} on node {node}" for node, value in values.items())
        lines.append(f"retention.{key} differs: {told}; {_counts(key, values, leader)}")
    return lines


def _counts(key: str, values: Mapping[int, Setting], leader: int | None) -> str:
    if key in OWN:
        return "each node goes by its own"
    if leader is None or leader not in values:
        return "the next leader's counts, for all nodes"
    return (
        f"node {leader} leads: its {_said(values[leader])} counts, for all nodes, until another node leads. Make them "
        "equal in every raftmq.toml, then raftmq reload"
    )


def _said(value: Setting) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
