"""`raftmq down`, `kill` and `restart`: end and start the processes of the local cluster."""

from __future__ import annotations

import time

import click

from raftmq.commands.common import data_dir, data_option, json_option, show
from raftmq.local import may_stop
from raftmq.local.admin_http import drain_node
from raftmq.local.cluster import LocalCluster
from raftmq.local.credentials import addresses_of
from raftmq.local.process import is_running
from raftmq.local.tier_rest import bring_rest

WAIT_S = 10.0
"""Time to wait for copies that catch up, in seconds."""


@click.command()
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait until all of the log is in the tier, if there is one (default: tier.stop_grace_ms).",
)
@data_option
@json_option
def down(grace_s: float | None, data: str | None, as_json: bool) -> None:
    """Stop the cluster; nothing is deleted.

    If a tier is configured, the leader first closes the last segment and uploads what is missing. Exits with 8 if
    something is left when the time is over; the next start goes on with it.
    """
    cluster = LocalCluster(data_dir(data))
    addresses = addresses_of(cluster.nodes)
    rest, allowed_s = bring_rest(addresses, grace_s, lambda text: click.echo(text, err=True))
    stopped = cluster.down()
    if rest is not None:
        raise rest.error(allowed_s)
    told = f"stopped {len(stopped)} nodes; the data stays in {cluster.data}" if stopped else "no node was running"
    show(as_json, {"stopped": stopped, "data": str(cluster.data)}, told)


@click.command()
@click.argument("node", type=int)
@data_option
@json_option
def kill(node: int, data: str | None, as_json: bool) -> None:
    """Kill one NODE (kill -9) to see what happens."""
    pid = LocalCluster(data_dir(data)).kill(node)
    told = f"node {node} (pid {pid}) is gone; start it again with: raftmq restart {node}"
    show(as_json, {"node": node, "killed_pid": pid}, told)


@click.command()
@click.argument("node", type=int)
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
def restart(node: int, grace_s: float, force: bool, data: str | None, as_json: bool) -> None:
    """Stop NODE if it is running, start it, and wait until it answers.

    A node that runs is only stopped if the cluster says that writes go on without it.
    """
    cluster = LocalCluster(data_dir(data))
    addresses = addresses_of(cluster.nodes)
    if not force and any(is_running(each) for each in cluster.nodes if each.id == node):
        may_stop.require(addresses, node, WAIT_S, otherwise=f"    (or raftmq restart {node} --force)")
    if grace_s:
        drain_node(node, addresses)
        time.sleep(grace_s)
    pid = cluster.restart(node)
    show(as_json, {"node": node, "pid": pid}, f"node {node} is back (pid {pid})")
