"""`raftmq top`: shows the cluster in the terminal, refreshed at intervals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from raftlog.types import FIRST_GROUP
from raftmq.commands.nodes.status import finding_lines, views_json
from raftmq.commands.shared_options import WIDTH_MAX, cluster_options, console, natural_width, print_json, table_of
from raftmq.local.http.admin_http import raise_if_refused
from raftmq.local.http.all_groups import Groups, all_groups

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from cluster.config.local_layout import NodeRecord
    from raftmq.local.status import GroupStatus

GIVEN_UP = ("up", "clients", "in flight", "term", "disk", "entries/s", "applied")
"""Columns that are left out on a narrow terminal, in this order; the other columns are shown whole."""

COLUMNS = ("node", "role", "term", "applied", "entries/s", "lag", "clients", "in flight", "disk", "up")
FINDINGS_MAX = 8

Before = dict[int, tuple[float, int]]
"""Node -> (the time when it was last asked, in seconds of the monotonic clock; its applied index then)."""


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds per look.")
@click.option("--count", type=click.IntRange(1), help="End after so many looks (default: until Ctrl-C).")
@cluster_options
def top(interval: float, count: int | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show roles, throughput, lag, load and findings live, until Ctrl-C. With --json one line per look."""
    from rich.console import Group
    from rich.live import Live

    groups, looks = all_groups(admin, data), 0
    raise_if_refused([address for addresses in groups.values() for address in addresses])
    before: dict[int, Before] = {group: {} for group in groups}
    while as_json:
        print_json(views_json(_views(groups)))
        looks += 1
        if looks == count:
            return
        time.sleep(interval)
    out = console()
    with Live(console=out, auto_refresh=False, screen=False) as live:
        while True:
            pages = [
                page(view, view.findings() or [], before[group], time.monotonic(), out.width)
                for group, view in zip(groups, _views(groups), strict=True)
            ]
            live.update(Group(*pages), refresh=True)
            looks += 1
            if looks == count:
                return
            time.sleep(interval)


def _views(groups: Groups) -> list[GroupStatus]:
    """Returns the views of all groups, in their order."""
    from raftmq.local.status import view_addresses

    return [view_addresses(addresses).of_group(group) for group, addresses in groups.items()]


def page(
    view: GroupStatus, findings: list[dict[str, Any]], before: Before, now_s: float, width: int = WIDTH_MAX
) -> Group:
    """Returns one page of the display, at most `width` columns wide. `now_s`: the present time of the monotonic clock.
    `before` is updated for the next page."""
    from rich.console import Group
    from rich.text import Text

    rows = [_row(node.record, node.status, view.lag_of(node.record.id), before, now_s) for node in view.nodes]
    leader = f"node {view.leader_name} leads, term {view.term}" if view.leader else "no leader"
    if not view.leader and view.group != FIRST_GROUP:
        leader = f"no leader of group {view.group}"
    lines = [Text(line, style=style) for style, line in finding_lines(findings[:FINDINGS_MAX], view.group)]
    more = (
        [Text(f"{len(findings) - FINDINGS_MAX} more findings: raftmq status")] if len(findings) > FINDINGS_MAX else []
    )
    table = _fitting(rows, width)
    return Group(Text(leader, style="bold"), table, *(lines or [Text("no findings", style="green")]), *more)


def _fitting(rows: list[list[str]], width: int) -> Table:
    """Returns the table without as many columns of GIVEN_UP, from its first on, as must go for it to fit into `width`
    characters; without all of them if even that is too wide."""
    for given_up in range(len(GIVEN_UP) + 1):
        kept = [at for at, name in enumerate(COLUMNS) if name not in GIVEN_UP[:given_up]]
        table = table_of([COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows], left={"role"})
        if natural_width(table, console()) <= width:
            break
    return table


def _row(record: NodeRecord, own: dict[str, Any] | None, lag: int | None, before: Before, now_s: float) -> list[str]:
    node = record.id
    if own is None:
        before.pop(node, None)
        return [str(record.name or "?"), "silent", *["-"] * (len(COLUMNS) - 2)]
    applied = int(own["applied_index"])
    then_s, then = before.get(node, (now_s, applied))
    before[node] = now_s, applied
    rate = f"{max(0, applied - then) / (now_s - then_s):.0f}" if now_s > then_s else "-"
    disk = own.get("disk") or {}
    return [
        str(record.name),
        str(own["role"]),
        str(own["term"]),
        str(applied),
        rate,
        "-" if lag is None else str(lag),
        str(own["load"]["connections"]),
        f"{own['load']['inflight_bytes'] / 1024:.0f} KiB",
        f"{disk['used_percent']:.0f} %" if disk else "-",
        f"{own['uptime_ms'] // 1000} s",
    ]
