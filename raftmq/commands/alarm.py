"""`raftmq alarm`: lists raised alarms and acknowledges one."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, show, show_problems
from raftmq.local.http.all_groups import all_groups, alone, ask_all_of, in_one, in_those_with_it


@command_group()
def alarm() -> None:
    """List alarms; acknowledge an alarm."""


@alarm.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the raised alarms, node by node."""
    answers, silent = ask_all_of(all_groups(admin, data, members=True), "/v1/status")
    rows = [{"node": status["node"], **each} for _, _, status in answers for each in status["alarms"]]
    show(as_json, {"alarms": rows, "silent": list(silent)}, *(map(_line, rows) if rows else ["no alarm is raised"]))
    if not as_json:
        show_problems(f"{address} does not answer" for address in silent)


def _line(row: dict[str, Any]) -> str:
    return f"node {row['node']} {row['key']} since {time_text(row['since_ms'])}: {row['text']}"


@alarm.command("ack")
@click.argument("key")
@cluster_options
def ack(key: str, data: str | None, admin: str | None, as_json: bool) -> None:
    """Acknowledge the event behind the alarm KEY: the alarm ends on every node, permanently."""
    groups = all_groups(admin, data)
    path = f"/v1/alarms/{quote(key, safe='')}/ack"
    # Each group has its own events.
    answers = in_those_with_it(groups, lambda api: api.post(path, {}), "raftmq alarm list")
    show_problems(alone(groups, "asked"))
    told = {group: f"{f'group {group}: ' * (len(groups) > 1)}{answer['event']}" for group, answer in answers.items()}
    show(as_json, in_one(answers), *(f"acknowledged: {event}" for event in told.values()))
