"""`raftmq down`, `kill` and `restart`: end and start the processes of the local cluster."""

from __future__ import annotations

import time

import click

from raftmq.commands.common import data_dir, data_option, json_option, show
from raftmq.local.admin_http import drain_node
from raftmq.local.cluster import LocalCluster


@click.command()
@data_option
@json_option
def down(data: str | None, as_json: bool) -> None:
    """Stop the cluster; nothing is deleted."""
    cluster = LocalCluster(data_dir(data))
    stopped = cluster.down()
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
@data_option
@json_option
def restart(node: int, grace_s: float, data: str | None, as_json: bool) -> None:
    """Stop NODE if it is running, start it, and wait until it answers."""
    if grace_s:
        drain_node(node, [f"127.0.0.1:{each.admin_port}" for each in LocalCluster(data_dir(data)).nodes])
        time.sleep(grace_s)
    pid = LocalCluster(data_dir(data)).restart(node)
    show(as_json, {"node": node, "pid": pid}, f"node {node} is back (pid {pid})")
