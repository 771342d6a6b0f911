"""`raftmq down`, `kill` and `restart`: end and start the processes of the local cluster."""

from __future__ import annotations

import click

from raftmq.commands.common import data_dir, data_option, json_option, print_json
from raftmq.local.cluster import LocalCluster


@click.command()
@data_option
@json_option
def down(data: str | None, as_json: bool) -> None:
    """Stop the cluster; nothing is deleted."""
    cluster = LocalCluster(data_dir(data))
    stopped = cluster.down()
    if as_json:
        print_json({"schema": 1, "stopped": stopped, "data": str(cluster.data)})
    else:
        click.echo(
            f"stopped {len(stopped)} nodes; the data stays in {cluster.data}" if stopped else "no node was running"
        )


@click.command()
@click.argument("node", type=int)
@data_option
@json_option
def kill(node: int, data: str | None, as_json: bool) -> None:
    """Kill one NODE (kill -9) to see what happens."""
    pid = LocalCluster(data_dir(data)).kill(node)
    if as_json:
        print_json({"schema": 1, "node": node, "killed_pid": pid})
    else:
        click.echo(f"node {node} (pid {pid}) is gone; start it again with: raftmq restart {node}")


@click.command()
@click.argument("node", type=int)
@data_option
@json_option
def restart(node: int, data: str | None, as_json: bool) -> None:
    """Stop NODE if it is running, start it, and wait until it answers."""
    pid = LocalCluster(data_dir(data)).restart(node)
    if as_json:
        print_json({"schema": 1, "node": node, "pid": pid})
    else:
        click.echo(f"node {node} is back (pid {pid})")
