"""`raftmq restore`: a new cluster from a backup."""

from __future__ import annotations

import time
from pathlib import Path

import click

from raftmq.commands.common import console, json_option, show


@click.command()
@click.option("--from", "source", required=True, metavar="DIR/NAME|URL/NAME", help="The backup.")
@click.option(
    "--into", required=True, metavar="NEWDIR", type=click.Path(path_type=Path), help="A new or empty directory."
)
@click.option("--nodes", default=3, show_default=True, type=int, help="Number of nodes of the new cluster.")
@click.option(
    "--base-port", type=int, metavar="P", help="Use consecutive ports from P instead of RocketMQ's usual ones."
)
@json_option
def restore(source: str, into: Path, nodes: int, base_port: int | None, as_json: bool) -> None:
    """Create a new cluster from a backup, in the layout of `raftmq up`.

    The new cluster has its own uuid; its topics, groups, offsets and messages are those of the backup. The old cluster
    is not changed and may still be running, on other ports.
    """
    from cluster.backup.restore import restore as make
    from cluster.backup.sources import local_copy

    with console(stderr=True).status("starting") as spinner, local_copy(source, into, spinner.update) as backup:
        made = make(
            backup,
            into.absolute(),
            count=nodes,
            base_port=base_port,
            now_ms=time.time_ns() // 1_000_000,
            on_stage=spinner.update,
        )
    manifest = made.manifest
    told = {"data": str(into.absolute()), "nodes": nodes, "cluster_uuid": str(made.cluster_uuid)}
    show(
        as_json,
        {**told, "from": manifest.name, "index": manifest.index, "digest": manifest.digest},
        f"created the new cluster {made.cluster_uuid} with {nodes} nodes in {into}",
        f"it continues cluster {manifest.cluster_uuid} from index {manifest.index} ({manifest.name})",
        f"start it: raftmq up --data {into}",
    )
