"""`raftmq serve` and `raftmq init`: a node under other supervision (systemd, compose), and its data directory."""

from __future__ import annotations

import os
from pathlib import Path

import click

from raftmq.commands.common import json_option, show

_CONFIG = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--config", "config", type=_CONFIG, required=True, metavar="FILE", help="The node's raftmq.toml.")
def serve(config: Path) -> int:
    """Run one node in the foreground until SIGTERM or Ctrl-C."""
    from cluster.node.__main__ import main as run_node

    return run_node(["--config", str(config)])


@click.command()
@click.option(
    "--config",
    "configs",
    type=_CONFIG,
    required=True,
    multiple=True,
    metavar="FILE",
    help="A member's raftmq.toml; repeat for every member.",
)
@click.option(
    "--leave-lost",
    is_flag=True,
    help="Succeed when some directories were lost: they stay empty, and their nodes refuse to start.",
)
@json_option
def init(configs: tuple[Path, ...], leave_lost: bool, as_json: bool) -> None:
    """Create the data directories of a new cluster, all of them or none.

    Give one --config for every member. If all data directories already contain the same cluster, the command does
    nothing, so it can run before every start. If only some do, it refuses: an empty directory must not replace a
    member's lost data.
    """
    from raftmq.local.init import create_data_dirs

    made = create_data_dirs(list(configs), os.environ, leave_lost=leave_lost)
    created = f"created {len(configs)} data directories for the new cluster {made.cluster_uuid}"
    there = f"nothing to do: all {len(configs)} directories contain the cluster {made.cluster_uuid}"
    answer = {"created": made.created, "cluster_uuid": str(made.cluster_uuid), "lost": list(made.lost)}
    if made.lost:
        nodes = ", ".join(map(str, made.lost))
        there = (
            f"the directory of node {nodes} is empty, the others contain the cluster {made.cluster_uuid}: it stays "
            "empty, because an empty node must not vote in place of the old one\n"
            f"replace the node while the others run: raftmq node replace {made.lost[0]}"
        )
    show(as_json, answer, created if made.created else there)
