"""/v1/backup: starts a backup on this node, and shows the last one of this node."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, JsonAnswer
from cluster.admin.node_interface import AdminPort
from cluster.admin.route import Route
from cluster.backup.files import superfluous
from cluster.backup.remote import is_url, opened, stored
from cluster.backup.service import Attempt, Schedule
from cluster.config.config import Config
from cluster.config.node_files import of_cluster
from cluster.config.storage_sections import BackupSection
from cluster.tier.store.errors import StoreError
from cluster.tier.store.store_by_url import check_url, directory_of
from raftmq_wire.errors import LocalError

_CONTROL: Final = r"\x00-\x1f\x7f-\x9f"
TARGET: Final = (
    rf"^(/[^{_CONTROL}]*|file:///[^?#%{_CONTROL}]+|(s3|s3a|gs|az|abfs|abfss)://[A-Za-z0-9._-]+(/[^?#{_CONTROL}]*)?)$"
)
"""Pattern of valid targets of a backup, for the OpenAPI document. Error messages describe it in words."""


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/backup`."""

    to: Annotated[str, msgspec.Meta(min_length=1, max_length=4096, extra_json_schema={"pattern": TARGET})]
    """The target: the absolute path of a directory on the node's machine, or the URL of a store. The last part of the
    path may be missing; the node then makes it."""
    keep: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """Number of this cluster's backups that are kept in the target, the new one included. Older ones are removed. null
    keeps all."""
    copy_all: bool = False
    """True to copy every file. Otherwise the node's own files are hard-linked into the backup where that is
    possible."""
    every_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds between the backups of the caller's schedule. An alarm is raised if no good backup is younger than twice
    as much."""
    dry_run: bool = False
    """True to make no backup, and only return the names of the backups that `keep` would remove."""


class BackupView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/backup`."""

    node: int
    attempt: Attempt | None
    """The backup that is being made, or the last one since the node started; null if there was none."""
    last_good_ms: int | None
    age_s: float | None
    schedule: Schedule | None
    would_remove: list[str] | None = None
    """Names of the older backups that would be removed, oldest first; null unless the request was a dry run."""


async def get_backup(call: Call) -> BackupView:
    """Returns the result of this node's last backup, and the age of its newest good one."""
    return _view(call)


async def start_backup(call: Call) -> JsonAnswer:
    """Starts a backup of this node and answers 202; GET then shows its progress."""
    wanted: BackupRequest = call.body
    if not (wanted.to + unquote(wanted.to)).isprintable():
        raise ApiError("bad_field", f"to is {wanted.to!a}, with a character that is not printable", "leave it out")
    if is_url(wanted.to):
        _check_url(wanted.to, call.port.config)
    elif not wanted.to.startswith("/"):
        raise ApiError("bad_field", f"to is {wanted.to}", "give the absolute path of a directory on the node's machine")
    else:
        _check_root(wanted.to, call.port.config.backup)
    if wanted.dry_run:
        return JsonAnswer(
            200, msgspec.structs.replace(_view(call), would_remove=await _would_remove(call.port, wanted))
        )
    try:
        call.port.storage.backups.begin(wanted.to, keep=wanted.keep, copy_all=wanted.copy_all, every_s=wanted.every_s)
    except LocalError as error:
        raise ApiError("failed", f"{error.what}: {error.why}", error.fix) from None
    return JsonAnswer(202, _view(call))


async def _would_remove(port: AdminPort, wanted: BackupRequest) -> list[str]:
    """Returns the names of the backups that would be removed from the target if another one were made. Raises ApiError
    if the target cannot be listed."""
    if wanted.keep is None:
        return []
    mine = port.status().cluster_id
    try:
        if not is_url(wanted.to):
            look = partial(superfluous, Path(wanted.to), mine, wanted.keep - 1)
            return await asyncio.get_running_loop().run_in_executor(None, look)
        async with opened(wanted.to, port.config.tier) as store:
            described, problems = await stored(store)
    except (StoreError, OSError) as error:
        raise ApiError("failed", f"{wanted.to} cannot be listed: {error}", "try again; nothing was changed") from None
    except LocalError as error:
        raise ApiError("failed", f"{error.what}: {error.why}", error.fix) from None
    names = [] if problems else [each.backup.name for each in described if each.backup.cluster_uuid == mine]
    return names[: max(0, len(names) + 1 - wanted.keep)]


def _check_root(to: str, section: BackupSection) -> None:
    """Raises ApiError if the directory `to` is not below one that the configuration allows. Without this check, any
    client of this port could make the node write, and remove old backups, anywhere."""
    target = Path(os.path.realpath(to))
    roots = [root for root in section.allowed if not is_url(root)]
    if not any(target.is_relative_to(os.path.realpath(root)) for root in roots):
        raise ApiError(
            "path_not_allowed",
            f"{to} is not below a directory where this node may put backups ({', '.join(section.allowed) or 'none'})",
            "list one above it in backup.roots of the node's raftmq.toml, then run raftmq reload",
        )


def _check_url(to: str, config: Config) -> None:
    """Raises ApiError if the URL `to` is not below one that the configuration allows. The store of the cluster's tier
    is always allowed. In a further group of brokers, the tier is a folder in that store; backups of that group lie next
    to those of the first group."""
    try:
        check_url(to)
    except LocalError as error:
        raise ApiError("bad_field", f"{error.what}: {error.why}", error.fix) from None
    of_tier = of_cluster(config.tier.url, config.cluster.group)
    path, tier = directory_of(to), directory_of(of_tier)
    if path:
        if not tier or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tier)):
            _check_root(path, config.backup)
        return
    roots = [root.rstrip("/") for root in (*config.backup.allowed, of_tier) if is_url(root)]
    # The client library of the store resolves %2e%2e as a parent directory, too.
    if ".." in unquote(to).split("/") or not any(f"{to}/".startswith(f"{root}/") for root in roots):
        raise ApiError(
            "path_not_allowed",
            f"{to} is not below a URL where this node may put backups ({', '.join(roots) or 'none'})",
            "list it in backup.roots of the node's raftmq.toml, then run raftmq reload",
        )


def _view(call: Call) -> BackupView:
    backups = call.port.storage.backups
    return BackupView(
        node=call.port.config.node.id,
        attempt=backups.attempt,
        last_good_ms=backups.last_good_ms,
        age_s=backups.age_s,
        schedule=backups.schedule,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/backup", get_backup, BackupView, route.CONSTANT, route_rights.CLUSTER_GET),
    Route(
        "POST",
        "/v1/backup",
        start_backup,
        BackupView,
        route.CONSTANT,
        route_rights.SUPER,
        body=BackupRequest,
        statuses=(200, 202),
    ),
)
