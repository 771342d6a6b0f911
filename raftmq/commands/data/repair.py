"""`raftmq repair`: shows what is damaged on which node, and repairs it from the other nodes now."""

from __future__ import annotations

import time
from typing import Any

import click

from cluster.config.local_layout import NodeName, name_of
from raftmq.commands.shared_options import cluster_options, print_json, show_problems
from raftmq.commands.value_types import NodeNameType
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.all_groups import all_groups, each_node_of, named
from raftmq_wire.errors import ExitCode

_WAIT_S, _POLL_S = 60.0, 0.2


@click.command()
@click.option("--node", type=NodeNameType(click.IntRange(1)), metavar="N", help="Only this node.")
@click.option("--plan", "--dry-run", "plan", is_flag=True, help="Only show what is damaged and what would be done.")
@cluster_options
def repair(node: NodeName | None, plan: bool, data: str | None, admin: str | None, as_json: bool) -> int:
    """Repair running nodes: fetch damaged ranges of the log from other nodes and verify them.

    Nodes do this automatically as soon as they find damage; this command starts it at once and shows the result. Exit
    code: 0 if nothing is damaged (any longer), 1 if damage remains, 5 if there is no majority to fetch from.
    """
    asked, silent = each_node_of(all_groups(admin, data, members=True), "/v1/repair", node)
    views = [(group, view if plan or not view["damage"] else named(_mend(api), group)) for group, api, view in asked]
    if as_json:
        print_json({"schema": 1, "nodes": [view for _, view in views]})
    else:
        for group, view in views:
            _print(view, group, plan)
        show_problems(silent)
    return ExitCode.FAILED if any(view["damage"] or view["fenced"] for _, view in views) else ExitCode.OK


def _mend(api: AdminApi) -> dict[str, Any]:
    deadline = time.monotonic() + _WAIT_S
    view = api.post("/v1/repair", {})
    while view["damage"] and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        view = api.local("/v1/repair")
    return view


def _print(view: dict[str, Any], group: int, plan: bool) -> None:
    number = view["node"]
    for one in view["damage"]:
        doing = "to be fetched from" if plan else "not repaired; could not be fetched from"
        entries = f"entries {one['first_index']}..{one['last_index']}"
        where = f"positions {one['first_position']}..{one['end_position']} ({entries})"
        peers = ", ".join(f"node {name_of(group, peer)}" for peer in view["peers"])
        click.echo(f"node {number}: {where} are damaged, {doing} {peers}: {one['why']}")
    if view["vote_withheld"]:
        click.echo(f"node {number}: it lost entries and does not vote until it has caught up with a leader")
    if view["fenced"]:
        click.echo(f"node {number}: its rows are wrong; its next start replaces the state: raftmq restart {number}")
    if not (view["damage"] or view["vote_withheld"] or view["fenced"]):
        click.echo(f"node {number}: no damage")
