"""`raftmq registry`: the processes that know all groups of brokers."""

from __future__ import annotations

from pathlib import Path

import click

from raftmq.commands.command_group import command_group
from raftmq.local_path import LocalPath


@command_group()
def registry() -> None:
    """Run a process of the registry of several groups."""


@registry.command()
@click.option(
    "--config",
    "config",
    type=LocalPath(dir_okay=False, readable=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The process's registry.toml.",
)
def run(config: Path) -> int:
    """Run one process of the registry in the foreground until SIGTERM or Ctrl-C."""
    from cluster.registry.__main__ import main

    return main(["--config", str(config)])
