"""`raftmq scrub`: has nodes read and check everything on their disks now."""

from __future__ import annotations

import time
from typing import Any

import click

from cluster.config.local_layout import NodeName
from raftmq.commands.shared_options import cluster_options, counted, plain, print_json, show_problems
from raftmq.commands.value_types import NodeNameType
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.all_groups import all_groups, each_node_of, named
from raftmq_wire.errors import ExitCode

_POLL_S = 0.3


@click.command()
@click.option("--node", type=NodeNameType(click.IntRange(1)), metavar="N", help="Only this node.")
@click.option("--status", is_flag=True, help="Only show the result of the last scrub.")
@cluster_options
def scrub(node: NodeName | None, status: bool, data: str | None, admin: str | None, as_json: bool) -> int:
    """Make running nodes read their logs and rows again, and report what is wrong.

    A node also does this every 24 hours and after each unclean start. Damaged frames of the log are repaired from the
    other nodes as they are found. Exit code: 0 if nothing was found, 1 if something was found, 3 if a scrub did not
    finish.
    """
    asked, silent = each_node_of(all_groups(admin, data, members=True), "/v1/scrub", node)
    views = [each.view for each in asked]
    if not status:
        for each in asked:
            each.api.post("/v1/scrub", {})
        views = [named(_ended(each.api), each.group) for each in asked]
    if as_json:
        print_json({"schema": 1, "nodes": views})
    else:
        for view in views:
            _print(view)
        show_problems(silent)
    if any(view["failure"] for view in views):
        return ExitCode.UNKNOWN
    return ExitCode.FAILED if any(view["findings"] for view in views) else ExitCode.OK


def _ended(api: AdminApi) -> dict[str, Any]:
    while (view := api.local("/v1/scrub"))["running"]:
        time.sleep(_POLL_S)
    return view


def _print(view: dict[str, Any]) -> None:
    number = view["node"]
    if not view["started_ms"]:
        click.echo(f"node {number}: no scrub since it started")
        return
    read = f"{view['log_bytes']:,} bytes of log and {view['row_bytes']:,} of rows read"
    what = "runs" if view["running"] else f"failed: {view['failure']}" if view["failure"] else read
    click.echo(f"node {number}: {what}, {counted(len(view['findings']), 'finding')}")
    for finding in view["findings"]:
        click.echo(plain(f"  {finding}"))
