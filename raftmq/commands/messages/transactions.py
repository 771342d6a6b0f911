"""`raftmq transactions`: lists half messages whose transaction is open."""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, print_json, print_table, show_problems
from raftmq.local.http.all_groups import all_groups, in_one, told_by_each
from raftmq_wire.queue_numbers import offset_text


@command_group()
def transactions() -> None:
    """List open transactions."""


@transactions.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the first open transactions of the log: messages that are neither committed nor rolled back."""
    told, silent = told_by_each(all_groups(admin, data), lambda api: api.get("/v1/transactions"))
    show_problems(silent)
    if as_json:
        print_json({"schema": 1, **in_one(told)})
        return
    rows = [_row(one, group) for group, answer in told.items() for one in answer["transactions"]]
    if rows:
        titles = ["position", "topic", "producer group", "key", "stored", "checks", "next check"]
        print_table(titles, rows, left=set(titles) - {"position", "checks"})
    more = any(answer["more"] for answer in told.values())
    shown = f"; the first {len(rows)} in the log are shown" if more else ""
    click.echo(f"{sum(answer['open'] for answer in told.values())} open transactions{shown}")


def _row(one: dict[str, Any], group: int) -> list[object]:
    named = [offset_text(group, one["position"]), one["topic"], one["group"], one["keys"]]
    return [*named, _time(one["stored_ms"]), one["checks"], _time(one["next_check_ms"])]


def _time(ms: int | None) -> str | None:
    return None if ms is None else time_text(ms)
