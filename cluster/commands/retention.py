"""`raftmq retention`: where the log begins on each node, what holds it there, and giving up now what has expired."""

from __future__ import annotations

from typing import Any

import click

from cluster.commands.admin_http import AdminApi, admin_addresses, admin_option, each_node
from cluster.commands.common import data_option, json_option, print_json, print_table
from cluster.retention.settings import differing

_HOUR_MS = 3_600_000


@click.command()
@click.option("--run", is_flag=True, help="Give up now what has expired, whatever the hour says.")
@data_option
@admin_option
@json_option
def retention(run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show where the log begins, on which node files below it are left, and what holds them.

    Nodes give up by themselves what is older than [retention] says; --run has the leader look now.
    """
    addresses = admin_addresses(admin, data)
    ran = AdminApi(addresses).post("/v1/retention/run", {}) if run else None
    views = [view for _, view in each_node(addresses, "/v1/retention")]
    if as_json:
        print_json({"schema": 1, "run": ran, "nodes": views})
        return
    if ran is not None:
        click.echo(_told(ran))
    leader = next((view for view in views if view["node"] == view["leader"]), views[0])
    click.echo(_rules(leader))
    if leader["log_held_by"]:
        click.echo(f"more would go, but for {leader['log_held_by']}")
    for line in differing({view["node"]: view["settings"] for view in views}, leader["leader"]):
        click.echo(line)
    rows = [
        [
            view["node"],
            view["trim_position"],
            view["first_position"],
            _size(view["end_position"] - view["first_position"]),
            view["files_left"],
            view["files_held_by"] or "-",
            "-" if view["disk_used_percent"] is None else f"{view['disk_used_percent']} %",
        ]
        for view in views
    ]
    print_table(["node", "log begins at", "files from", "on disk", "files left", "held by", "disk used"], rows)


def _told(ran: dict[str, Any]) -> str:
    if ran["index"] is None:
        return "nothing has expired" + (f" but what {ran['held_by']} holds" if ran["held_by"] else "")
    what = f"{ran['segments']} segments" if ran["segments"] else "queues of topics with a shorter time"
    return f"given up: {what} ({ran['reason'] or 'age of topics'}); the log begins at position {ran['position']}"


def _rules(view: dict[str, Any]) -> str:
    kept = "for ever"
    if view["keep_ms"]:
        hours = view["keep_ms"] / _HOUR_MS
        kept = f"{hours:g} h" if hours >= 1 else f"{view['keep_ms']} ms"
    size = f", at most {_size(view['bytes_max'])} of log" if view["bytes_max"] else ""
    when = f"at the hours {view['delete_when']}" if view["delete_when"] else "at any time"
    protected = "; what was not consumed stays" if view["protect_unconsumed"] else ""
    return f"messages are kept {kept}{size}; what has expired goes {when}{protected}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
