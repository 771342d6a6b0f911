"""`raftmq acl`: sets, lists, deletes and tests the rules of users."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from raftmq.commands.access.common import api, people_options
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import counted, print_table, show
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.local.plain_acl import AclPlan

LOOK = "raftmq acl list"


@command_group()
def acl() -> None:
    """Set, list, delete and test the rules of users."""


@acl.command("set")
@click.argument("user")
@click.argument("resource")
@click.argument("actions", nargs=-1, required=True)
@click.option("--deny", is_flag=True, help="The rule denies; without it, it allows.")
@click.option("--source", "sources", multiple=True, metavar="ADDRESS", help="Only from this address or network.")
@click.option("--default", "is_default", is_flag=True, help="It counts only where no other rule of the user fits.")
@click.option("--add", is_flag=True, help="Add the actions to those of the rule that is there.")
@people_options
def set_(
    user: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    is_default: bool,
    add: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Set the rule of USER for RESOURCE: it takes the place of the one that is there, or adds to it with --add.

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
    asked = api(admin, data, data_dir, LOOK)
    if add:
        rule = _added(user, rule, asked.get(_path(user))["rules"])
    answer = asked.put(_path(user), {"rules": [rule]})
    show(as_json, answer, _told(user, rule))


def _added(user: str, rule: dict[str, Any], rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns `rule` with the actions of the user's earlier rule for that resource added. The earlier rule's sources
    stay, unless `rule` names others. Raises LocalError if one of the two rules allows and the other denies."""
    kind, _, name = rule["resource"].partition(":")
    for known in rules:
        its_kind, _, its_name = known["resource"].partition(":")
        if (its_kind.lower(), its_name, known["policy"]) != (kind.lower(), name, rule["policy"]):
            continue
        if known["decision"] != rule["decision"]:
            raise LocalError(
                f"user {user} has a rule for {known['resource']} that does the opposite",
                f"{known['decision']} {', '.join(known['actions'])}; nothing was changed",
                f"raftmq acl set {user} {shlex.quote(rule['resource'])} {' '.join(rule['actions'])}    (replaces it)",
                ExitCode.REFUSED,
            )
        there = {each.lower() for each in known["actions"]}
        actions = [*known["actions"], *(each for each in rule["actions"] if each.lower() not in there)]
        return {**rule, "actions": actions, "sources": rule["sources"] or known["sources"]}
    return rule


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
    show(as_json, answer, f"user {user} has {counted(answer['rules'], 'rule')} left")


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


@acl.command("import")
@click.argument("file", type=LocalPath(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--all-must-sign",
    is_flag=True,
    help="Go on although addresses that needed no signature before will need one.",
)
@people_options
def import_(
    file: Path,
    dry_run: bool,
    yes: bool,
    all_must_sign: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Make users and rules from FILE, RocketMQ's plain_acl.yml. It shows the plan first, and asks.

    A request is let in by its signature alone. FILE's white lists (globalWhiteRemoteAddresses, whiteRemoteAddress)
    let in addresses without one: the plan names them, and nothing is imported without --all-must-sign.
    """
    plan = _plan_in(file)
    told = _told_plan(plan)
    if not as_json:
        for line in told:
            click.echo(line)
    if plan.unsigned and not (all_must_sign or dry_run):
        why = f"{len(plan.unsigned)} addresses needed no signature in {file.name}, and every request needs one here"
        fix = f"raftmq acl import {file} --all-must-sign    (when the clients there sign)"
        raise LocalError("nothing was imported", why, fix, ExitCode.REFUSED)
    if not dry_run:
        if not yes and plan.users:
            click.confirm(f"make {counted(len(plan.users), 'user')}?", abort=True, err=True)
        asked = api(admin, data, data_dir, LOOK)
        for user in plan.users:
            kind = "Super" if user.is_super else "Normal"
            asked.post("/v1/users", {"name": user.name, "secret": user.secret, "type": kind})
            if user.rules:
                asked.put(_path(user.name), {"rules": list(user.rules)})
    answer = {"users": [user.name for user in plan.users], **_without_secrets(plan), "imported": not dry_run}
    show(as_json, answer, f"{'would make' if dry_run else 'there now:'} {counted(len(plan.users), 'user')}")


def _plan_in(file: Path) -> AclPlan:
    """Returns the plan for a plain_acl.yml. Raises LocalError, whose text quotes nothing of the file, because the file
    has secrets."""
    import yaml

    from raftmq.local.plain_acl import PlainAclError, document_of, plan_of

    fix = "raftmq acl import conf/plain_acl.yml    (RocketMQ's ACL 1.0)"
    try:
        return plan_of(document_of(file.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1} is no YAML" if mark is not None else "it is no YAML"
        raise LocalError(f"{file} cannot be imported", where, fix, ExitCode.USAGE) from None
    except PlainAclError as error:
        raise LocalError(f"{file} cannot be imported", str(error), fix, ExitCode.USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise LocalError(f"{file} cannot be imported", why, fix, ExitCode.USAGE) from None


def _told_plan(plan: AclPlan) -> list[str]:
    lines = []
    for user in plan.users:
        lines.append(f"user {user.name}: {'Super' if user.is_super else 'Normal'}")
        lines += [f"  {each['decision']} {', '.join(each['actions'])} on {each['resource']}" for each in user.rules]
    lines += [f"note: {note}" for note in plan.notes]
    lines += [f"needs a signature from now on: {address}" for address in plan.unsigned]
    return lines + [f"left out: {each}" for each in plan.left_out]


def _without_secrets(plan: AclPlan) -> dict[str, Any]:
    rules = {user.name: list(user.rules) for user in plan.users}
    return {"rules": rules, "notes": plan.notes, "unsigned": plan.unsigned, "left_out": plan.left_out}


def _path(user: str) -> str:
    return f"/v1/acl/{quote(user, safe='')}"


def _row(rule: dict[str, Any]) -> list[str]:
    sources = ", ".join(rule["sources"]) or "all"
    return [rule["resource"], rule["decision"], ", ".join(rule["actions"]), sources, rule["policy"]]


def _told(user: str, rule: dict[str, Any]) -> str:
    where = f" from {', '.join(rule['sources'])}" if rule["sources"] else ""
    return f"user {user}: {rule['decision']} {', '.join(rule['actions'])} on {rule['resource']}{where}"
