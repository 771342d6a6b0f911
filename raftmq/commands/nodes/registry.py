"""`raftmq registry`: the processes that know all groups of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cluster.config.local_layout import name_of
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import cluster_options, print_json, print_table, show_problems
from raftmq.local.http.all_groups import all_groups, in_one, told_by_each
from raftmq.local_path import LocalPath


@command_group()
def registry() -> None:
    """Run a process of the registry of several groups, and see which are reached."""


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


@registry.command()
@cluster_options
def status(data: str | None, admin: str | None, as_json: bool) -> None:
    """Show which processes of the registry are reached, by a node of each group of brokers."""
    told, silent = told_by_each(all_groups(admin, data), lambda api: api.local("/v1/registry"))
    show_problems(silent)
    if as_json:
        print_json({"schema": 1, **in_one(told)})
        return
    show_reached(told)


_YES = {True: "yes", False: "no", None: None}


def _state(process: Mapping[str, Any]) -> list[object]:
    """Returns the cells of a table row about a process; dashes if it is not reached."""
    missing = process.get("missing")
    ready = f"without {', '.join(map(str, missing))}" if missing else _YES[process.get("ready")]
    return [ready, process.get("living"), _YES[process.get("accepts")], process.get("leader")]


def show_reached(told: Mapping[int, dict[str, Any]]) -> None:
    """Prints which processes of the registry the nodes reach. `told`: group -> the answer of one of its nodes."""
    if not any(answer["processes"] for answer in told.values()):
        click.echo("the cluster has no registry: cluster.registry is empty")
        return
    rows = [
        [str(name_of(group, answer["node"])), each["id"], each["address"], _YES[each["reached"]], *_state(each)]
        for group, answer in told.items()
        for each in answer["processes"]
    ]
    titles = ["node", "registry", "address", "reached", "ready", "nodes", "accepts", "leader"]
    print_table(titles, rows, left=("node", "address", "reached", "ready", "accepts"))
    for group, answer in told.items():
        if not answer["has_majority"]:
            click.echo(f"node {name_of(group, answer['node'])} reaches no majority of the registry")
