"""`raftmq status`: shows the leader and the state of each node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from cluster.config.local_layout import name_of
from raftlog.types import FIRST_GROUP
from raftmq.commands.aimed import aimed_here
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, console, counted, data_dir, plain, print_json, print_table
from raftmq.local.http.admin_http import ADMIN_VARIABLE, GivenAddresses, admin_addresses, raise_if_refused, status_of
from raftmq.local.http.credentials import address_of
from raftmq.local.retired_groups import retired_groups
from raftmq.local.status import json_of
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.local.registry_processes import RegistryView
    from raftmq.local.status import GroupStatus, NodeView

STYLES = {"critical": "red", "warning": "yellow", "info": "cyan"}
"""Severity of a finding -> the style in which rich prints it."""


@click.command()
@cluster_options
def status(data: str | None, admin: str | None, as_json: bool) -> int:
    """Show the leader and the state of each node.

    Exit code: 4 if no node answers; 5 if a node answers but denies this user the status; else 0, also if no node leads
    (the output then says so).
    """
    views, registry, where = _look(data, admin)
    nodes = [node for view in views for node in view.nodes]
    answered = any(view.term is not None for view in views)
    silent = None
    if not answered:
        elsewhere = GivenAddresses(node.elsewhere for node in nodes if node.elsewhere)
        silent = raise_if_refused(elsewhere or [address_of(node.record) for node in nodes])
    if as_json:
        print_json(views_json(views) | ({"registry": [each.to_json() for each in registry]} if registry else {}))
    elif answered:
        for view in views:
            _print_group(view)
        _print_registry(registry)
        if not elsewhere_named(data, admin):
            for group, folder in retired_groups(data_dir(data)).items():
                click.echo(f"group {group} has retired; what its nodes had is in {folder} until you delete it")
    if not answered:
        if as_json:
            return ExitCode.UNREACHABLE
        raise _unanswered(nodes, where, silent)
    return ExitCode.OK


def views_json(views: Sequence[GroupStatus]) -> dict[str, Any]:
    """Returns the output of `raftmq status --json`. `views`: of all groups, the first one first."""
    told = {**json_of(views), "findings": views[0].findings()}
    for view, group in zip(views, told.get("groups", ()), strict=False):
        group["findings"] = told["findings"] if view is views[0] else view.findings()
    return told


def _print_group(view: GroupStatus) -> None:
    out = console()
    out.print(_headline(view))
    titles = ["node", "state", "role", "term", "commit", "applied", "lag", "pid", "broker", "namesrv", "admin"]
    print_table(titles, [_row(view, node) for node in view.nodes], left=("state", "role"))
    for line in mode_lines(view):
        out.print(plain(line), markup=False, style="yellow", soft_wrap=True)
    for style, line in _problems(view):
        out.print(plain(line), markup=False, style=style, soft_wrap=True)
    for line in kernel_lines(view):
        out.print(line, markup=False, soft_wrap=True)


def _print_registry(registry: Sequence[RegistryView]) -> None:
    """Prints the processes of the registry of a local cluster; nothing if it has none."""
    from rich.text import Text

    if not registry:
        return
    rows = [
        [
            each.record.name,
            Text("down", "red")
            if not each.running
            else Text("silent", "yellow")
            if each.answer
            else Text("up", "green"),
            str(each.record.pid) if each.running else None,
            each.record.port,
            each.record.peer_port,
            each.answer or None,
        ]
        for each in registry
    ]
    print_table(["registry", "state", "pid", "clients", "nodes", "why"], rows, left=("registry", "state", "why"))


def _unanswered(nodes: Sequence[NodeView], where: str, silent: LocalError | None) -> LocalError:
    """Returns the error for the case that no node answers; `silent`: the error to return if a node is on another
    machine, if there is one.

    Only nodes of a cluster on this machine can be examined, or started, from here.
    """
    running = [str(node.record.name) for node in nodes if node.running]
    if named := [node.elsewhere for node in nodes if node.elsewhere]:
        if silent is not None:
            return silent
        why, fix = "it did not answer in time", status_of(named[0])
    elif running:
        why, fix = f"node {', '.join(running)} runs but does not answer", "raftmq logs"
    else:
        why, fix = "no node is running", "raftmq up"
    return LocalError(f"no node {where} answers", why, fix, ExitCode.UNREACHABLE)


def _look(data: str | None, admin: str | None) -> tuple[list[GroupStatus], list[RegistryView], str]:
    """Returns the views of the cluster's groups, its registry, and, in words, where the command looked for its nodes.
    For a cluster elsewhere there is one view, of the group whose addresses were given."""
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.registry_processes import view_registry
    from raftmq.local.status import view_addresses

    if elsewhere_named(data, admin):
        addresses = admin_addresses(admin, data)
        return [view_addresses(addresses)], [], f"at {', '.join(addresses)}"
    cluster = LocalCluster(data_dir(data))
    return cluster.views(), view_registry(cluster.registry), f"of {cluster.data}"


def elsewhere_named(data: str | None, admin: str | None) -> bool:
    """Returns True if the user named a cluster by addresses, so that it is not known to be on this machine."""
    return bool(admin or (not data and os.environ.get(ADMIN_VARIABLE)))


def _headline(view: GroupStatus) -> str:
    if view.term is None:
        return f"[red]no node of group {view.group} answers[/]"  # another group does answer
    if view.leader is None and view.group != FIRST_GROUP:
        return f"[red]no leader of group {view.group}[/] (term {view.term}): writes wait or are refused"
    if view.leader is None:
        return f"[red]no leader[/] (term {view.term}): writes wait or are refused"
    writes = "writes open" if view.writes_open else "[yellow]writes not open yet[/]"
    if view.refusal:
        writes = f"[red]sends are refused: {view.refusal}[/]"
    return f"[green]node {view.leader_name} leads[/] (term {view.term}), {writes}"


def mode_lines(view: GroupStatus) -> list[str]:
    """Returns one line per node that acknowledges sends before a majority has them on disk, or that lost some
    acknowledged sends."""
    lines = []
    for node in view.nodes:
        modes = (node.status or {}).get("modes") or {}
        if modes.get("level", "quorum+fsync") != "quorum+fsync" or modes.get("lost_messages"):
            pool = ", transient store pool" if modes["transient_store_pool_enable"] else ""
            if modes.get("degraded"):
                pool += f"; degraded, because {modes['degraded_why']}"
            lines.append(
                f"node {node.record.name}, when it leads, acknowledges at level {modes['level']} "
                f"({modes['flush_disk_type']}, {modes['broker_role']}{pool}): {modes['promise']}. Loss window: at most "
                f"{modes['loss_window_entries_max']} log entries ({modes['loss_window_bytes_max']} bytes), now "
                f"{counted(modes['loss_window_messages'])}; lost so far {modes['lost_messages']}"
            )
    return lines


def _problems(view: GroupStatus) -> list[tuple[str, str]]:
    """Returns (style, line) for each finding. Nodes of an older version have no findings, so their statuses are
    used."""
    findings = view.findings()
    if findings is not None:
        return finding_lines(findings, view.group)
    notes = [*quorum_lines(view), *retention_lines(view), *link_lines(view)]
    return [*(("red", line) for line in alarm_lines(view)), *(("yellow", line) for line in notes)]


def finding_lines(findings: list[dict[str, Any]], group: int = FIRST_GROUP) -> list[tuple[str, str]]:
    """Returns (style, line) for the findings of a group, in the order of the API: what it is, since when, and what to
    type. Control characters are escaped, because a finding may contain a client's id."""
    lines = []
    for each in findings:
        style = STYLES.get(each["severity"], "yellow")
        because = each.get("because_of")
        why = f", because of {because['code']} ({because['object']})" if because else ""
        since = each["since"].replace("T", " ").partition(".")[0]
        lines.append((style, f"{each['severity']}: {each['code']} ({each['object']}) since {since} UTC{why}"))
        lines.append((style, f"    {each['says']}"))
        if not because:
            lines.append(
                ("green", f"    type: {aimed_here(each['do_now'], group)}    (more: raftmq runbook {each['code']})")
            )
    return [(style, plain(line)) for style, line in lines]


