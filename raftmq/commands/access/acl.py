"""`raftmq acl`: sets, lists, deletes and tests the rules of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from raftmq.commands.access.common import api, people_options
from raftmq.commands.common import print_table, show
from raftmq_wire.errors import ExitCode

LOOK = "raftmq acl list"


@click.group()
def acl() -> None:
    """Set, list, delete and test the rules of users."""


@acl.command("set")
@click.argument("user")
@click.argument("resource")
@click.argument("actions", nargs=-1, required=True)
@click.option("--deny", is_flag=True, help="The rule denies; without it, it allows.")
@click.option("--source", "sources", multiple=True, metavar="ADDRESS", help="Only from this address or network.")
@click.option("--default", "is_default", is_flag=True, help="It counts only where no other rule of the user fits.")
@people_options
def set_(
    user: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    is_default: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Set the rule of USER for RESOURCE: it takes the place of the one that is there.

    RESOURCE is Topic:orders, Topic:orders* (every name that begins so), Topic:*, the same with Group: and Cluster:, or
    * for everything. ACTIONS are All, Pub, Sub, Create, Update, Delete, Get, List.
    """
    rule = {
        "resource": resource,
        "actions": list(actions),
        "decision": "Deny" if deny else "Allow",
        "sources": list(sources),
        "policy": "Default" if is_default else "Custom",
    }
    answer = api(admin, data, data_dir, LOOK).put(_path(user), {"rules": [rule]})
    show(as_json, answer, _told(user, rule))


@acl.command("list")
@click.argument("user", required=False)
@people_options
def list_(user: str | None, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """List the rules of USER, or of all users."""
    asked = api(admin, data, data_dir, LOOK)
    named = [user] if user else [each["name"] for each in asked.whole("/v1/users", "users")["users"] if each["rules"]]
    found = {name: asked.local(_path(name))["rules"] for name in named}
    rows = [[name, *_row(rule)] for name, rules in found.items() for rule in rules]
    if as_json:
        show(True, {"rules": [{"user": name, **rule} for name, rules in found.items() for rule in rules]})
        return
    titles = ["user", "resource", "decision", "actions", "sources", "policy"]
    print_table(titles, rows, none="no rules yet: raftmq acl set USER Topic:NAME Pub Sub", left=titles)


@acl.command("delete")
@click.argument("user")
@click.argument("resource", required=False)
@click.option("--default", "is_default", is_flag=True, help="The rule of the default policy.")
@people_options
def delete(
    user: str,
    resource: str | None,
    is_default: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Delete the rule of USER for RESOURCE, or all its rules."""
    asked = {"resource": resource} if resource else {}
    asked |= {"policy": "Default"} if is_default else {"policy": "Custom"} if resource else {}
    query = f"?{urlencode(asked)}" if asked else ""
    answer = api(admin, data, data_dir, LOOK).delete(_path(user) + query)
    show(as_json, answer, f"user {user} has {answer['rules']} rules left")


@acl.command("test")
@click.argument("user")
@click.argument("resource")
@click.argument("action")
@click.option("--source", default="127.0.0.1", metavar="ADDRESS", show_default=True, help="The client's address.")
@people_options
def test(
    user: str,
    resource: str,
    action: str,
    source: str,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> int:
    """Ask whether USER may do ACTION on RESOURCE, such as Topic:orders. Exit code: 1 if not."""
    body = {"user": user, "resource": resource, "action": action, "address": source}
    answer = api(admin, data, data_dir, LOOK).post("/v1/acl/test", body)
    show(as_json, answer, "allowed" if answer["allowed"] else f"denied: {answer['why']}")
    return ExitCode.OK if answer["allowed"] else ExitCode.FAILED


def _path(user: str) -> str:
    return f"/v1/acl/{quote(user, safe='')}"


def _row(rule: dict[str, Any]) -> list[str]:
    sources = ", ".join(rule["sources"]) or "all"
    return [rule["resource"], rule["decision"], ", ".join(rule["actions"]), sources, rule["policy"]]


def _told(user: str, rule: dict[str, Any]) -> str:
    where = f" from {', '.join(rule['sources'])}" if rule["sources"] else ""
    return f"user {user}: {rule['decision']} {', '.join(rule['actions'])} on {rule['resource']}{where}"
