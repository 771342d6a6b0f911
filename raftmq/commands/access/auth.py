"""`raftmq auth`: shows and sets `auth.mode`, and shows which requests enforcing the rules would deny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from raftmq.commands.access.common import addresses, people_options
from raftmq.commands.common import print_table, show, show_problems
from raftmq.local.http.admin_http import AdminApi, ask_all, node_addresses
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq auth show"
SHOWN = 20


@click.group()
def auth() -> None:
    """Show or change `auth.mode`: off, observe or enforce."""


@auth.command("show")
@people_options
def show_(data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the mode, the Supers, and the denials of the last hour on each node."""
    views, problems = _views(data_dir, data, admin)
    if as_json:
        show(True, {"nodes": views})
        return
    _tell(views)
    show_problems(problems)


@auth.command("mode")
@click.argument("mode", type=click.Choice(["off", "observe", "enforce"]))
@click.option("--yes", is_flag=True, help="Do not ask.")
@people_options
def mode_(mode: str, yes: bool, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Set the mode. The step to enforce shows the Supers and what it would stop, and asks.

    In off nothing is judged. In observe everything passes, and what enforce would stop is counted.
    """
    views, problems = _views(data_dir, data, admin)
    if mode == "enforce" and not yes:
        _tell(views)
        show_problems(problems)
        _refuse_if_unable(views)
        click.confirm("enforce now?", abort=True, err=True)
    answer = AdminApi(addresses(admin, data, data_dir), LOOK).put("/v1/auth", {"mode": mode})
    show(as_json, answer, f"auth.mode is {answer['mode']}")


def _views(data_dir: Path | None, data: str | None, admin: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    where = addresses(admin, data, data_dir) if data_dir is not None else node_addresses(admin, data)
    answers, silent = ask_all(where, "/v1/auth")
    if not answers:
        raise next(iter(silent.values()))
    return [view for _, view in answers], [f"{address}: {error.what}" for address, error in silent.items()]


def _refuse_if_unable(views: list[dict[str, Any]]) -> None:
    for view in views:
        if not view["total"]:
            why = "there is no enabled Super: nobody could change anything any more"
            fix = "raftmq user create NAME --super"
            raise LocalError("nothing can be enforced yet", why, fix, ExitCode.REFUSED)
        if view["problem"]:
            why = f"node {view['node']} could verify no signature: {view['problem']}"
            raise LocalError("nothing can be enforced yet", why, "copy auth.key_file to each node", ExitCode.REFUSED)
        if not view["proven"]:
            why = f"node {view['node']} lets in peers that do not prove the cluster's secret"
            raise LocalError("nothing can be enforced yet", why, "raftmq secret status", ExitCode.REFUSED)


def _tell(views: list[dict[str, Any]]) -> None:
    first = views[0]
    click.echo(f"mode     {first['mode']}")
    more = first["total"] - len(first["supers"])
    supers = ", ".join(first["supers"]) + (f" and {more} more" if more > 0 else "")
    click.echo(f"Supers   {supers or 'none: raftmq user create NAME --super'}")
    for view in views:
        if view["problem"]:
            click.echo(f"node {view['node']} cannot read the secrets of users: {view['problem']}")
    rows = [
        [view["node"], each["address"], each["times"], each["last"], each["why"], each["at"]]
        for view in views
        for each in view["denials"][:SHOWN]
    ]
    enforced = first["mode"] == "enforce"
    click.echo(f"{'Denials' if enforced else 'What enforce would stop'}, in the last hour:")
    titles = ["node", "client", "times", "last request", "why", "last at"]
    none = "nothing" if first["mode"] != "off" else "unknown: in mode off nothing is judged; raftmq auth mode observe"
    print_table(titles, rows, none=none, left=[titles[1], *titles[3:]])
