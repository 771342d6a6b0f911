"""Groups of brokers of a local cluster that have retired (docs/adr/0113): their nodes are stopped, their folders
are with those of removed nodes, so that no start finds them."""

from __future__ import annotations

from pathlib import Path

from cluster.config.local_layout import GROUP_FOLDERS, group_folder, read_cluster, sync_folder, write_cluster
from raftmq.local.cluster import REMOVED
from raftmq.local.process import stop_nodes

_NODES = "n[0-9]*"


def retired_groups(data: Path) -> dict[int, Path]:
    """Returns the groups that were set aside and whose files are still there: number -> their folder."""
    return {
        int(folder.name[1:]): folder / REMOVED
        for folder in sorted(data.glob(GROUP_FOLDERS))
        if any((folder / REMOVED).glob(_NODES)) and not any(folder.glob(_NODES))
    }


def set_aside(data: Path, group: int) -> Path | None:
    """Stops the nodes of a group that has retired, moves their folders aside, and forgets them in cluster.json. Returns
    where their files are; None if the cluster has no such nodes. May be repeated. The caller holds the directory's
    lock."""
    cluster = read_cluster(data)
    nodes = cluster.of_group(group)
    if not nodes:
        return retired_groups(data).get(group)
    stop_nodes(nodes)
    folder = group_folder(data, group)
    removed = folder / REMOVED
    removed.mkdir(exist_ok=True)
    for node in nodes:
        if node.home.exists():  # an interrupted attempt has moved it
            node.home.rename(removed / node.home.name)
        cluster = cluster.without(node.name)
    sync_folder(folder)
    write_cluster(data, cluster)
    return removed
