"""`raftmq group`: list and describe consumer groups."""

from __future__ import annotations

from urllib.parse import quote

import click

from raftmq.commands.common import data_option, json_option, print_json, print_table
from raftmq.local.admin_http import AdminApi, admin_addresses, admin_option


@click.group()
def group() -> None:
    """List and describe consumer groups."""


@group.command("list")
@data_option
@admin_option
@json_option
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List all groups with their lag."""
    answer = AdminApi(admin_addresses(admin, data)).get("/v1/groups")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    rows: list[list[object]] = [[g["name"], ", ".join(g["topics"]), g["members"], g["lag"]] for g in answer["groups"]]
    if rows:
        print_table(["group", "topics", "members", "lag"], rows)
    else:
        click.echo("no groups yet; one appears with its first consumer: raftmq consume TOPIC --group NAME")


@group.command("describe")
@click.argument("name")
@data_option
@admin_option
@json_option
def describe(name: str, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the members of the group NAME and its offset and lag in each queue."""
    answer = AdminApi(admin_addresses(admin, data)).get(f"/v1/groups/{quote(name, safe='')}")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    members = ", ".join(member["client_id"] for member in answer["members"]) or "none connected"
    click.echo(f"{name}: lag {answer['lag']}; members: {members}")
    print_table(
        ["topic", "queue", "committed", "min offset", "max offset", "lag"],
        [
            [o["topic"], o["queue_id"], o["committed_offset"], o["min_offset"], o["max_offset"], o["lag"]]
            for o in answer["offsets"]
        ],
    )
