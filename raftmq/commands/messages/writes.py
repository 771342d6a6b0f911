"""`raftmq writes`: lists what Spark has staged and which writes are committed, and discards or forgets them.

A write to several groups of brokers has rows in each of them, so each group is asked. The first group decides whether
such a write is committed.
"""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import (
    cluster_options,
    counted,
    print_json,
    print_table,
    show,
    show_problems,
    tell_group,
)
from raftmq.local.http.all_groups import all_groups, in_one, in_those_with_it, told_by_each

LOOK = "raftmq writes list"


@command_group()
def writes() -> None:
    """List what Spark has staged; discard it, or forget what was committed."""


@writes.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the tries of tasks that are staged, and the newest committed write of each name.

    Of writes to several groups of brokers also what is prepared, and which group decides.
    """
    answers, silent = told_by_each(all_groups(admin, data), lambda api: api.get("/v1/writes"))
    show_problems(silent)
    if as_json:
        print_json({"schema": 1, **in_one(answers)})
        return
    for group, answer in answers.items():
        tell_group(group, answers)
        _show(answer)


def _show(answer: dict[str, Any]) -> None:
    if answer["attempts"]:
        titles = ["attempt", "name", "write", "state", "messages", "left", "bytes", "last staged"]
        rows = [[*(one[title] for title in titles[:-1]), time_text(one["staged_ms"])] for one in answer["attempts"]]
        print_table(titles, rows, left={"name", "state", "last staged"})
    if prepared := answer.get("prepared"):  # a node of an earlier release does not report them
        titles = ["prepared", "write", "state", "decided by", "attempts", "messages", "since"]
        rows = [
            [
                one["name"],
                one["write"],
                one["state"],
                f"group {one['deciding_group']}, attempt {one['decider']}",
                one["attempts"],
                one["messages"],
                time_text(one["prepared_ms"]),
            ]
            for one in prepared
        ]
        print_table(titles, rows, left={"prepared", "state", "decided by", "since"})
    if decisions := answer.get("decisions"):
        rows = [
            [
                one["name"],
                one["write"],
                one["decider"],
                ", ".join(map(str, one["waiting_groups"])),
                time_text(one["committed_ms"]),
            ]
            for one in decisions
        ]
        print_table(["decided", "write", "attempt", "waits for group", "at"], rows, left={"decided", "at"})
    if answer["committed"]:
        names = [
            [one["name"], one["write"], one["messages"], time_text(one["committed_ms"])] for one in answer["committed"]
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
    body = {"name": name, "write": write, "dry_run": dry_run}
    groups = all_groups(admin, data)
    answers = in_those_with_it(groups, lambda api: api.post("/v1/writes/abort", body), LOOK, dry_run=dry_run)
    attempts, messages = (sum(answer[key] for answer in answers.values()) for key in ("attempts", "messages"))
    what = f"{counted(attempts, 'attempt')} with {counted(messages)}"
    told = f"nothing was changed; {what} would be discarded" if dry_run else f"{what} are discarded"
    show(as_json, in_one(answers), told)


@writes.command("forget")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only show what would be forgotten.")
@cluster_options
def forget(name: str, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Forget what was committed under NAME. Whoever writes under it again writes everything again."""
    body = {"name": name, "dry_run": dry_run}
    groups = all_groups(admin, data)
    # The first group last: while it knows the name, nobody can write under it again.
    answers = in_those_with_it(
        groups, lambda api: api.post("/v1/writes/forget", body), LOOK, first_last=True, dry_run=dry_run
    )
    told = "nothing was changed; it would be forgotten" if dry_run else "it is forgotten"
    newest = max(answer["write"] for answer in answers.values())
    show(as_json, in_one(answers), f"{name} was committed up to {newest}: {told}")
