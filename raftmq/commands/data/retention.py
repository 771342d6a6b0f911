"""`raftmq retention`: shows where the log begins on each node and what holds old segments there, and removes expired
ones now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from cluster.config.local_layout import name_of
from cluster.retention.views import differing
from cluster.runtime.byte_sizes import size_of
from raftmq.commands.shared_options import cluster_options, counted, print_json, print_table, show_problems
from raftmq.local.http.all_groups import Asked, all_groups, alone, each_node_of, in_each, in_one, leader_of

_HOUR_MS = 3_600_000


@click.command()
@click.option("--run", is_flag=True, help="Remove expired messages now, at any hour.")
@click.option("--dry-run", is_flag=True, help="With --run: only show what would be removed.")
@cluster_options
def retention(run: bool, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show where the log begins, which nodes still have files below that position, and what holds them.

    Nodes remove messages that are older than [retention] allows automatically; --run makes the leader check now.
    """
    groups = all_groups(admin, data, members=True)
    if dry_run and not run:
        raise click.UsageError("--dry-run goes with --run")
    path = "/v1/retention/run?dry_run=true" if dry_run else "/v1/retention/run"
    ran = in_each(groups, lambda api: api.post(path, {}), "raftmq retention", dry_run=dry_run) if run else {}
    asked, silent = each_node_of(groups, "/v1/retention")
    if as_json:
        print_json({"schema": 1, "run": in_one(ran) if ran else None, "nodes": [each.view for each in asked]})
    shown = {each.group: [one for one in asked if one.group == each.group] for each in asked}
    for group, nodes in shown.items() if not as_json else ():
        if len(groups) > 1:
            click.echo(f"group {group}")
        _show(nodes, ran.get(group))
    show_problems([*silent, *alone(groups, "shown")])


def _show(asked: Sequence[Asked], ran: dict[str, Any] | None) -> None:
    """Prints what the nodes of one group say, and what was removed there."""
    views = [each.view for each in asked]
    leader = leader_of(asked).view
    if ran is not None:
        click.echo(_told(ran))
    click.echo(_rules(leader))
    if leader["log_held_by"]:
        click.echo(f"more would be removed; it is held by: {leader['log_held_by']}")
    if leader.get("pinned_log_bytes"):
        waiting = f"{leader['pinned_timers']} timers and {leader['pinned_halves']} half messages"
        why = "being stored further on" if leader["carrying"] else leader["carry_held_by"] or "to be stored further on"
        click.echo(f"{waiting} wait in {size_of(leader['pinned_log_bytes'])} of log that would be removed: {why}")
    leads = None if leader["leader"] is None else name_of(asked[0].group, leader["leader"])
    for line in differing({view["node"]: view["settings"] for view in views}, leads):
        click.echo(line)
    rows = [
        [
            str(view["node"]),
            view["trim_position"],
            view["first_position"],
            size_of(view["end_position"] - view["first_position"]),
            view["files_left"],
            view["files_held_by"] or "-",
            "-" if view["disk_used_percent"] is None else f"{view['disk_used_percent']} %",
        ]
        for view in views
    ]
    titles = ["node", "log begins at", "files from", "on disk", "files left", "held by", "disk used"]
    print_table(titles, rows, left=("on disk", "held by", "disk used"))


def _told(ran: dict[str, Any]) -> str:
    if ran.get("dry_run"):
        return _would(ran)
    if ran["index"] is None:
        return f"nothing was removed; held by: {ran['held_by']}" if ran["held_by"] else "nothing has expired"
    what = counted(ran["segments"], "segment") if ran["segments"] else "queues of topics with a shorter time"
    why = ran["reason"] or "age of topics"
    if ran["segments"] and ran.get("evicts"):  # an older node does not report it
        began = "leaving the nodes, slice by slice" if ran.get("sweeping") else "left the nodes"
        return f"{began}: {what} ({why}); the nodes' log begins at position {ran['position']}, the tier keeps the rest"
    if ran.get("sweeping"):
        return f"being removed, slice by slice: {what} ({why}); the log begins at position {ran['position']} until then"
    return f"removed: {what} ({why}); the log begins at position {ran['position']}"


def _would(ran: dict[str, Any]) -> str:
    if not ran["segments"] and not ran["queues"]:
        return f"nothing would be removed; held by: {ran['held_by']}" if ran["held_by"] else "nothing has expired"
    parts = (
        [f"{counted(ran['segments'], 'segment')}, {size_of(ran['bytes'])} ({ran['reason']})"] if ran["segments"] else []
    )
    parts += [f"messages of {counted(ran['queues'], 'queue')} by their topics' time"] if ran["queues"] else []
    what = " and ".join(parts)
    if ran["segments"] and ran.get("evicts"):
        where = f"the nodes' log would begin at position {ran['position']}, and the tier keeps the rest"
        return f"nothing was changed; would leave the nodes: {what}; {where}"
    return f"nothing was changed; would be removed: {what}; the log would begin at position {ran['position']}"


def _rules(view: dict[str, Any]) -> str:
    kept = "for ever"
    if view["keep_ms"]:
        hours = view["keep_ms"] / _HOUR_MS
        kept = f"{hours:g} h" if hours >= 1 else f"{view['keep_ms']} ms"
    size = f", at most {size_of(view['bytes_max'])} of log" if view["bytes_max"] else ""
    when = f"at the hours {view['delete_when']}" if view["delete_when"] else "at any time"
    protected = "; unconsumed messages stay" if view["protect_unconsumed"] else ""
    if view.get("evicts"):
        return f"the nodes keep messages {kept}{size}; others leave them {when}, and can be read in the tier{protected}"
    return f"messages are kept {kept}{size}; expired messages are removed {when}{protected}"
