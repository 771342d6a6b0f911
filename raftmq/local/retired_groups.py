"""Groups of brokers of a local cluster that have retired (docs/adr/0113): their nodes are stopped, and their folders
are moved to those of removed nodes, so that no start finds them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from cluster.config.local_layout import (
    GROUP_FOLDERS,
    REMOVED,
    NodeRecord,
    group_folder,
    read_cluster,
    sync_folder,
    write_cluster,
)
from cluster.config.node_files import GROUPS_SECRET
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import Address, address_of
from raftmq.local.made_mark import mark_beside, mark_retired, says_retired
from raftmq.local.process import is_running, stop_nodes
from raftmq_wire.errors import ExitCode, LocalError

_NODES = "n[0-9]*"


def retired_groups(data: Path) -> dict[int, Path]:
    """Returns the retired groups whose files still exist: number -> their folder."""
    return {
        int(folder.name[1:]): folder / REMOVED
        for folder in sorted(data.glob(GROUP_FOLDERS))
        if any((folder / REMOVED).glob(_NODES)) and not any(folder.glob(_NODES))
    }


def retired(data: Path, groups: Collection[int], first: Sequence[NodeRecord]) -> set[int]:
    """Returns those of `groups` that have retired. `first`: the nodes of the first group. Asks those of them that run.
    If none runs, a group counts as retired if its folder was moved aside or its mark says so. Raises LocalError."""
    marked = {group for group in groups if says_retired(mark_beside(data / GROUPS_SECRET, group))}
    found = marked | (retired_groups(data).keys() & set(groups))
    running = [address_of(node) for node in first if is_running(node)]
    if running and not found >= set(groups):
        found |= _heard(running) & set(groups)
    return found


def _heard(addresses: Sequence[Address]) -> set[int]:
    """Returns the groups that any of these nodes knows to have retired. Retirement is final, so one such answer is
    enough; followers learn of it a moment later. Raises LocalError if no node answers."""
    found: set[int] = set()
    failed: list[LocalError] = []
    for address in addresses:
        try:
            told = AdminApi([address], "raftmq status").local("/v1/broker-groups")["groups"]
        except LocalError as error:
            failed.append(error)
        else:
            found |= {row["group"] for row in told if row["state"] == "retired"}
    if len(failed) == len(addresses):
        raise failed[0]
    return found


def has_retired(group: int) -> LocalError:
    """Returns the error for a start that would make a group with the number of a retired one."""
    return LocalError(
        f"group {group} has retired",
        "its number is never used again; nothing was made",
        f"raftmq up --groups {group + 1}    (a group of the next number; or without --groups: those that are there)",
        ExitCode.REFUSED,
    )


def set_aside(data: Path, group: int) -> Path | None:
    """Stops the nodes of a group that has retired, moves their folders aside, and forgets them in cluster.json. Returns
    where their files are; None if the cluster has no such nodes. May be repeated. The caller holds the directory's
    lock."""
    cluster = read_cluster(data)
    nodes = cluster.of_group(group)
    if not nodes:
        return retired_groups(data).get(group)
    stop_nodes(nodes)
    mark_retired(mark_beside(data / GROUPS_SECRET, group))
    folder = group_folder(data, group)
    removed = folder / REMOVED
    removed.mkdir(exist_ok=True)
    for node in nodes:
        if node.home.exists():  # else an interrupted attempt has already moved the folder
            node.home.rename(removed / node.home.name)
        cluster = cluster.without(node.name)
    sync_folder(folder)
    write_cluster(data, cluster)
    return removed
