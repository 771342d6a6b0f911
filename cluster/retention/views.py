"""Structs of the HTTP API under /v1/retention: a node's view of its retention, and the settings in which nodes
differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from cluster.config.local_layout import NodeName, key_of
from cluster.config.storage_sections import RetentionSection

_N = TypeVar("_N", bound=NodeName)


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A reader that needs the log from `position` on. The node keeps the files from there on for it."""

    holder: str
    position: int


class RetentionView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/retention`: where the log begins on all nodes, and which files this node has."""

    schema: Literal[1] = 1
    consistency: Literal["local"] = "local"
    node: int
    leader: int | None
    applied_index: int
    trim_position: int
    """The position at which the log begins on all nodes. Messages below it exist only in the tier, if at all."""
    trim_index: int
    """Index of the entry at `trim_position`."""
    trimmed_at_index: int | None
    """Index of the TRIM that set `trim_position`; null if the log was never trimmed."""
    trimmed_ms: int | None
    """Log time, in milliseconds, of the TRIM that set `trim_position`; null if the log was never trimmed."""
    first_position: int
    """The position at which this node's files begin."""
    first_index: int
    end_position: int
    files_left: int
    """Segment files below `trim_position` that this node has not removed yet."""
    bytes_left: int
    files_held_by: str
    """The reason why the files below `trim_position` are still there; "" if they are about to be removed."""
    log_held_by: str
    """On the leader: the obstacle to giving up more log; "" if there is no reason to give up more."""
    sweeping: bool = False
    """True while a TRIM is carried out slice by slice. The log begins at the new position once it is complete."""
    pinned_position: int | None = None
    """Position of the lowest message that waits for its time, its transaction, or the commit of its write; null if none
    waits. The log is kept from there on."""
    pinned_since_ms: int | None = None
    """The time when the message at `pinned_position` was stored; null if none waits or it cannot be read."""
    pinned_timers: int = 0
    """The number of messages that wait until they are due."""
    pinned_halves: int = 0
    """The number of messages whose transaction is open."""
    pinned_message_bytes: int = 0
    """Stored bytes of the messages counted in `pinned_timers` and `pinned_halves`, and of messages that wait for the
    commit of their write."""
    pinned_log_bytes: int = 0
    """On the leader: bytes of log that retention would remove if no waiting message lay there."""
    carrying: bool = False
    """On the leader: True while the waiting messages are being appended again further on (docs/adr/0054)."""
    carry_held_by: str = ""
    """On the leader: the reason why the waiting messages are not appended again although they hold the log; otherwise
    ""."""
    disk_used_percent: float | None
    """Used share of the disk; null before the first look."""
    keep_ms: int
    """Milliseconds for which messages are kept; 0: for ever."""
    bytes_max: int
    """The most bytes of log that are kept; 0: no limit."""
    delete_when: str
    protect_unconsumed: bool
    leases: list[LeaseView]
    evicts: bool = False
    """True if messages that retention removes from the nodes stay in the tier and can be read there (`tier.evict`)."""
    settings: dict[str, int | bool | str] = {}
    """The section [retention] in force on this node. The leader's settings decide, and any node may become the
    leader."""


class RetentionRun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/retention/run`: what the leader has just decided."""

    node: int
    term: int | None
    index: int | None
    """Index of the TRIM, which was applied; null if there was nothing to give up."""
    segments: int
    """Segments that go now. If one TRIM does not take all expired segments, more TRIMs follow by themselves."""
    position: int
    """The position at which the log begins after the TRIM; if `sweeping`, the position at which it begins now."""
    sweeping: bool = False
    """True if not all slices of the TRIM are applied yet."""
    reason: str
    held_by: str
    """The obstacle to giving up more; "" for none."""
    bytes: int = 0
    """Bytes of log that go, or would go in a dry run."""
    queues: int = 0
    """Queues that also lose messages (or would), because their topic has a shorter retention time of its own or is
    above its quota."""
    evicts: bool = False
    """True if the segments that go stay in the tier and can be read there (`tier.evict`)."""
    dry_run: bool = False
    """True if nothing was changed; `position` is then where the log would begin."""


Setting = int | bool | str
OWN = frozenset({"delete_gap_ms"})
"""Keys that each node applies for itself. For all other keys the leader's value holds for all nodes."""


def settings_of(section: RetentionSection) -> dict[str, Setting]:
    """Returns key -> value in force, for all keys of the section."""
    return {name: getattr(section, name) for name in section.__struct_fields__}


def differing(nodes: Mapping[_N, Mapping[str, Setting]], leader: _N | None) -> list[str]:
    """Returns one line per key whose value is not the same on all `nodes` (name of a node -> its settings)."""
    lines = []
    for key in sorted({key for settings in nodes.values() for key in settings}):
        values = {
            node: settings[key]
            for node, settings in sorted(nodes.items(), key=lambda each: key_of(each[0]))
            if key in settings
        }
        if len({repr(value) for value in values.values()}) < 2:
            continue
        told = ", ".join(f"{_said(value)} on node {node}" for node, value in values.items())
        lines.append(f"retention.{key} differs: {told}; {_counts(key, values, leader)}")
    return lines


def _counts(key: str, values: Mapping[_N, Setting], leader: _N | None) -> str:
    if key in OWN:
        return "each node goes by its own"
    if leader is None or leader not in values:
        return "the next leader's counts, for all nodes"
    return (
        f"node {leader} leads: its {_said(values[leader])} counts, for all nodes, until another node "
        "leads. Make them equal in every raftmq.toml, then raftmq reload"
    )


def _said(value: Setting) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
