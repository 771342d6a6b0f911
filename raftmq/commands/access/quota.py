"""`raftmq quota`: says how much users, addresses and topics may ask of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as quoted

import click

from cluster.flow.quota_limits import LIMIT_MAX, LIMITS, told
from raftmq.commands.access.common import api, people_options
from raftmq.commands.command_group import command_group
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import counted, print_table, show
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq_wire.learnt_file import LearntFile

LOOK = "raftmq quota list"
VALUE = click.IntRange(min=1, max=LIMIT_MAX)
LOOK_LEARNT = "raftmq quota learnt"
TOPICS_PER_PART = 8
"""The number of topics in one request: so many topics with 168 numbers of 20 digits each fit into the largest
request."""
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


@quota.command("import")
@click.argument("file", type=LocalPath(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--mode",
    type=click.Choice(["shadow", "on"]),
    default="shadow",
    show_default=True,
    help="shadow: count what is over the limits. on: cut those topics first in an overload as well.",
)
@click.option(
    "--valid-days",
    type=click.IntRange(min=1, max=366),
    metavar="N",
    help="Use the limits for so long (default: as the file says).",
)
@click.option("--dry-run", is_flag=True, help="Only say if the file would be taken.")
@people_options
def import_(
    file: Path,
    mode: str,
    valid_days: int | None,
    dry_run: bool,
    data_dir: Path | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Put the learnt limits in FILE in force, in place of those that are.

    FILE is written by `raftmq spark traffic --limits FILE`. Learnt limits alone refuse nothing.
    """
    asked = api(admin, data, data_dir, LOOK_LEARNT)
    learnt = _read(file)
    origin = {name: getattr(learnt.origin, name) for name in learnt.origin.__struct_fields__}
    body = {"digest": learnt.digest, "origin": origin, "count": len(learnt.topics), "mode": mode}
    body |= {"valid_days": valid_days}
    answer = asked.put("/v1/quotas/learnt", {**body, "dry_run": True})
    if not dry_run:
        rows = [{"topic": topic, "messages": each[0], "bytes": each[1]} for topic, each in learnt.topics.items()]
        for at in range(0, len(rows), TOPICS_PER_PART):
            part = {"topics": rows[at : at + TOPICS_PER_PART], "begins": at == 0}
            asked.put(f"/v1/quotas/learnt/{learnt.digest}", part)
        answer = asked.put("/v1/quotas/learnt", body)
    said = f"limits of {counted(len(learnt.topics), 'topic')} in force, mode {mode}"
    show(as_json, answer, _told(answer, said))


def _read(file: Path) -> LearntFile:
    from raftmq_wire.learnt_file import FILE_BYTES_MAX, decode_file

    try:
        with file.open("rb") as opened:
            return decode_file(opened.read(FILE_BYTES_MAX + 1))
    except (OSError, ValueError) as error:
        raise LocalError(
            f"{file} cannot be imported", str(error), "raftmq spark traffic --help    (--limits writes such a file)"
        ) from None


@quota.command("learnt")
@people_options
def learnt_(data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the learnt limits, and the topics that are over theirs."""
    answer = api(admin, data, data_dir, LOOK_LEARNT).local("/v1/quotas/learnt")
    if as_json:
        show(True, answer)
        return
    limits = answer["in_force"]
    if limits is None:
        click.echo("no learnt limits: raftmq quota import FILE")
        return
    ends = f"{'have expired on' if limits['expired'] else 'count until'} {time_text(limits['ends_ms'])}"
    click.echo(
        f"limits of {counted(limits['topics'], 'topic')}, mode {limits['mode']}, imported by {limits['changed_by']}: "
        f"learnt from {time_text(limits['first_ms'])} to {time_text(limits['last_ms'])}, {ends}"
    )
    share = answer["over"] / answer["seen"] if answer["seen"] else 0.0
    click.echo(
        f"since this leader leads: {answer['over']:,} of {counted(answer['seen'], 'message')} over ({share:.3%})"
    )
    rows = [
        [each["topic"], each["messages_per_s"], each["limit_messages"] or "-", each["over"], each["cut"]]
        for each in answer["topics"]
    ]
    print_table(["topic", "messages/s", "limit", "over", "cut"], rows, none="no message yet", left={"topic"})


@quota.command("forget")
@DRY_RUN
@people_options
def forget(dry_run: bool, data_dir: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Take the learnt limits away."""
    query = "?dry_run=true" if dry_run else ""
    answer = api(admin, data, data_dir, LOOK_LEARNT).delete(f"/v1/quotas/learnt{query}")
    show(as_json, answer, _told(answer, "there are no learnt limits any more"))


def _told(answer: dict[str, Any], says: str) -> str:
    if not answer["changed"]:
        return "nothing has changed: it is so already"
    return f"would be: {says}" if answer["dry_run"] else says


def _gone(quota_view: dict[str, Any]) -> str:
    return "" if quota_view["exists"] else "nobody has this name now"
