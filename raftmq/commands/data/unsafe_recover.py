"""`raftmq unsafe-recover`: if the majority is lost for ever, makes one survivor the only node of a new cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
@json_option
def unsafe_recover(directory: Path, plan: bool, accept_data_loss: bool, cluster_id: str, as_json: bool) -> None:
    """Make the stopped survivor in DIR the only node of a new cluster.

    Use it only when a majority of the nodes is lost for good, disks included. DIR is the survivor's own data directory
    (node.data_dir). Acknowledged messages may be lost. Compare the plans of all survivors and take the one with the
    highest last term, then the highest last index.
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
    members = recover(path, cluster_id, time.time_ns() // 1_000_000)
    _tell_done(survivor, members, as_json)


def _tell_plan(survivor: Survivor, as_json: bool) -> None:
    identity, tail = survivor.identity, survivor.tail
    answer = {
        "directory": str(survivor.directory),
        "cluster_uuid": str(identity.cluster_uuid),
        "node": identity.node_id,
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
        f"node         {identity.node_id} in {survivor.directory}",
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
    node = survivor.identity.node_id
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
        f"node {node} is the only voter of the new cluster {members.cluster_uuid} from index {members.index} on",
        "next",
        "  - in its raftmq.toml, leave only its own [[peers]] table, and remove cluster.id if it is set;",
        "    in a local cluster, move the lost nodes' folders away:",
        "    mkdir -p .raftmq/removed && mv .raftmq/n1 .raftmq/removed",
        "  - start it: raftmq serve --config raftmq.toml    (or raftmq up)",
        "  - the alarm unsafe_recovered stays until: raftmq alarm ack unsafe_recovered",
        "  - then return to three nodes: raftmq node add, twice",
    )
