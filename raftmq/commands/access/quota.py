"""`raftmq quota`: says how much users, addresses and topics may ask of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote as quoted

import click

from cluster.flow.quota_limits import LIMIT_MAX, LIMITS, told
from raftmq.commands.access.common import api, people_options
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import print_table, show
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq quota list"
VALUE = click.IntRange(min=1, max=LIMIT_MAX)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would change.")


@command_group()
def quota() -> None:
    """Say how much users, addresses and topics may send."""


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each limit."""
    for limit in reversed(list(LIMITS.values())):
        command = click.option(limit.option, limit.name, type=VALUE, metavar="N", help=limit.help)(command)
    return command


@quota.command("set")
@click.argument("subject")
@limit_options
@DRY_RUN
@people_options
def set_(
    subject: str,
    dry_run: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
    **limits: int | None,
) -> None:
    """Set the quota of SUBJECT, in place of the one that is there.

    SUBJECT is user=NAME, user=NAME,topic=NAME, address=IP or topic=NAME, and * in place of a name for everybody who has
    no such limit of his own. Of each limit the narrowest one of a sender counts, and that of the topic.
    """
    asked = api(admin, data, data_dir, LOOK)
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        raise LocalError(
            "no limit was given",
            "a quota has at least one",
            f"raftmq quota set {subject} --send-messages N",
            ExitCode.USAGE,
        )
    body = {"quotas": [{"subject": subject, "limits": given}], "dry_run": dry_run}
    answer = asked.put("/v1/quotas", body)
    show(as_json, answer, _told(answer, f"{subject}: {told(given)}"))


@quota.command("list")
@people_options
def list_(data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """List all quotas, and who is over one."""
    asked = api(admin, data, data_dir, LOOK)
    quotas = asked.whole("/v1/quotas", "quotas")["quotas"]
    over = asked.local("/v1/quotas/refused")
    if as_json:
        show(True, {"quotas": quotas, "refused": over["owners"]})
        return
    rows = [[each["subject"], told(each["limits"]), each["changed_by"], _gone(each)] for each in quotas]
    titles = ["subject", "limits", "changed by", ""]
    print_table(titles, rows, none="no quotas yet: raftmq quota set user=NAME --send-messages N", left=titles)
    if over["owners"]:
        rows = [[each["owner"], each["subject"], each["limit"], each["refused"]] for each in over["owners"]]
        print_table(["over it", "quota", "limit", "refused"], rows, left=("over it", "quota", "limit"))


@quota.command("delete")
@click.argument("subject")
@DRY_RUN
@people_options
def delete(
    subject: str, dry_run: bool, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool
) -> None:
    """Take the quota of SUBJECT away."""
    query = "?dry_run=true" if dry_run else ""
    answer = api(admin, data, data_dir, LOOK).delete(f"/v1/quotas/{quoted(subject, safe='')}{query}")
    show(as_json, answer, _told(answer, f"{subject} has no quota any more"))


def _told(answer: dict[str, Any], says: str) -> str:
    if not answer["changed"]:
        return "nothing has changed: it is so already"
    return f"would be: {says}" if answer["dry_run"] else says


def _gone(quota_view: dict[str, Any]) -> str:
    return "" if quota_view["exists"] else "nobody has this name now"
