"""`raftmq broker-group`: drains a group of brokers (docs/adr/0113). It is not listed until a group can be retired."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, counted, print_json
from raftmq.local.http.admin_http import AdminApi, admin_addresses

NAMES_SHOWN = 5


@command_group("broker-group")
def broker_group() -> None:
    """Drain a group of brokers."""


@broker_group.command("drain")
@click.argument("group", type=click.IntRange(FIRST_GROUP, GROUPS_MAX))
@click.option("--plan", is_flag=True, help="Only show what is left, and which topics need queues elsewhere.")
@click.option("--spread", is_flag=True, help="Give topics that are there alone queues in the other groups first.")
@click.option("--move-keys", is_flag=True, help="Drain it though keys of ordered topics come to other queues.")
@click.option("--cancel", is_flag=True, help="End the drain: the group takes messages again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def drain(
    group: int,
    plan: bool,
    spread: bool,
    move_keys: bool,
    cancel: bool,
    yes: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Have the group of brokers number GROUP take no new messages. What it has is read to its end.

    It waits for every consumer group, also one that is offline. Type it again with --plan to see what is left.
    """
    if plan and cancel:
        raise click.UsageError("--plan and --cancel exclude each other")
    api = AdminApi(admin_addresses(admin, data), f"raftmq broker-group drain {group} --plan")
    path = f"/v1/broker-groups/{group}/drain?broker_group={group}"
    if plan:
        _show(api.local(path), as_json)
        return
    if cancel:
        _show(api.delete(path), as_json)
        return
    body = {"spread": spread, "move_keys": move_keys}
    if not yes:
        left = api.local(path)
        if left["state"] == "active":
            moved = left["topics_shared"] + left["topics_alone_total"]
            question = (
                f"drain group {group}? It takes no new messages; keys of {counted(moved, 'topic')} come elsewhere."
            )
            click.confirm(question, abort=True, err=True)
    _show(api.post(path, body), as_json)


def _show(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, **view})
        return
    since = f" since {time_text(view['since_ms'])}" if view["since_ms"] is not None else ""
    click.echo(f"group {view['group']} is {view['state']}{since}")
    for line in _left(view):
        click.echo(line)
    if view["done"]:
        click.echo("nothing is left")


def _left(view: dict[str, Any]) -> Iterator[str]:
    """Yields a line about each thing that is left."""
    if view["topics_alone"]:
        yield f"in no other group: {_names(view['topics_alone'], view['topics_alone_total'])} (--spread)"
    if view["order_topics"] and view["state"] == "active":
        yield f"ordered: {_names(view['order_topics'], view['order_topics_total'])} (--move-keys)"
    for each in view["unread"]:
        who = f"{counted(each['members'], 'member')} connected" if each["members"] else "nobody connected"
        known = "; it reads by broadcasting, and only its members know how far" if each["broadcasts"] else ""
        told = f"{counted(each['messages'])} to read in {_names(each['topics'])}; {who}{known}"
        yield f"{each['consumer_group']} has {told}"
    if (more := view["unread_groups"] - len(view["unread"])) > 0:
        yield f"and {counted(more, 'consumer group')} more"
    for each in view["unread_by_nobody"]:
        yield f"topic {each['topic']} has {counted(each['messages'])}, and no consumer group reads it"
    for each in view["dead_letters"]:
        yield f"{each['consumer_group']} has {counted(each['messages'], 'dead letter')}"
    if view["timers"]:
        yield f"{counted(view['timers'])} not due, the next at {time_text(view['next_due_ms'])}"
    for name, what in _COUNTS.items():
        if view[name]:
            yield counted(view[name], what)


_COUNTS = {
    "half_messages": "half message",
    "attempts": "unfinished staged attempt",
    "prepared_writes": "prepared write",
}


def _names(names: list[str], total: int | None = None) -> str:
    more = (len(names) if total is None else total) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
