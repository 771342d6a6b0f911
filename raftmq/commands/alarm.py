"""`raftmq alarm`: what is raised, and taking note of an event."""

from __future__ import annotations

import time
from urllib.parse import quote

import click

from cluster.errors import LocalError
from raftmq.commands.common import data_option, json_option, print_json
from raftmq.local.admin_http import AdminApi, admin_addresses, admin_option


@click.group()
def alarm() -> None:
    """List alarms; acknowledge an alarm."""


@alarm.command("list")
@data_option
@admin_option
@json_option
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the raised alarms, node by node."""
    rows = []
    silent = []
    for address in admin_addresses(admin, data):
        try:
            status = AdminApi([address]).local("/v1/status")
        except LocalError:
            silent.append(address)
            continue
        rows += [{"node": status["node"], **each} for each in status["alarms"]]
    if as_json:
        print_json({"schema": 1, "alarms": rows, "silent": silent})
        return
    for row in rows:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(row["since_ms"] / 1000))
        click.echo(f"node {row['node']} {row['key']} since {since}: {row['text']}")
    if not rows:
        click.echo("no alarm is raised")
    for address in silent:
        click.secho(f"{address} does not answer", fg="red", err=True)


@alarm.command("ack")
@click.argument("key")
@data_option
@admin_option
@json_option
def ack(key: str, data: str | None, admin: str | None, as_json: bool) -> None:
    """Acknowledge the event behind the alarm KEY: the alarm ends on every node, permanently."""
    answer = AdminApi(admin_addresses(admin, data)).post(f"/v1/alarms/{quote(key, safe='')}/ack", {})
    if as_json:
        print_json({"schema": 1, **answer})
    else:
        click.echo(f"acknowledged: {answer['event']}")
