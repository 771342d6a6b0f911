"""`raftmq user`: manages the users of the cluster, and the tokens by which they identify themselves over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from raftmq.commands.access.common import api, new_secret, people_options, secret_options
from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import told_time
from raftmq.commands.shared_options import print_json, print_table, show
from raftmq.commands.value_types import UserNameType

_TITLES = ["name", "type", "status", "rules", "tokens", "created"]


@command_group()
def user() -> None:
    """Create, list, change and delete users; give tokens."""


@user.command("create")
@click.argument("name", type=UserNameType())
@click.option("--super", "is_super", is_flag=True, help="It may do everything.")
@click.option("--disabled", is_flag=True, help="It may do nothing yet.")
@secret_options
@people_options
def create(
    name: str,
    is_super: bool,
    disabled: bool,
    secret_file: Path | None,
    generate: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Create the user NAME. Its secret is asked for; it never stands in the command line.

    The operator, who can read the cluster's secret, creates the first Super: in a local cluster as it is, else with
    --data-dir on the machine of the node that leads.
    """
    asked = api(admin, data, data_dir)
    secret, made = new_secret(name, secret_file, generate=generate)
    kind = "Super" if is_super else "Normal"
    answer = asked.post("/v1/users", {"name": name, "secret": secret, "type": kind, "enabled": not disabled})
    shown = {"secret": secret} if made else {}
    lines = [f"user {name} was made: {kind}{', disabled' if disabled else ''}"]
    lines += [f"its secret, which is shown only now: {secret}"] if made else []
    show(as_json, {**answer, **shown}, *lines)


@user.command("list")
@people_options
def list_(data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """List the users."""
    answer = api(admin, data, data_dir).whole("/v1/users", "users")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    rows = [_row(each) for each in answer["users"]]
    print_table(_TITLES, rows, none="no users yet: raftmq user create NAME --super", left=_TITLES[:3] + _TITLES[5:])


def _row(each: dict[str, Any]) -> list[object]:
    status = "enabled" if each["enabled"] else "disabled"
    return [each["name"], each["type"], status, each["rules"], each["tokens"], each["created"]]


@user.command("delete")
@click.argument("name")
@people_options
def delete(name: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Delete the user NAME with its rules and tokens; its connections end."""
    answer = api(admin, data, data_dir).delete(_path(name))
    show(as_json, answer, f"user {name} is gone")


@user.command("enable")
@click.argument("name")
@people_options
def enable(name: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Let the user NAME in again."""
    answer = api(admin, data, data_dir).put(_path(name), {"enabled": True})
    show(as_json, answer, f"user {name} is enabled")


@user.command("disable")
@click.argument("name")
@people_options
def disable(name: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Keep the user NAME out; its rules and tokens stay, its connections end."""
    answer = api(admin, data, data_dir).put(_path(name), {"enabled": False})
    show(as_json, answer, f"user {name} is disabled")


@user.command("type")
@click.argument("name")
@click.argument("kind", type=click.Choice(["Super", "Normal"], case_sensitive=False))
@people_options
def type_(name: str, kind: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Make the user NAME a Super, or Normal."""
    answer = api(admin, data, data_dir).put(_path(name), {"type": kind.capitalize()})
    show(as_json, answer, f"user {name} is {kind.capitalize()}")


@user.command("password")
@click.argument("name")
@secret_options
@click.option("--keep-token", "kept", multiple=True, metavar="LABEL", help="A token that stays; may be repeated.")
@people_options
def password(
    name: str,
    secret_file: Path | None,
    generate: bool,
    kept: tuple[str, ...],
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Give the user NAME another secret; connections that signed with the old one end, and so do its tokens."""
    asked = api(admin, data, data_dir)
    secret, made = new_secret(name, secret_file, generate=generate)
    answer = asked.put(_path(name), {"secret": secret, **({"keep_tokens": list(kept)} if kept else {})})
    lines = [f"user {name} has another secret"]
    lines += [f"it is shown only now: {secret}"] if made else []
    show(as_json, {**answer, **({"secret": secret} if made else {})}, *lines)


@user.command("tokens")
@click.argument("name")
@people_options
def tokens(name: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """List the tokens of the user NAME. The log has their SHA-256 alone."""
    answer = api(admin, data, data_dir).local(f"/v1/tokens?user={quote(name, safe='')}")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    rows = [
        [each["id"], each["label"], f"{told_time(each['ends'])}{' (ended)' if each['ended'] else ''}"]
        for each in answer["tokens"]
    ]
    titles = ["id", "label", "ends"]
    print_table(titles, rows, none=f"no tokens: raftmq user token {name}", left=titles)


@user.command("token")
@click.argument("name")
@click.option("--label", default="", metavar="TEXT", help="What it is for.")
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="It ends then.")
@people_options
def token(
    name: str, label: str, days: int, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool
) -> None:
    """Give the user NAME a token for the HTTP API, and print it once: for Prometheus, or RAFTMQ_TOKEN."""
    body = {"user": name, "label": label, "days": days}
    answer = api(admin, data, data_dir).post("/v1/tokens", body)
    show(as_json, answer, answer["token"])
    if not as_json:
        click.echo(
            f"it is shown only now, and ends {told_time(answer['ends'])}; raftmq user revoke {answer['id']}", err=True
        )


@user.command("revoke")
@click.argument("token_id", metavar="ID")
@people_options
def revoke(token_id: str, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Take away the token with this ID (raftmq user tokens NAME shows it)."""
    answer = api(admin, data, data_dir).delete(f"/v1/tokens/{quote(token_id, safe='')}")
    show(as_json, answer, "the token is taken away")


def _path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"
