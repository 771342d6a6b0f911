"""`raftmq links` shows the state of the links between nodes; `raftmq reload` has nodes read their files again."""

from __future__ import annotations

from typing import Any

import click

from cluster.config.local_layout import NodeName, name_of
from raftmq.commands.shared_options import cluster_options, console, print_json, print_table, show_problems
from raftmq.commands.value_types import NodeNameType
from raftmq.local.http.all_groups import Asked, all_groups, each_node_of, named
from raftmq_wire.errors import ExitCode, LocalError

_LINKS = "/v1/links"
_COLOURS = {"TRANSFER": "green", "HANDSHAKE": "cyan", "READY": "yellow", "SUSPEND": "dim", "SHUTDOWN": "red"}


@click.command()
@cluster_options
def links(data: str | None, admin: str | None, as_json: bool) -> int:
    """Show the links between the nodes, as each node sees its own.

    READY: connected, nothing received yet. HANDSHAKE: finding the index at which to continue. TRANSFER: entries and
    acknowledgements flow. SUSPEND: paused, for the reason shown. SHUTDOWN: not connected. Exit code: 1 if a link has
    been READY for more than 10 s, 4 if no node answers.
    """
    asked, silent = each_node_of(all_groups(admin, data, members=True), _LINKS)
    views = [_with_names(each) for each in asked]
    if as_json:
        print_json({"schema": 1, "nodes": views})
    else:
        _print(views)
        show_problems(silent)
    findings = [link["finding"] for view in views for link in view["links"] if link["finding"]]
    return ExitCode.FAILED if findings else ExitCode.OK


def _with_names(asked: Asked) -> dict[str, Any]:
    """Returns a node's answer, with the names of the nodes at the other ends of its links added."""
    links = [{**link, "peer": name_of(asked.group, link["peer"])} for link in asked.view["links"]]
    return {**asked.view, "links": links}


def _print(views: list[dict[str, Any]]) -> None:
    from rich.text import Text

    links = [(view["node"], link) for view in views for link in view["links"]]
    rows = [
        [
            str(node),
            str(link["peer"]),
            Text(link["state"], _COLOURS[link["state"]]),
            _age(link["age_ms"]),
            None if link["round_trip_ms"] is None else f"{link['round_trip_ms']:g} ms",
            link["lag_entries"],
            link["reason"],
        ]
        for node, link in links
    ]
    titles = ["from", "to", "state", "for", "round trip", "behind", "reason"]
    print_table(titles, rows, left=("state", "reason"))
    for node, link in links:
        if link["finding"]:
            console().print(f"node {node}: {link['finding']}", markup=False, style="red", soft_wrap=True)


def _age(age_ms: int) -> str:
    seconds = age_ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@click.command()
@click.option("--node", type=NodeNameType(click.IntRange(1)), metavar="N", help="Only this node.")
@cluster_options
def reload(node: NodeName | None, data: str | None, admin: str | None, as_json: bool) -> int:
    """Make running nodes read their configuration again.

    Some keys can change while a node runs: raftmq config explain KEY says which. The command names changed keys that
    need a restart. An invalid file changes nothing. Exit code: 5 if a node refused its file, 4 if no node answers.
    """
    views, refusals = [], []
    asked, silent = each_node_of(all_groups(admin, data, members=True), _LINKS, node)
    for group, api, links_view in asked:
        try:
            views.append(named(api.post("/v1/config/reload", {}), group))
        except LocalError as refusal:
            refusals.append((links_view["node"], refusal))
    if as_json:
        print_json({"schema": 1, "nodes": views, "refused": [{"node": n, "why": str(e)} for n, e in refusals]})
    else:
        for view in views:
            _print_reload(view)
        show_problems(silent)
    if refusals:
        number, error = refusals[0]
        raise LocalError(f"node {number}: {error.what}", error.why, error.fix, ExitCode.REFUSED)
    return ExitCode.OK


def _print_reload(view: dict[str, Any]) -> None:
    number = view["node"]
    overruled = view.get("overruled", [])
    if not view["applied"] and not view["needs_restart"] and not overruled:
        click.echo(f"node {number}: nothing has changed")
    for change in view["applied"]:
        click.echo(f"node {number}: {change['key']} is {change['after']} now (was {change['before']})")
    for change in view["needs_restart"]:
        click.echo(f"node {number}: {change['key']} takes effect after a restart: raftmq restart {number}")
    for change in overruled:
        says = f"{change['key']} = {change['after']} does not count, the cluster has {change['before']}"
        click.echo(f"node {number}: {says}: raftmq config set {change['key']} VALUE")
