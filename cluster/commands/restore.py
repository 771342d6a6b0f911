"""`raftmq restore`: a new cluster from a backup."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cluster.commands.common import console, json_option, print_json


@click.command()
@click.option(
    "--from", "source", required=True, metavar="DIR/NAME", type=click.Path(path_type=Path), help="The backup."
)
@click.option(
    "--into", required=True, metavar="NEWDIR", type=click.Path(path_type=Path), help="A new or empty directory."
)
@click.option("--nodes", default=3, show_default=True, type=int, help="How many nodes the new cluster has.")
@click.option("--base-port", type=int, metavar="P", help="Use ports in a row from P instead of RocketMQ's usual ones.")
@json_option
def restore(source: Path, into: Path, nodes: int, base_port: int | None, as_json: bool) -> None:
    """Make a new cluster out of a backup, laid out as `raftmq up` lays it out.

    It has a uuid of its own; topics, groups, offsets and messages are those of the backup. The old cluster is not
    touched and may still run, at other ports.
    """
    from cluster.backup.restore import restore as make

    with console(stderr=True).status("starting") as spinner:
        made = make(
            source.absolute(),
            into.absolute(),
            count=nodes,
            base_port=base_port,
            now_ms=time.time_ns() // 1_000_000,
            on_stage=spinner.update,
        )
    manifest = made.manifest
    if as_json:
        told = {"data": str(into.absolute()), "nodes": nodes, "cluster_uuid": str(made.cluster_uuid)}
        print_json({"schema": 1, **told, "from": manifest.name, "index": manifest.index, "digest": manifest.digest})
        return
    click.echo(f"made the new cluster {made.cluster_uuid} of {nodes} nodes in {into}")
    click.echo(f"it goes on from cluster {manifest.cluster_uuid} at index {manifest.index} ({manifest.name})")
    click.echo(f"start it: raftmq up --data {into}")
