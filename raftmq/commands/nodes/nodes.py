"""`raftmq down`, `kill` and `restart`: stop and start the processes of the local cluster."""

from __future__ import annotations

import time

import click

from cluster.config.local_layout import BusyError, NodeName, NodeRecord, groups_of, key_of, node_object, read_cluster
from cluster.runtime.byte_sizes import size_of
from raftmq.commands.aimed import aimed_here
from raftmq.commands.name_completion import complete_nodes
from raftmq.commands.shared_options import counted, data_dir, data_option, json_option, show, told_of
from raftmq.commands.value_types import NodeNameType
from raftmq.local import stop_check
from raftmq.local.cluster import LocalCluster, bytes_in
from raftmq.local.final_tier_upload import Rest, bring_rest
from raftmq.local.http.admin_http import drain_node
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import is_running
from raftmq_wire.errors import LocalError

NODE = click.argument("node", type=NodeNameType(), shell_complete=complete_nodes)
WAIT_S = 10.0
"""Time in seconds to wait for replicas that catch up."""


@click.command()
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait until all of the log is in the tier, if there is one (default: tier.stop_grace_ms).",
)
@click.option("--purge", is_flag=True, help="Afterwards delete the data directory with every message.")
@click.option("--yes", is_flag=True, help="With --purge: do not ask.")
@click.option("--dry-run", is_flag=True, help="With --purge: only show what would be deleted.")
@data_option
@json_option
def down(grace_s: float | None, purge: bool, yes: bool, dry_run: bool, data: str | None, as_json: bool) -> None:
    """Stop the cluster; nothing is deleted, unless --purge is given.

    If a tier is configured, the leader first closes the last segment and uploads what is missing. Exits with 8 if
    something is left when the time is over; the next start goes on with it.
    """
    cluster = LocalCluster(data_dir(data))
    if (yes or dry_run) and not purge:
        raise click.UsageError("--yes and --dry-run go with --purge: nothing else is deleted")
    if purge and (dry_run or not yes):
        held = f"{cluster.data} ({size_of(bytes_in(cluster.data))}, {counted(len(cluster.nodes), 'node')})"
        if dry_run:
            show(as_json, {"stopped": [], "deleted": None}, f"nothing was changed; {held} would be deleted")
            return
        click.confirm(f"stop the nodes and delete {held}?", abort=True, err=True)
    if purge:
        stopped = cluster.down()
        cluster.purge()
        told = f"stopped {told_of(stopped)} and deleted {cluster.data}"
        show(as_json, {"stopped": stopped, "deleted": str(cluster.data)}, told)
        return
    rest, allowed_s = _bring_rest(cluster, grace_s)
    stopped = cluster.down()
    if rest is not None:
        raise rest.error(allowed_s)
    told = f"stopped {told_of(stopped)}; the data stays in {cluster.data}" if stopped else "no node was running"
    show(as_json, {"stopped": stopped, "data": str(cluster.data)}, told)


def _bring_rest(cluster: LocalCluster, grace_s: float | None) -> tuple[Rest | None, float]:
    """Uploads the rest of each group's log to the tier. Returns (the rest of the first group that could not upload all,
    or None if all could; seconds allowed)."""
    left: tuple[Rest | None, float] = (None, 0.0)
    for group in groups_of(cluster.nodes):
        found = bring_rest(addresses_of(cluster.of_group(group)), grace_s, lambda text: click.echo(text, err=True))
        left = found if left[0] is None else left
    return left


@click.command()
@NODE
@click.option("--force", is_flag=True, help="Also while another command, such as an upgrade, starts and stops nodes.")
@data_option
@json_option
def kill(node: NodeName, force: bool, data: str | None, as_json: bool) -> None:
    """Kill one NODE (kill -9) to see what happens; registry/1 is a process of the registry."""
    cluster = LocalCluster(data_dir(data))
    try:
        pid = cluster.kill(node, beside_others=force)
    except BusyError as busy:
        fix = f"raftmq kill {node} --force    (a drill beside that command; or wait for it to end)"
        raise LocalError(busy.what, busy.why, fix, busy.exit_code) from None
    told = f"{node_object(*key_of(node))} (pid {pid}) is gone; type: {aimed_here(cluster.way_back(node))}"
    show(as_json, {"node": node, "killed_pid": pid}, told)


@click.command()
@NODE
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="First drain the node and serve for so long: clients of RocketMQ ask for routes every 30 s.",
)
@click.option("--force", is_flag=True, help="Do not ask the cluster whether it can do without the node.")
@data_option
@json_option
def restart(node: NodeName, grace_s: float, force: bool, data: str | None, as_json: bool) -> None:
    """Stop NODE if it is running, start it, and wait until it answers.

    A node that runs is only stopped if the cluster says that writes go on without it. A process of the registry
    (registry/1) is stopped at once: nothing depends on it.
    """
    cluster = LocalCluster(data_dir(data))
    record = read_cluster(cluster.data).process(node)
    if isinstance(record, NodeRecord):
        addresses = addresses_of(cluster.of_group(record.group))
        if not force and is_running(record):
            stop_check.require(addresses, node, WAIT_S, otherwise=f"    (or raftmq restart {node} --force)")
        if grace_s:
            drain_node(node, addresses)
            time.sleep(grace_s)
    pid = cluster.restart(node)
    show(as_json, {"node": node, "pid": pid}, f"{node_object(*record.key)} is back (pid {pid})")
