"""The files of a local cluster: the data directories and configurations of its nodes, and cluster.json, as `raftmq up`
makes and changes them before any node starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from cluster.config.loading import load
from cluster.config.local_layout import (
    CLUSTER_FILE,
    REMOVED,
    ClusterFile,
    NodeRecord,
    group_folder,
    groups_of,
    read_cluster,
    write_cluster,
)
from cluster.config.node_files import (
    GROUPS_SECRET,
    USERS_KEY,
    check_base_port,
    move_ports,
    node_files,
    plan_group,
    plan_moved,
    plan_nodes,
    read_nodes,
    set_tier,
    write_configs,
)
from cluster.tier.store.store_by_url import check_url
from raftlog.types import FIRST_GROUP
from raftmq.local import registry_processes
from raftmq.local.access_files import make_access_files
from raftmq.local.further_groups import BEGUN, begun, check_level, check_lowered, make_group, undo_begun
from raftmq.local.init import check_data_dirs, create_data_dirs, is_empty
from raftmq.local.local_users import lack_key, provide_key
from raftmq.local.lost_disks import dead_groups, lost_nodes
from raftmq.local.made_mark import check_unmade, mark_beside
from raftmq.local.process import check_ports, is_running
from raftmq.local.retired_groups import has_retired, retired
from raftmq.local.tls.local_tls import certify, speaks_tls
from raftmq_wire.errors import ExitCode, LocalError

NODES_DEFAULT = 3
"""The number of nodes of a new group, unless another number is asked for."""
_NO_PAUSE = 'the page "Security: users and rules" of the docs says how to do it without a pause'


class ClusterFiles:
    """The files in the data directory of one cluster. The caller holds the directory's lock. Every method reads
    cluster.json again."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def load_or_make(
        self,
        count: int | None,
        base_port: int | None,
        groups: int | None = None,
        *,
        failpoints: bool,
        on_stage: Callable[[str], None],
    ) -> ClusterFile:
        """Returns the existing cluster, or makes a new one; makes further groups, and sets other ports or failpoints,
        if asked for. Raises LocalError, for example for a port in use or the number of a retired group."""
        undo_begun(self.data)
        nodes = self._as_recorded(read_nodes(self.data))
        check_lowered(groups_of(nodes), groups, self.data)
        further = self._further(nodes, groups)
        if base_port is not None:
            there = groups_of(nodes)
            more = max(0, (groups or 1) - len(there)) * self._size_of_new(nodes, count)
            check_base_port(base_port, len(nodes) + more)
        if not nodes:
            on_stage("creating the data directories")
            nodes = plan_nodes(self.data, NODES_DEFAULT if count is None else count, base_port)
            check_ports(nodes)
            with begun(self.data):
                write_configs(nodes, failpoints=failpoints, users_key=True)
                make_access_files(load(node.config_path) for node in nodes[:1])
                create_data_dirs([node.config_path for node in nodes], os.environ)
        else:
            if further:
                check_level([node for node in nodes if node.group == FIRST_GROUP])
            nodes = self._existing(nodes, count, base_port, failpoints=failpoints)
        self._write_nodes(nodes)
        for group in further:
            on_stage(f"creating the data directories of group {group}")
            nodes = self._with_group(group, nodes, count, base_port)
        return read_cluster(self.data)

    def _further(self, nodes: Sequence[NodeRecord], wanted: int | None) -> list[int]:
        """Returns the numbers of the groups to be made: those from 2 to `wanted` that the cluster lacks and that have
        not retired. Raises LocalError if the highest number that the cluster lacks is that of a retired group, or if
        one of the groups was made before."""
        missing = [group for group in range(FIRST_GROUP + 1, 1 + (wanted or 1)) if group not in groups_of(nodes)]
        gone = retired(self.data, missing, [node for node in nodes if node.group == FIRST_GROUP]) if nodes else set()
        if missing and missing[-1] in gone:
            raise has_retired(missing[-1])
        left = [group for group in missing if group not in gone]
        for group in left if nodes else ():
            check_unmade(mark_beside(self.data / GROUPS_SECRET, group), str(group_folder(self.data, group)))
        return left

    def _write_nodes(self, nodes: list[NodeRecord]) -> None:
        known = read_cluster(self.data) if self._has_file() else ClusterFile([])
        write_cluster(self.data, known.with_nodes(nodes))

    def _size_of_new(self, nodes: Sequence[NodeRecord], count: int | None) -> int:
        """Returns the number of nodes for a new group: `count`, or else the size of the first group in `nodes`."""
        return count or sum(node.group == FIRST_GROUP for node in nodes) or NODES_DEFAULT

    def _with_group(
        self, group: int, nodes: list[NodeRecord], count: int | None, base_port: int | None
    ) -> list[NodeRecord]:
        """Makes a further group, and writes it to cluster.json. Returns all nodes."""
        base = None if base_port is None else base_port + 4 * len(nodes)
        size = self._size_of_new(nodes, count)
        is_free = registry_processes.free_beside(read_cluster(self.data).registry)
        made = plan_group(self.data, group, size, base, nodes, is_free)
        check_ports(made)
        lost = lost_nodes(nodes)
        make_group(made, [node for node in nodes if node.group == FIRST_GROUP and node not in lost])
        nodes = sorted([*nodes, *made], key=lambda node: node.key)
        self._write_nodes(nodes)
        return nodes

    def change_tier(self, nodes: list[NodeRecord], tier: str) -> None:
        """Writes the tier's store into every node's configuration. Raises LocalError."""
        if any(is_running(node) for node in nodes):
            raise LocalError(
                "the tier cannot change while nodes run",
                f"nodes of the cluster in {self.data} are running",
                f"raftmq down && raftmq up --tier {tier}",
                ExitCode.REFUSED,
            )
        url = tier if ":" in tier else Path(tier).absolute().as_uri()
        check_url(url)
        set_tier(nodes, url)

    def change_to_tls(self, nodes: list[NodeRecord]) -> None:
        """Configures every node to accept only TLS. Raises LocalError."""
        if any(is_running(node) for node in nodes) and not speaks_tls(self.data):
            raise LocalError(
                "a local cluster cannot change to TLS while nodes run",
                f"nodes of the cluster in {self.data} are running, in plain text; {_NO_PAUSE}",
                "raftmq down && raftmq up --tls",
                ExitCode.REFUSED,
            )
        certify(self.data, nodes)

    def give_key(self, nodes: list[NodeRecord]) -> None:
        """Configures the key of users' secrets for nodes that have none. Raises LocalError."""
        if any(is_running(node) for node in lack_key(nodes)):
            raise LocalError(
                "this cluster gets its first user when its nodes start",
                f"nodes of the cluster in {self.data} are running, without auth.key_file; {_NO_PAUSE}",
                "raftmq down && raftmq up --auth",
                ExitCode.REFUSED,
            )
        provide_key(self.data, nodes)

    def _existing(
        self, nodes: list[NodeRecord], count: int | None, base_port: int | None, *, failpoints: bool
    ) -> list[NodeRecord]:
        for group in groups_of(nodes):
            own = [node for node in nodes if node.group == group]
            if count is not None and count != len(own):
                raise self._other_size(own, count)
        alone = groups_of(nodes) == [FIRST_GROUP]  # with further groups the cluster was made before, so it has a uuid
        if alone and not self._has_file() and all(is_empty(node.home / "data") for node in nodes):
            create_data_dirs([node.config_path for node in nodes], os.environ)  # its directories were always empty
        lost, dead = lost_nodes(nodes), dead_groups(nodes)
        check_data_dirs([node for node in nodes if node not in lost and node.group not in dead])
        if base_port is None and not failpoints:
            return nodes
        known = [node for node in nodes if node.config_path.is_file()]
        if any(is_running(node) for node in known):
            raise LocalError(
                "ports and failpoints cannot change while nodes run",
                f"nodes in {self.data} are running with the old settings",
                "raftmq down    (then repeat the command)",
                ExitCode.REFUSED,
            )
        moved = plan_moved(known, base_port) if base_port is not None else known
        check_ports(moved)
        move_ports(moved, failpoints=failpoints)
        return moved

    def _other_size(self, nodes: Sequence[NodeRecord], count: int) -> LocalError:
        """Returns the error for a group that exists with another number of nodes than was asked for."""
        group, last = nodes[0].group, max(nodes, key=lambda node: node.id).name
        which = (
            f"the cluster in {self.data}" if group == FIRST_GROUP else f"group {group} of the cluster in {self.data}"
        )
        where = "" if group == FIRST_GROUP else f" --in-group {group}"
        change = f"add{where}" if count > len(nodes) else f"remove {last}"
        return LocalError(
            f"{which} has {len(nodes)} nodes, not {count}",
            "members are added and removed one at a time while the cluster runs",
            f"raftmq up --nodes {len(nodes)} --detach && raftmq node {change}    "
            "(once for each; or another cluster with --data)",
            ExitCode.REFUSED,
        )

    def _as_recorded(self, nodes: list[NodeRecord]) -> list[NodeRecord]:
        """Returns the nodes whose files were found, completed from cluster.json. Adds the nodes of cluster.json whose
        folders are missing, unless `raftmq node remove` has set them aside."""
        recorded = self._recorded()
        known = [
            replace(node, pid=recorded[node.key].pid, replaces=recorded[node.key].replaces)
            if node.key in recorded
            else node
            for node in nodes
        ]
        keys = [node.key for node in nodes]
        gone = [node for node in recorded.values() if node.key not in keys and not node.home.exists()]
        there = [node for node in gone if not (node.home.parent / REMOVED / node.home.name).exists()] if nodes else []
        return sorted([*known, *there], key=lambda node: node.key)

    def _recorded(self) -> dict[tuple[int, int], NodeRecord]:
        """Returns the nodes of cluster.json by (group, id); {} without the file."""
        return {node.key: node for node in read_cluster(self.data).nodes} if self._has_file() else {}

    def _has_file(self) -> bool:
        return (self.data / CLUSTER_FILE).exists()


def prepare_data_dir(data: Path) -> None:
    """Makes the data directory. Raises LocalError if it is a file, cannot be made, or holds something else."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {path.name for path in data.iterdir()}
    except OSError as error:
        raise LocalError(
            f"{data} cannot be the data directory",
            error.strerror or str(error),
            "raftmq up --data DIR    (or repeat the command as the user who owns that directory)",
            ExitCode.REFUSED,
        ) from None
    if content and CLUSTER_FILE not in content and not node_files(data):
        if content <= {"lock", BEGUN, USERS_KEY, *(name for name in content if name.startswith(f".{CLUSTER_FILE}"))}:
            return
        raise LocalError(
            f"{data} is not a data directory of RaftMQ",
            f"it contains {', '.join(sorted(content)[:3])} but no {CLUSTER_FILE}",
            "raftmq up --data DIR    (with an empty or new DIR)",
            ExitCode.REFUSED,
        )
