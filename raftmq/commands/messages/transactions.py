"""`raftmq transactions`: lists half messages whose transaction is open."""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import cluster_options, print_json, print_table
from raftmq.local.http.admin_http import AdminApi, admin_addresses


@command_group()
def transactions() -> None:
    """List open transactions."""


@transactions.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the first open transactions of the log: messages that are neither committed nor rolled back."""
    answer = AdminApi(admin_addresses(admin, data)).get("/v1/transactions")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    rows = [_row(one) for one in answer["transactions"]]
    if rows:
        titles = ["position", "topic", "producer group", "key", "stored", "checks", "next check"]
        print_table(titles, rows, left=set(titles) - {"position", "checks"})
    shown = f"; the first {len(rows)} in the log are shown" if answer["more"] else ""
    click.echo(f"{answer['open']} open transactions{shown}")


def _row(one: dict[str, Any]) -> list[object]:
    named = [one["position"], one["topic"], one["group"], one["keys"]]
    return [*named, _time(one["stored_ms"]), one["checks"], _time(one["next_check_ms"])]


def _time(ms: int | None) -> str | None:
    return None if ms is None else time_text(ms)
