"""`raftmq writes`: lists what Spark has staged and which writes are committed, and discards or forgets them."""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, counted, print_json, print_table, show, show_problems
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.http.all_groups import all_groups, in_one, told_by_each


@command_group()
def writes() -> None:
    """List what Spark has staged; discard it, or forget what was committed."""


@writes.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the tries of tasks that are staged, and the newest committed write of each name."""
    told, silent = told_by_each(all_groups(admin, data), lambda api: api.get("/v1/writes"))
    show_problems(silent)
    if as_json:
        print_json({"schema": 1, **in_one(told)})
        return
    for group, answer in told.items():
        if len(told) > 1:
            click.echo(f"group {group}")
        _show(answer)


def _show(answer: dict[str, Any]) -> None:
    """Prints what one group of brokers has."""
    if answer["attempts"]:
        titles = ["attempt", "name", "write", "state", "messages", "left", "bytes", "last staged"]
        rows = [[*(one[title] for title in titles[:-1]), _time(one["staged_ms"])] for one in answer["attempts"]]
        print_table(titles, rows, left={"name", "state", "last staged"})
    if answer["committed"]:
        names = [
            [one["name"], one["write"], one["messages"], _time(one["committed_ms"])] for one in answer["committed"]
        ]
        print_table(["name", "committed up to", "messages", "at"], names, left={"name", "at"})
    more = "; there are more than are shown" if answer["more"] else ""
    click.echo(f"{counted(answer['staged'])} staged, {answer['bytes']} bytes{more}")


@writes.command("abort")
@click.argument("name")
@click.argument("write", type=click.IntRange(0))
@click.option("--dry-run", is_flag=True, help="Only show what would be discarded.")
@cluster_options
def abort(name: str, write: int, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Discard what is staged for write number WRITE of NAME. A commit of it is refused from then on."""
    api = AdminApi(admin_addresses(admin, data), "raftmq writes list")
    answer = api.post("/v1/writes/abort", {"name": name, "write": write, "dry_run": dry_run})
    what = f"{counted(answer['attempts'], 'attempt')} with {counted(answer['messages'])}"
    told = f"nothing was changed; {what} would be discarded" if dry_run else f"{what} are discarded"
    show(as_json, answer, told)


@writes.command("forget")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only show what would be forgotten.")
@cluster_options
def forget(name: str, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Forget what was committed under NAME. Whoever writes under it again writes everything again."""
    api = AdminApi(admin_addresses(admin, data), "raftmq writes list")
    answer = api.post("/v1/writes/forget", {"name": name, "dry_run": dry_run})
    told = "nothing was changed; it would be forgotten" if dry_run else "it is forgotten"
    show(as_json, answer, f"{name} was committed up to {answer['write']}: {told}")


def _time(ms: int) -> str:
    return time_text(ms)
