"""Makes the directories of further groups of a local cluster, all of them or none.

The first group makes the cluster: its uuid and its secret. A further group gets both, and the settings of the first
group's nodes; nothing of the first group is changed for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.config.loading import load
from cluster.config.local_layout import GROUP_FOLDERS, NodeRecord, group_folder, sync_folder
from cluster.config.node_files import GROUPS_SECRET, GroupFacts, write_group_configs
from cluster.peer.secret import path_of
from cluster.peer.secret_files import read_keys, write_keys
from cluster.state.checkpoints import Checkpoints
from raftlog.storage.files.fs import OsFileSystem
from raftlog.types import FIRST_GROUP
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.init import check_data_dirs, create_data_dirs
from raftmq.local.made_mark import SUFFIX, mark_beside
from raftmq.local.process import is_running
from raftmq.local.tls.local_tls import certify, speaks_tls
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.cluster_wide.broker_groups import usual_name
from statemachine.levels import GROUPS_LEVEL

BEGUN = "BEGUN"


@contextlib.contextmanager
def begun(folder: Path) -> Iterator[None]:
    """Marks the folder of a group while its content is made; the mark stays if that fails.

    FOLDER/BEGUN exists from before the first file until all data directories are complete. No node of the group starts
    during that time, so a command that finds the file (after Ctrl-C, kill -9 or a power loss) may remove what was made
    and begin again.
    """
    mark = folder / BEGUN
    mark.touch()
    sync_folder(folder)
    yield
    sync_folder(folder)
    mark.unlink()
    sync_folder(folder)


def undo_begun(data: Path) -> None:
    """Removes the files that an interrupted start made for a group, the first one or a further one."""
    for folder in (data, *data.glob(GROUP_FOLDERS)):
        if not (folder / BEGUN).exists():
            continue
        for home in folder.glob("n[0-9]*"):
            shutil.rmtree(home)
        if folder != data:  # the mark next to the secret would say that the group was made, but it was not
            mark_beside(data / GROUPS_SECRET, int(folder.name[1:])).unlink(missing_ok=True)
        sync_folder(folder)
        (folder / BEGUN).unlink()


def make_group(nodes: Sequence[NodeRecord], first: Sequence[NodeRecord]) -> None:
    """Makes the directories of all nodes of a further group: if it is interrupted, `undo_begun` removes what it made.
    `first`: nodes of the first group whose directories are there. Raises ConfigError, LocalError."""
    data, group = nodes[0].data, nodes[0].group
    uuid = str(check_data_dirs(first))
    like = load(first[0].config_path)
    _share_secret(data, first, uuid)
    folder = group_folder(data, group)
    folder.mkdir(mode=0o700, exist_ok=True)
    with begun(folder):
        name = usual_name(like.cluster.broker_name, group)
        write_group_configs(nodes, first[0].config_path, GroupFacts(uuid, name, first))
        create_data_dirs([node.config_path for node in nodes], os.environ)
        if speaks_tls(data):
            certify(data, nodes)


def add_groups(nodes: Sequence[NodeRecord], first: Sequence[NodeRecord]) -> None:
    """Adds the groups of these nodes to the cluster, unless they were added before. `first`: nodes of the first group,
    whose leader takes writes. Raises LocalError."""
    names = {node.group: load(node.config_path).cluster.broker_name for node in nodes}
    if names:
        api = AdminApi([address_of(node) for node in first], "raftmq status")
        known = {row["group"] for row in api.local("/v1/broker-groups")["groups"]}
        for group in sorted(names.keys() - known):
            api.post("/v1/broker-groups", {"group": group, "name": names[group]})


def know_each_other(nodes: Sequence[NodeRecord]) -> bool:
    """Returns True once each of these nodes answers and knows members of all groups of the nodes, except for retired
    groups. Until then a new topic would get queues in fewer groups."""
    groups = {node.group for node in nodes}
    for node in nodes:
        try:
            told = AdminApi([address_of(node)], "raftmq status").local("/v1/broker-groups")["groups"]
        except LocalError:
            return False
        if not groups <= {row["group"] for row in told if row["members"] or row["state"] == "retired"}:
            return False
    return True


def check_level(first: Sequence[NodeRecord]) -> None:
    """Raises LocalError if the first group, whose nodes are `first`, is known to have a level without further groups.
    At such a level a further group could not be added, so this is called before one is made. Asks the running nodes; if
    none runs, reads the newest checkpoint."""
    running = [node for node in first if is_running(node)]
    if running:
        level = int(AdminApi([address_of(node) for node in running], "raftmq status").local("/v1/upgrade")["level"])
    else:
        made = [Checkpoints(OsFileSystem(), node.home / "data", FIRST_GROUP).all()[:1] for node in first]
        level = max([each.manifest.level for found in made for each in found], default=GROUPS_LEVEL)
    if level < GROUPS_LEVEL:
        raise LocalError(
            "the cluster cannot have further groups yet",
            f"group {FIRST_GROUP} has level {level}, and several groups need level {GROUPS_LEVEL}; nothing was made",
            f"{'' if running else 'raftmq up && '}raftmq upgrade finalize    (then repeat the command)",
            ExitCode.REFUSED,
        )


def _share_secret(data: Path, first: Sequence[NodeRecord], uuid: str) -> None:
    """Writes the secret of the first group to the file that the nodes of all further groups read. Raises LocalError."""
    keys = next((keys for node in first if (keys := read_keys(path_of(load(node.config_path))))), ())
    if not keys:
        raise LocalError(
            "the cluster has no secret, and cannot have further groups",
            "nodes of different groups prove the cluster's secret to each other",
            "raftmq secret create    (while the nodes run; then repeat the command)",
            ExitCode.REFUSED,
        )
    if read_keys(data / GROUPS_SECRET) != keys:
        write_keys(data / GROUPS_SECRET, keys, uuid)


def remove_groups(data: Path) -> None:
    """Removes the files of a cluster of several groups that are outside its nodes' folders: the shared secret, marks,
    and empty group folders. Other files stay."""
    secret = data / GROUPS_SECRET
    for path in (secret, *data.glob(f"{GROUPS_SECRET}.g*{SUFFIX}")):
        path.unlink(missing_ok=True)
    for folder in data.glob(GROUP_FOLDERS):
        with contextlib.suppress(OSError):  # the folder has other files in it
            folder.rmdir()


def check_lowered(there: Sequence[int], wanted: int | None, data: Path) -> None:
    """Raises LocalError if the cluster has groups but not the first one, or a group with a number above `wanted`.
    `there`: the numbers of its groups."""
    if there and FIRST_GROUP not in there:
        raise LocalError(
            f"the directories of group {FIRST_GROUP} of the cluster in {data} are gone",
            f"group {there[0]} is there; the cluster's topics, users and settings are in group {FIRST_GROUP}",
            f"put n1, n2, … back into {data}    (or make another cluster with --data)",
            ExitCode.REFUSED,
        )
    if wanted is not None and there and wanted < max(there):
        raise LocalError(
            f"the cluster in {data} has {max(there)} groups, not {wanted}",
            f"messages are in group {max(there)}; a group is never taken away by a start",
            f"raftmq up --groups {max(there)}    (or without --groups: all that are there)",
            ExitCode.REFUSED,
        )
