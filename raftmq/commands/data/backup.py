"""`raftmq backup`: creates, lists and verifies backups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from cluster.config.local_layout import NodeName, group_folder, key_of, name_of
from cluster.config.node_files import of_group
from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import (
    cluster_options,
    console,
    json_option,
    print_json,
    print_table,
    show,
    show_problems,
)
from raftmq.commands.value_types import DurationType, NodeNameType, StoreType
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.all_groups import Groups, all_groups, alone, in_one, named, one_group
from raftmq.local.http.asked_nodes import ask_all, ask_each
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.backup.manifest import Manifest
    from cluster.backup.verify import Verified

UNCONFIRMED = (
    "no leader confirmed in time that the node has everything: the newest acknowledged messages may be missing"
)
_POLL_S = 0.1


@command_group()
def backup() -> None:
    """Create, list and verify backups."""


@backup.command("create")
@click.option(
    "--to",
    required=True,
    metavar="DIR|URL",
    type=StoreType(paths=True),
    help="A directory on the node's machine, or an object store (s3://bucket/prefix).",
)
@click.option(
    "--node", type=NodeNameType(click.IntRange(1)), metavar="N", help="The node to back up (default: a follower)."
)
@click.option("--every", type=DurationType(), metavar="1h", help="Repeat at this interval until Ctrl-C.")
@click.option("--keep", type=click.IntRange(1), metavar="24", help="Keep only this many of the cluster's backups.")
@click.option("--copy", "copy_all", is_flag=True, help="Copy everything instead of using hard links.")
@click.option("--dry-run", is_flag=True, help="Make none; only show which older backups --keep would remove.")
@cluster_options
def create(
    to: str,
    node: NodeName | None,
    every: float | None,
    keep: int | None,
    copy_all: bool,
    dry_run: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Back up a running node up to its applied index, and verify the backup.

    The node continues to serve. With --every the command keeps running and repeats the backup. For a schedule without
    this command, put a [backup] section into the node's configuration.
    """
    body: dict[str, Any] = {"to": to if "://" in to else str(Path(to).absolute()), "copy_all": copy_all}
    if keep is not None:
        body["keep"] = keep
    if every is not None:
        body["every_s"] = every
    if dry_run:
        _show_plans(_plans(_groups(admin, data, node), node, body), as_json)
        return
    while True:
        began = time.monotonic()
        try:
            groups = _groups(admin, data, node)
            _tell(_make_all(groups, node, body), as_json)
            show_problems(alone(groups, "backed up"))
        except LocalError as error:
            if every is None:
                raise
            console(stderr=True).print(f"[red]{error.what}[/]; {error.why}; trying again in {every:.0f} s")
        if every is None:
            return
        time.sleep(max(0.0, began + every - time.monotonic()))


def _groups(admin: str | None, data: str | None, node: NodeName | None) -> Groups:
    """Returns group -> the addresses at which to look for `node`. If no node is named, the addresses that the user gave
    are not completed by those of other nodes, so that the backup is written on that machine."""
    return one_group(all_groups(admin, data, members=node is not None), node)


