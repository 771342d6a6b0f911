"""Structs of the HTTP API under /v1/retention: a node's view of its retention, and whether nodes agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from cluster.config.config import RetentionSection


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of the log from `position` on: the files stay for it."""

    holder: str
    position: int


class RetentionView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/retention`: where the log begins for everybody, and which files this node has."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    leader: int | None
    applied_index: int
    trim_position: int
    """Nothing below is served, on any node."""
    trim_index: int
    """Index of the entry there."""
    trimmed_at_index: int | None
    """The TRIM that said so; null if the log was never trimmed."""
    trimmed_ms: int | None
    """Its log time."""
    first_position: int
    """Position at which this node's files begin."""
    first_index: int
    end_position: int
    files_left: int
    """Segment files below `trim_position` that this node has not removed yet."""
    bytes_left: int
    files_held_by: str
    """Why they are still there; "" if they are about to go."""
    log_held_by: str
    """On the leader: what stands in the way of giving up more; "" if there is no reason for more."""
    sweeping: bool = False
    """A TRIM is being carried out, slice by slice: the log begins further on once it is."""
    pinned_position: int | None = None
    """Position of the lowest message that waits for its time or its transaction; null if none does. The log is kept
    from there on."""
    pinned_since_ms: int | None = None
    """When that message was stored; null if none waits or it cannot be read."""
    pinned_timers: int = 0
    """Messages that wait until they are due."""
    pinned_halves: int = 0
    """Messages whose transaction is open."""
    pinned_message_bytes: int = 0
    """Stored bytes of both."""
    pinned_log_bytes: int = 0
    """On the leader: bytes of log that retention would remove if none of them lay there."""
    carrying: bool = False
    """On the leader: they are being stored further on (docs/adr/0054)."""
    carry_held_by: str = ""
    """On the leader: why they are not, if that is wanted."""
    disk_used_percent: float | None
    """Null before the first look."""
    keep_ms: int
    """0: for ever."""
    bytes_max: int
    """0: no limit."""
    delete_when: str
    protect_unconsumed: bool
    leases: list[LeaseView]
    settings: dict[str, int | bool | str] = {}
    """[retention] as this node has it now. The leader's counts; each node may lead."""


class RetentionRun(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/retention/run`: what the leader decided when it looked just now."""

    node: int
    term: int | None
    index: int | None
    """Index of the TRIM, which is applied; null if there was nothing to give up."""
    segments: int
    """Segments that go now; more follow by themselves if one TRIM does not take them all."""
    position: int
    """Position at which the log begins then, or now if `sweeping`."""
    sweeping: bool = False
    """Not all of its slices are applied yet."""
    reason: str
    held_by: str
    """The obstacle to giving up more."""
    bytes: int = 0
    """Bytes of log that go, or would."""
    queues: int = 0
    """Queues of topics with a shorter time of their own: so many lose messages besides, or would."""
    dry_run: bool = False
    """Nothing was changed; `position` is where the log would begin."""


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
