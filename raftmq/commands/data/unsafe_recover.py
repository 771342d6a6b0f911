"""`raftmq unsafe-recover`: if the majority is lost for good, makes one survivor the only node of a new cluster."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.config.local_layout import NodeName, group_folder, name_of
from raftlog.types import FIRST_GROUP
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import NodeDirectory, json_option, show
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.backup.unsafe_recovery import Survivor
    from raftlog.membership import Membership


@click.command("unsafe-recover")
@click.argument("directory", metavar="DIR", type=NodeDirectory())
@click.option("--plan", "--dry-run", "plan", is_flag=True, help="Only show what this node has and what may be lost.")
@click.option("--accept-data-loss", is_flag=True, help="Do it.")
@click.option("--cluster-id", default="", metavar="UUID", help="The cluster's id, typed by hand from the plan.")
@click.option(
    "--into-cluster",
    "into",
    type=click.UUID,
    metavar="UUID",
    help="With several groups: the new cluster into which the survivor of another group was recovered.",
)
@json_option
def unsafe_recover(
    directory: Path, plan: bool, accept_data_loss: bool, cluster_id: str, into: uuid.UUID | None, as_json: bool
) -> None:
    """Make the stopped survivor in DIR the only node of a new cluster.

    Use it only when a majority of the nodes is lost for good, disks included. DIR is the survivor's own data directory
    (node.data_dir). Acknowledged messages may be lost. Compare the plans of all survivors and take the one with the
    highest last term, then the highest last index.

    A cluster of several groups goes on as a whole only if one survivor of each group is recovered, all into one new
    cluster: the first without --into-cluster, the others with the id that it prints.
    """
    from cluster.backup.unsafe_recovery import look_at, recover

    path = directory.absolute()
    survivor = look_at(path)
    if plan:
        _tell_plan(survivor, as_json)
        return
    if not accept_data_loss:
        raise LocalError(
            "nothing was done",
            "this may lose acknowledged messages, which you must accept explicitly",
            f"raftmq unsafe-recover {directory} --plan",
            ExitCode.USAGE,
        )
    members = recover(path, cluster_id, time.time_ns() // 1_000_000, into)
    _tell_done(survivor, members, as_json)


def _tell_plan(survivor: Survivor, as_json: bool) -> None:
    identity, tail = survivor.identity, survivor.tail
    answer = {
        "directory": str(survivor.directory),
        "cluster_uuid": str(identity.cluster_uuid),
        "node": _name(survivor),
        **({"other_groups": survivor.other_groups} if survivor.other_groups else {}),
        "last_index": tail.index,
        "last_term": tail.term,
        "last_timestamp_ms": survivor.timestamp_ms,
        "term": survivor.term,
        "applied_index": survivor.applied_index,
        "committed_index": survivor.committed_index,
        "sound": survivor.sound,
        "vote_withheld": survivor.withheld or None,
        "losses": survivor.losses,
    }
    when = time_text(survivor.timestamp_ms)
    show(
        as_json,
        answer,
        f"cluster      {identity.cluster_uuid}",
        f"node         {_name(survivor)} in {survivor.directory}",
        *(f"groups       {line}" for line in _cut_off(survivor)),
        f"last entry   index {tail.index}, term {tail.term}, of {when} (log time)",
        f"saved term   {survivor.term}",
        f"committed    known up to index {survivor.committed_index} (applied up to {survivor.applied_index})",
        "may be lost",
        *(f"  - {loss}" for loss in survivor.losses),
        "compare      every other survivor's plan: highest last term first, then highest last index",
        "instead      if a majority can come back with its disks, wait for it: then nothing is lost",
        f"to do it     raftmq unsafe-recover {survivor.directory} --accept-data-loss --cluster-id UUID",
    )


def _tell_done(survivor: Survivor, members: Membership, as_json: bool) -> None:
    node, was = _name(survivor), survivor.identity.cluster_uuid
    home = group_folder(Path(".raftmq"), survivor.identity.group_id) / "n1"
    where = "" if survivor.identity.group_id == FIRST_GROUP else f" --in-group {survivor.identity.group_id}"
    cluster_id = f"set cluster.id to {members.cluster_uuid}" if where else "remove cluster.id if it is set"
    others = (
        f"  - before that, for one stopped survivor of each other group ({_listed(survivor.other_groups)}): raftmq "
        f"unsafe-recover DIR --accept-data-loss --cluster-id {was} --into-cluster {members.cluster_uuid}"
    )
    answer = {
        "node": node,
        "cluster_uuid": str(members.cluster_uuid),
        "index": members.index,
        "was_cluster_uuid": str(survivor.identity.cluster_uuid),
        "detail": members.detail,
    }
    show(
        as_json,
        answer,
        f"node {node} is the only voter of {_whose(survivor)}the new cluster {members.cluster_uuid} from index "
        f"{members.index} on",
        "next",
        *([others] if survivor.other_groups else []),
        f"  - in its raftmq.toml, leave only its own [[peers]] table, and {cluster_id};",
        "    in a local cluster, move the lost nodes' folders away:",
        f"    mkdir -p .raftmq/removed && mv {home} .raftmq/removed",
        "  - start it: raftmq serve --config raftmq.toml    (or raftmq up)",
        "  - the alarm unsafe_recovered stays until: raftmq alarm ack unsafe_recovered",
        f"  - then return to three nodes: raftmq node add{where}, twice",
    )


def _name(survivor: Survivor) -> NodeName:
    return name_of(survivor.identity.group_id, survivor.identity.node_id)


def _whose(survivor: Survivor) -> str:
    """Returns the node's group in words, if the cluster has several groups; else ""."""
    return f"group {survivor.identity.group_id} in " if survivor.other_groups else ""


def _cut_off(survivor: Survivor) -> list[str]:
    """Returns a line about the other groups of the cluster; [] if there are none."""
    if not survivor.other_groups:
        return []
    return [
        f"this is group {survivor.identity.group_id}; in a new cluster it is cut off from group "
        f"{_listed(survivor.other_groups)}, unless one survivor of each is recovered into it too (--into-cluster)"
    ]


def _listed(groups: tuple[int, ...]) -> str:
    return ", ".join(map(str, groups))