def _plans(groups: Groups, node: NodeName | None, body: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Asks a node of each group which old backups a backup would remove; returns group -> answer. Raises LocalError."""
    plans = {}
    for group, addresses in groups.items():
        asked = {**body, "to": of_group(body["to"], group), "dry_run": True}
        plans[group] = named(_choose(addresses, node, group).post("/v1/backup", asked), group)
    return plans


def _show_plans(plans: dict[int, dict[str, Any]], as_json: bool) -> None:
    gone = [_in_folder(group, name) for group, plan in plans.items() for name in plan["would_remove"]]
    told = f"nothing was changed; beside a new backup would go: {', '.join(gone) or 'none'}"
    answers = {group: {"node": plan["node"], "would_remove": plan["would_remove"]} for group, plan in plans.items()}
    show(as_json, in_one(answers), told)


def _in_folder(group: int, name: str) -> str:
    """Returns the path of a backup, relative to the directory or store of backups."""
    return name if group == FIRST_GROUP else f"{group_folder(Path(), group)}/{name}"


def _make_all(groups: Groups, node: NodeName | None, body: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Backs up a node of each group, the first group last: its backup must include every decision that another group's
    backup has copied from it. Returns group -> backup. Raises LocalError."""
    if any(group != FIRST_GROUP for group in groups) and "://" not in body["to"]:
        _plans(groups, node, body)  # this refuses a place that is not allowed, before a folder is made there
        Path(body["to"]).mkdir(exist_ok=True)
    made = {}
    for group in sorted(groups, key=lambda each: (each == FIRST_GROUP, each)):
        own = {**body, "to": of_group(body["to"], group)}
        try:
            made[group] = _make(_choose(groups[group], node, group), own, group)
        except LocalError as error:
            raise error if len(groups) == 1 else error.of_group(group) from None
    return made


def _choose(addresses: Sequence[str], node: NodeName | None, group: int) -> AdminApi:
    """Returns the API of the requested node; without one, of a follower if there is one, else of any node that
    answers."""
    if node is not None:
        ((api, _), *_), _ = ask_all(addresses, "/v1/status", key_of(node)[1], group)
        return api
    answers, _ = ask_each(addresses, "/v1/status")
    known = {int(status["node"]): (status["role"] == "leader", api) for api, status in answers}
    if not known:
        return AdminApi(addresses)  # if it does not answer, its use reports the reason
    return known[min(known, key=lambda each: (known[each][0], each))][1]


def _make(api: AdminApi, body: dict[str, Any], group: int) -> dict[str, Any]:
    view = named(api.post("/v1/backup", body), group)
    started_ms = view["attempt"]["started_ms"]
    with console(stderr=True).status(f"node {view['node']}: {view['attempt']['stage']}") as spinner:
        while view["attempt"]["started_ms"] == started_ms and view["attempt"]["state"] == "running":
            time.sleep(_POLL_S)
            view = named(api.local("/v1/backup"), group)
            spinner.update(f"node {view['node']}: {view['attempt']['stage']}")
    attempt: dict[str, Any] = view["attempt"]
    if attempt["started_ms"] != started_ms:
        raise LocalError(
            f"node {view['node']} has started another backup in the meantime",
            "the outcome of this one is in the node's log",
            f"raftmq backup list {body['to']}",
            ExitCode.UNKNOWN,
        )
    if attempt["error"]:
        raise LocalError(*attempt["error"])
    return {"node": view["node"], **attempt}


def _tell(made: dict[int, dict[str, Any]], as_json: bool) -> None:
    """Prints the backups that were made, group -> backup."""
    kept = {
        group: {key: value for key, value in each.items() if key not in ("error", "stage", "state")}
        for group, each in made.items()
    }
    show(as_json, in_one(dict(sorted(kept.items()))), *(line for each in made.values() for line in _lines(each)))


def _lines(made: dict[str, Any]) -> list[str]:
    return [
        f"{made['path']}: node {made['node']} up to index {made['index']}, {made['bytes_total']} bytes, "
        f"{made['bytes_new']} of them copied, read back, {made['seconds']:.1f} s",
        *([] if made.get("confirmed", True) else [UNCONFIRMED]),  # an older node does not report it
        *(f"removed {name}" for name in made["removed"]),
    ]


@backup.command("list")
@click.argument("directory", metavar="DIR|URL", type=StoreType(paths=True))
@json_option
def list_(directory: str, as_json: bool) -> None:
    """List the backups in a directory or an object store."""
    found, problems = _all_backups_in(directory)
    if as_json:
        rows = [
            {key: getattr(each, key) for key in ("name", "made_ms", "node", "cluster_uuid", "index", "bytes_total")}
            | {"name": _in_folder(group, each.name), "node": name_of(group, each.node)}
            for group, each in found
        ]
        print_json({"schema": 1, "backups": rows, "problems": problems})
        return
    print_table(
        ["backup", "node", "index", "bytes", "copied"],
        [
            [_in_folder(group, each.name), str(name_of(group, each.node)), each.index, each.bytes_total, each.bytes_new]
            for group, each in found
        ],
        none=f"no backups in {directory}; create one with: raftmq backup create --to {directory}",
    )
    show_problems(problems)


@backup.command("verify")
@click.argument("path", metavar="DIR[/NAME]|URL[/NAME]", type=StoreType(paths=True))
@json_option
def verify(path: str, as_json: bool) -> int:
    """Verify one backup, or all in a directory or store: every CRC, the chain of the log, the sums of the rows.

    A backup in an object store is fetched into a temporary directory first (TMPDIR).
    """
    from cluster.backup import verify as verifying

    backups, problems = _named(path)
    if not backups and not problems:
        raise LocalError(
            f"there is no backup in {path}",
            "nothing was verified",
            f"raftmq backup create --to {path}",
            ExitCode.REFUSED,
        )
    results = []
    for each in backups:
        name = each.removeprefix(f"{path.rstrip('/')}/") if each != path.rstrip("/") else each.rpartition("/")[2]
        with console(stderr=True).status(f"reading {name}"):
            result = _verify(each)
        results.append(verifying.as_json(name, result))
        problems += result.problems
        if not as_json:
            good = "bad" if result.problems else "good"
            click.secho(f"{name}: {good}, {result.bytes_read} bytes read", fg="red" if result.problems else None)
    if as_json:
        print_json({"schema": 1, "good": not problems, "backups": results, "problems": problems})
    else:
        show_problems(problems)
    return ExitCode.FAILED if problems else ExitCode.OK


def _all_backups_in(target: str) -> tuple[list[tuple[int, Manifest]], list[str]]:
    """Returns ((group, backup) pairs: those in the target, then those of further groups next to it; problems)."""
    from cluster.backup.group_backups import places_in

    found, problems = _backups_in(target)
    every = [(FIRST_GROUP, each) for each in found]
    for group, place in places_in(target):
        further, more = _backups_in(place)
        every += [(group, each) for each in further]
        problems += more
    return every, problems


def _backups_in(target: str) -> tuple[list[Manifest], list[str]]:
    from cluster.backup.files import backups_in
    from cluster.backup.remote import backups_at, is_url

    return backups_at(target) if is_url(target) else backups_in(Path(target))


def _named(path: str) -> tuple[list[str], list[str]]:
    """Returns (the path of the backup at `path`, or the paths of all backups in it; problems)."""
    from cluster.backup.manifest import MANIFEST
    from cluster.backup.remote import is_backup_at, is_url

    if is_backup_at(path) if is_url(path) else (Path(path) / MANIFEST).exists():
        return [path.rstrip("/")], []
    found, problems = _all_backups_in(path)
    return [f"{path.rstrip('/')}/{_in_folder(group, each.name)}" for group, each in found], problems


def _verify(path: str) -> Verified:
    from cluster.backup.remote import is_url, verify_backup
    from cluster.backup.verify import verify as verify_local

    if not is_url(path):
        return verify_local(Path(path))
    with TemporaryDirectory(prefix="raftmq-verify-") as scratch:
        return verify_backup(path, Path(scratch) / "fetched")
