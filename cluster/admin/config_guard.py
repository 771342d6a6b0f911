"""Changes of the configuration that are valid and would still stop the cluster, or take something away.

The first are refused in words. The second are told as warnings: a dry run shows them, and the command asks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from cluster.config.config import Config
from cluster.config.ranges import dangers
from cluster.config.toml_text import toml_value
from cluster.replication.ack_levels import Ack, default_level

if TYPE_CHECKING:
    from cluster.admin.findings.finding import FindingsView

DEADLINE_MS_MIN: Final = 100
"""Of send.deadline_ms: an fdatasync and a network's round trip take a few of it, an election all of it."""
_HOUR_MS: Final = 3_600_000
_WEAKEST_FIRST: Final = (Ack.LEADER, Ack.QUORUM, Ack.QUORUM_FSYNC)


def why_it_stops(before: Config, after: Config, nodes: Mapping[int, FindingsView]) -> Iterator[tuple[str, str]]:
    """(why the cluster would not go on serving with `after`, what to do instead). `nodes`: as they answered last."""
    old, new = before.retention, after.retention
    if new.disk_refuse_writes_percent < old.disk_refuse_writes_percent:
        for node, view in sorted(nodes.items()):
            if view.disk_used_percent >= new.disk_refuse_writes_percent:
                yield (
                    f"retention.disk_refuse_writes_percent = {new.disk_refuse_writes_percent}: the disk of node {node} "
                    f"is in use by {view.disk_used_percent:.1f} % already, so it would refuse every write",
                    f"free space there, or set at least {min(100, int(view.disk_used_percent) + 5)}",
                )
    if after.limits.connections_max < before.limits.connections_max:
        for node, view in sorted(nodes.items()):
            if view.connections > after.limits.connections_max:
                yield (
                    f"limits.connections_max = {after.limits.connections_max}: {view.connections} clients are "
                    f"connected to node {node}, and those above the limit could not come back",
                    f"set at least {view.connections}, or disconnect clients first: raftmq status",
                )
    if after.send.deadline_ms < min(DEADLINE_MS_MIN, before.send.deadline_ms):
        yield (
            f"send.deadline_ms = {after.send.deadline_ms}: no write is decided so soon, and each would be answered "
            "with an unknown outcome",
            f"set at least {DEADLINE_MS_MIN}",
        )


def warnings_of(before: Config, after: Config) -> Iterator[str]:
    """What a change takes away."""
    old, new = before.retention, after.retention
    if _kept(new.keep_ms) < _kept(old.keep_ms):
        yield f"messages older than {_time(new.keep_ms)} are removed; until now {_until(old.keep_ms)}"
    if new.bytes_max and (not old.bytes_max or new.bytes_max < old.bytes_max):
        yield f"the oldest messages are removed as soon as the log is larger than {new.bytes_max} bytes"
    if new.disk_force_clean_percent < old.disk_force_clean_percent:
        percent = new.disk_force_clean_percent
        yield f"above {percent} % of the leader's disk in use the oldest messages are removed before their time"
    if old.protect_unconsumed and not new.protect_unconsumed:
        yield "messages are removed although a group has not consumed them"
    if before.tier.evict and not after.tier.evict:
        yield "what retention takes from the nodes is gone for everybody, and no longer kept in the tier"
    if _WEAKEST_FIRST.index(default_level(after.modes)) < _WEAKEST_FIRST.index(default_level(before.modes)):
        yield "sends are acknowledged before a majority has them on disk: what is acknowledged may be lost"
    if after.dedup.session_hours < before.dedup.session_hours:
        hours = after.dedup.session_hours
        yield f"producers that were silent for {hours} h are forgotten: a send that is repeated later is stored again"


def dangers_of(before: Config, after: Config) -> Iterator[str]:
    """What a change does that is allowed and dangerous. It needs `force`."""
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