def alarm_lines(view: GroupStatus) -> list[str]:
    """Returns one line per raised alarm: which node, since when (UTC), what."""
    return [
        f"alarm on node {node.record.name} since {time_text(alarm['since_ms'])}, {alarm['key']}: {alarm['text']}"
        for node in view.nodes
        for alarm in (node.status or {}).get("alarms", ())
    ]


def quorum_lines(view: GroupStatus) -> list[str]:
    """Returns one line if the next failure would stop writes, as the leader reports it, or any node if there is no
    leader."""
    answering = [node for node in view.nodes if node.status and not node.is_removed]
    asked = min(answering, key=lambda node: (node.record.id != view.leader, node.record.id), default=None)
    quorum = (asked.status or {}).get("quorum") or {} if asked is not None else {}
    return [quorum["finding"]] if quorum.get("finding") else []


def retention_lines(view: GroupStatus) -> list[str]:
    """Returns one line per key of [retention] that differs between the nodes that answer."""
    from cluster.retention.views import differing

    settings = {
        node.record.name: node.status["retention"]
        for node in view.nodes
        if node.status and not node.is_removed and node.status.get("retention")
    }
    return differing(settings, view.leader_name)


def link_lines(view: GroupStatus) -> list[str]:
    """Returns one line per link between nodes that an operator should look at."""
    return [
        f"node {node.record.name}: {link['finding']}"
        for node in view.nodes
        for link in (node.status or {}).get("links", ())
        if link["finding"]
    ]


def kernel_lines(view: GroupStatus) -> list[str]:
    """Returns one line per kernel (native or Python) in use, the native one first: which nodes run it and, if it is not
    the native one, why."""
    nodes: dict[tuple[str, str], list[int]] = {}
    for node in view.nodes:
        if kernel := (node.status or {}).get("kernel"):
            nodes.setdefault((kernel["name"], kernel["why"]), []).append(node.record.id)
    return [
        f"{name} kernel: node {', '.join(str(name_of(view.group, each)) for each in sorted(ids))}"
        + (f" ({why})" if why else "")
        for (name, why), ids in sorted(nodes.items())
    ]


def _row(view: GroupStatus, node: NodeView) -> list[object]:
    from rich.text import Text

    record, own = node.record, node.status
    state = Text("up", "green") if own else Text("silent", "yellow") if node.running else Text("down", "red")
    said = [str(own[key]) for key in ("role", "term", "commit_index", "applied_index")] if own else ["-"] * 4
    if own and own.get("member", "voter") != "voter":
        said[0] = str(own["member"])
    if own and own.get("drained"):
        said[0] = "drained"  # it never leads
    if own and own.get("maintenance"):
        said[0] = "maintenance"
    lag = view.lag_of(record.id)
    pid = str(record.pid or "-") if node.running else "-"
    return [
        str(record.name or "?"),
        state,
        *said,
        "-" if lag is None else str(lag),
        pid,
        str(record.broker_port or "-"),
        str(record.namesrv_port or "-"),
        node.elsewhere or str(record.admin_port),
    ]
