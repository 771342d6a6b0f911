"""`raftmq tier`: what the object store holds of the log."""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.common import data_option, json_option, print_json, print_table
from raftmq.local.admin_http import admin_addresses, admin_option, each_node


@click.group()
def tier() -> None:
    """Show what the object store holds of the log."""


@tier.command()
@data_option
@admin_option
@json_option
def status(data: str | None, admin: str | None, as_json: bool) -> None:
    """Show how far the log is uploaded and verified, and what waits.

    Exits with 1 if the leader cannot reach the store.
    """
    views = [view for _, view in each_node(admin_addresses(admin, data), "/v1/tier")]
    leader = next((view for view in views if view["node"] == view["leader"]), views[0])
    if as_json:
        print_json({"schema": 1, "nodes": views})
    else:
        _show(leader)
    if leader["failing"]:
        raise SystemExit(1)


def _show(view: dict[str, Any]) -> None:
    click.echo(f"tier       {view['url'] or 'none is configured (tier.url)'}")
    click.echo(f"log        {view['log_begins']} to {view['sealed_end']} in sealed segments")
    click.echo(f"verified   up to {view['verified_to']}; {view['stored_bytes']} bytes stored")
    if view["url"]:
        click.echo(f"pending    {view['pending_bytes']} bytes, the oldest for {view['pending_age_ms'] / 1000:.0f} s")
    if view["failing"]:
        click.echo(f"failing    for {view['failing_ms'] / 1000:.0f} s: {view['failing']}")
    if view["last"]:
        rows = [
            [row["base"], row["end"], row["state"], row["term"], len(row["parts"]), row["stored_bytes"]]
            for row in view["last"]
        ]
        print_table(["base", "end", "state", "term", "objects", "bytes"], rows)
