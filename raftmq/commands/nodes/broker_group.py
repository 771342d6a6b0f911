"""`raftmq broker-group`: lists, drains and retires groups of brokers (docs/adr/0113)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from cluster.config.local_layout import locked, name_of
from cluster.runtime.byte_sizes import size_of
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, counted, data_dir, print_json, print_table
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, GivenAddresses, admin_addresses
from raftmq.local.retired_groups import set_aside
from raftmq_wire.errors import ExitCode

NAMES_SHOWN = 5
AGAIN_S = 2.0
"""Seconds between two tries of a command that waits."""


@command_group("broker-group")
def broker_group() -> None:
    """Drain and retire a group of brokers."""


@broker_group.command("list")
@cluster_options
def list_groups(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the groups of brokers: their state, leader and nodes."""
    view = AdminApi(admin_addresses(admin, data)).local("/v1/broker-groups")
    if as_json:
        print_json({"schema": 1, **view})
        return
    rows = [
        [
            row["group"],
            row["name"],
            row["state"],
            time_text(row["since_ms"]) if row["since_ms"] is not None else "",
            row["leader"] or "",
            ", ".join(str(name_of(row["group"], each["id"])) for each in row["members"]),
        ]
        for row in view["groups"]
    ]
    print_table(["group", "name", "state", "since", "leader", "nodes"], rows, left=("name", "state", "since", "nodes"))
    if not rows:
        click.echo("the cluster has one group")


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
        show_drain(api.local(path), as_json)
        return
    if cancel:
        show_drain(api.delete(path), as_json)
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
    show_drain(api.post(path, body), as_json)


@broker_group.command("retire")
@click.argument("group", type=click.IntRange(FIRST_GROUP, GROUPS_MAX))
@click.option("--plan", is_flag=True, help="Only show what is left, which --force would lose.")
@click.option("--force", is_flag=True, help="Retire it though something is left. Nobody reads that any more.")
@click.option("--wait", "wait_s", type=click.IntRange(0), default=0, metavar="SECONDS", help="Try again for so long.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def retire(
    group: int,
    plan: bool,
    force: bool,
    wait_s: int,
    yes: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> int:
    """Retire the drained group of brokers number GROUP, for ever: its number and its name are never used again.

    It is refused while something is left. In a local cluster, the nodes are stopped and set aside; nothing is deleted.
    """
    addresses = admin_addresses(admin, data)
    api = AdminApi(addresses, f"raftmq broker-group drain {group} --plan")
    drained = f"/v1/broker-groups/{group}/drain?broker_group={group}"
    if plan:
        show_drain(api.local(drained), as_json)
        return ExitCode.OK
    known = {row["group"]: row for row in api.local("/v1/broker-groups")["groups"]}
    view: dict[str, Any] = known.get(group, {})
    if view.get("state") != "retired":
        if not yes:
            _ask(api.local(drained), group, force=force)
        path = f"/v1/broker-groups/{group}/retire?broker_group={group}"
        view = _until_done(lambda: api.post(path, {"force": force}), wait_s)
    folder = None
    if view["state"] == "retired" and not isinstance(addresses, GivenAddresses):
        with locked(data_dir(data)):
            folder = set_aside(data_dir(data), group)
    if as_json:
        print_json({"schema": 1, **view, "set_aside": None if folder is None else str(folder)})
    elif view["state"] != "retired":
        click.echo(f"the log of group {group} is closed; group {FIRST_GROUP} retires it as soon as it has a leader")
    else:
        click.echo(f"group {group} has retired, for ever")
        if folder is not None:
            click.echo(f"its nodes are stopped; what they had is in {folder} until you delete it")
        elif isinstance(addresses, GivenAddresses):
            click.echo("stop its nodes; they do not start again, and their directories stay until you delete them")
    return ExitCode.OK


def _ask(left: dict[str, Any], group: int, *, force: bool) -> None:
    """Shows what would be lost, and asks the user for a confirmation."""
    question = f"retire group {group} for ever? Its number and its name are never used again"
    lost = [] if left["done"] else [*_left(left)]
    if force and lost:
        click.echo("\n".join(lost), err=True)
        question = f"retire group {group} for ever, and lose all that?"
    click.confirm(question, abort=True, err=True)


def _until_done(post: Callable[[], dict[str, Any]], wait_s: float) -> dict[str, Any]:
    """Repeats the request `post` while it is refused, for at most `wait_s` seconds; returns its answer. Raises
    LocalError."""
    ends = time.monotonic() + wait_s
    while True:
        try:
            return post()
        except ApiRefusal as error:
            if not (error.code == "refused" or error.is_passing) or time.monotonic() + AGAIN_S > ends:
                raise
        time.sleep(AGAIN_S)


def show_drain(view: dict[str, Any], as_json: bool) -> None:
    """Prints how far a drain is."""
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
    """Yields a line about each thing that keeps the group from being retired."""
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
    if view["tier_segments"]:
        size = size_of(view["tier_bytes"])
        yield f"{counted(view['tier_segments'], 'segment')} ({size}) in the tier: they stay, and no node reads them"


_COUNTS = {
    "half_messages": "half message",
    "attempts": "unfinished staged attempt",
    "prepared_writes": "prepared write",
}


def _names(names: list[str], total: int | None = None) -> str:
    more = (len(names) if total is None else total) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
