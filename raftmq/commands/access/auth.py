"""`raftmq auth`: shows and sets `auth.mode`, and shows which requests enforcing the rules would deny."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from raftlog.types import FIRST_GROUP
from raftmq.commands.access.common import addresses, people_options
from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import told_time
from raftmq.commands.shared_options import counted, print_table, show, show_problems
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.all_groups import all_groups, ask_all_of
from raftmq.local.settled_changes import while_passing
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq auth show"
SHOWN = 20


@command_group()
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
    """Set the mode. The step to enforce shows the Supers and what it would stop, and asks, as the step to off does.

    In off nothing is judged. In observe everything passes, and what enforce would stop is counted.
    """
    views, problems = _views(data_dir, data, admin)
    if mode == "enforce" and not yes:
        _tell(views)
        show_problems(problems)
        _refuse_if_unable(views)
        click.confirm("enforce now?", abort=True, err=True)
    if mode == "off" and not yes and views[0]["mode"] != "off":
        click.confirm("whoever reaches a port may do everything then; go on?", abort=True, err=True)
    api = AdminApi(addresses(admin, data, data_dir), LOOK)
    answer = while_passing(lambda: api.put("/v1/auth", {"mode": mode}))  # a new cluster's first Super may be on its way
    show(as_json, answer, f"auth.mode is {answer['mode']}")


@auth.command("key")
@click.option("--rotate", is_flag=True, help="Encrypt all secrets with the newest key that every node has.")
@people_options
def key_(rotate: bool, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the keys that encrypt the secrets of users, on each node, or replace the key.

    For another key, write it as the first line into the file that auth.key_file names, on every node; then --rotate.
    The line of the old key may go when no user's secret needs it.
    """
    views, problems = _views(data_dir, data, admin)
    if rotate:
        if problems:
            why = "every node must have the new key before secrets are encrypted with it"
            raise LocalError(problems[0], why, "raftmq status", ExitCode.UNREACHABLE)
        key = _new_key(views)
        changed = AdminApi(addresses(admin, data, data_dir), "raftmq auth key").put("/v1/auth/key", {"key": key})
        show(as_json, changed, f"secrets are encrypted with the key {key} from now on; see raftmq auth key")
        return
    if as_json:
        show(True, {"nodes": [{name: view[name] for name in ("node", "key", "keys", "older")} for view in views]})
        return
    older = max(view["older"] for view in views)
    click.echo(f"key      {views[0]['key'] or 'none yet: it comes with the first user'}")
    click.echo(f"older    {counted(older, 'user')} with a secret that an earlier key encrypts")
    print_table(["node", "keys in its file"], [[str(view["node"]), ", ".join(view["keys"]) or None] for view in views])
    show_problems(problems)


def _new_key(views: list[dict[str, Any]]) -> str:
    """Returns the key that is first in the key file of every node. Raises LocalError if the first node has no newer
    key, or if another node has another key first."""
    first = views[0]
    if not first["keys"] or first["keys"][0] == first["key"]:
        why = "the first line of auth.key_file is the key that encrypts secrets now, or there is none"
        fix = "head -c 32 /dev/urandom | base64    (as the first line of the file, the same on every node)"
        raise LocalError(f"node {first['node']} has no newer key", why, fix, ExitCode.REFUSED)
    key = str(first["keys"][0])
    for view in views:
        if view["keys"][:1] != [key] or view["problem"]:
            why = view["problem"] or f"its first key is {(view['keys'] or ['none'])[0]}"
            fix = "copy auth.key_file of one node to all others"
            raise LocalError(f"node {view['node']} does not have the key {key} first", why, fix, ExitCode.REFUSED)
    return key


def _views(data_dir: Path | None, data: str | None, admin: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Asks the nodes of all groups: settings of the first group count in all groups. Returns the answers, and a
    sentence about each address without one."""
    there = {FIRST_GROUP: addresses(admin, data, data_dir)} if data_dir is not None else None
    asked, silent = ask_all_of(there or all_groups(admin, data, members=True), "/v1/auth")
    return [each.view for each in asked], [f"{address}: {error.what}" for address, error in silent.items()]


def _refuse_if_unable(views: list[dict[str, Any]]) -> None:
    if not any(view["total"] for view in views):  # a node that lags knows no Super yet; the log decides
        why = "there is no enabled Super: nobody could change anything any more"
        fix = "raftmq user create NAME --super"
        raise LocalError("nothing can be enforced yet", why, fix, ExitCode.REFUSED)
    for view in views:
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
        [str(view["node"]), each["address"], each["times"], each["last"], each["why"], told_time(each["at"])]
        for view in views
        for each in view["denials"][:SHOWN]
    ]
    enforced = first["mode"] == "enforce"
    click.echo(f"{'Denials' if enforced else 'What enforce would stop'}, in the last hour:")
    titles = ["node", "client", "times", "last request", "why", "last at"]
    none = "nothing" if first["mode"] != "off" else "unknown: in mode off nothing is judged; raftmq auth mode observe"
    print_table(titles, rows, none=none, left=[titles[1], *titles[3:]])
