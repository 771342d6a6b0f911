"""`raftmq restore`: makes a new cluster from a backup, or from the tier of a lost cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.point_in_time import PointInTime, time_text
from raftmq.commands.shared_options import console, counted, json_option, show
from raftmq.commands.value_types import StoreType
from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from cluster.backup.from_tier import Rebuilt
    from cluster.backup.manifest import Manifest
    from cluster.backup.restore import ChosenBackup
    from cluster.backup.revived import Revived


USERS_SHOWN = 50
_NOT_ATOMIC = (
    "each group is as of a moment of its own log: of what was sent to several groups at one time, one may have a part "
    "that another has not"
)
NODES = 3


@click.command()
@click.option("--from", "source", metavar="DIR/NAME|URL/NAME", type=StoreType(paths=True), help="The backup.")
@click.option(
    "--from-tier", "tier", metavar="URL", type=StoreType(paths=False), help="The tier of the lost cluster (tier.url)."
)
@click.option("--cluster", metavar="ID", help="The id of the lost cluster, if several have their tier there.")
@click.option("--to-index", type=click.IntRange(0), metavar="N", help="The last log entry that is restored.")
@click.option(
    "--to-time",
    type=PointInTime(ages=True),
    metavar="T",
    help="Nothing with a later log time is restored: a time (UTC), or an age such as 15m.",
)
@click.option(
    "--into", required=True, metavar="NEWDIR", type=LocalPath(path_type=Path), help="A new or empty directory."
)
@click.option("--nodes", default=NODES, show_default=True, type=int, help="Number of nodes of the new cluster.")
@click.option(
    "--base-port", type=int, metavar="P", help="Use consecutive ports from P instead of RocketMQ's usual ones."
)
@click.option(
    "--acl-from",
    metavar="DIR/NAME|URL/NAME",
    type=StoreType(paths=True),
    help="A later backup of the cluster, whose users and rules count.",
)
@json_option
def restore(
    source: str | None,
    tier: str | None,
    cluster: str | None,
    to_index: int | None,
    to_time: int | None,
    into: Path,
    nodes: int,
    base_port: int | None,
    acl_from: str | None,
    as_json: bool,
) -> None:
    """Create a new cluster from a backup or a tier, in the layout of `raftmq up`.

    The new cluster has its own uuid; its topics, groups, offsets and messages are those of one index of the log: of the
    backup, of --to-index or --to-time, or of the last entry in the tier. The old cluster is not changed and may still
    be running, on other ports.

    A cluster of several groups comes back with all of them, each as of a moment of its own log: not of a common one.

    Users and rules come back as they were then. The newest copy that is known says what was changed later: another
    backup in the same folder, the end of the log in the tier, or that of --acl-from, which takes its users and rules.
    """
    from cluster.backup.group_backups import further_sources
    from cluster.backup.replay import RestoreTarget
    from cluster.backup.restore import RestoreSource, found_source, users_from
    from cluster.backup.restore import restore as make
    from cluster.config.node_files import set_tier
    from raftmq.local.process import is_free

    if source is None and tier is None:
        raise click.UsageError("say what to restore: --from BACKUP, --from-tier URL, or both")
    if to_index is not None and to_time is not None:
        raise click.UsageError("--to-index and --to-time exclude each other")
    now_ms = time.time_ns() // 1_000_000
    rest = ["--into", str(into)]
    rest += [] if nodes == NODES else ["--nodes", str(nodes)]
    rest += [] if base_port is None else ["--base-port", str(base_port)]
    rest += [] if acl_from is None else ["--acl-from", acl_from]
    wanted = RestoreSource(
        source, tier, cluster, RestoreTarget(to_index, to_time), (*rest, *(["--json"] if as_json else []))
    )
    with (
        console(stderr=True).status("starting") as spinner,
        found_source(wanted, into, now_ms, spinner.update) as found,
        further_sources(wanted, found, into.absolute(), now_ms, spinner.update) as others,
    ):
        newest, newest_name = found.newest, found.newest_name
        if acl_from is not None:
            newest, newest_name = users_from(acl_from, found, into, spinner.update)
        made = make(
            found.path,
            into.absolute(),
            count=nodes,
            base_port=base_port,
            now_ms=now_ms,
            users=None if acl_from is None else newest,
            further={group: each.path for group, each in others.items()},
            is_free=is_free,
            on_stage=spinner.update,
        )
    if tier is not None:
        set_tier(made.nodes, tier)
    manifest = made.manifest
    told = {"data": str(into.absolute()), "nodes": len(made.nodes), "cluster_uuid": str(made.cluster_uuid)}
    rebuilt = found.rebuilt
    users = newest if acl_from is not None and newest is not None else made.revived
    later = [] if newest is None else made.revived.differences(newest)
    show(
        as_json,
        {
            **told,
            "from": manifest.name if rebuilt is None else tier,
            "index": manifest.index,
            "timestamp_ms": manifest.timestamp_ms,
            "known_index": manifest.index if rebuilt is None else max(rebuilt.known_index, manifest.index),
            "digest": manifest.digest,
            "users": [
                {"name": user.name, "super": user.is_super, "enabled": user.enabled, "rules": len(user.rules)}
                for user in users.users
            ],
            "auth_mode": users.mode,
            "keys": list(users.keys),
            "tokens_revoked": len(made.revived.tokens),
            "acl_from": newest_name if acl_from is not None else None,
            "newest_known": newest_name or None,
            "changed_later": later,
            **(
                {"groups": [_group_json(made.further[group], each) for group, each in others.items()]} if others else {}
            ),
        },
        f"created the new cluster {made.cluster_uuid} with {counted(len(made.nodes), 'node')} in {into}",
        f"it continues cluster {manifest.cluster_uuid} from index {manifest.index} ({manifest.name})",
        *([] if rebuilt is None else _about(rebuilt, manifest)),
        *(line for group, each in others.items() for line in _about_group(group, made.further[group], each)),
        *([_NOT_ATOMIC] if others else []),
        *_users(users, len(made.revived.tokens), newest_name if acl_from is not None else ""),
        *_later(later, newest_name, is_taken=acl_from is not None),
        f"start it: raftmq up --data {into}",
    )


def _group_json(manifest: Manifest, found: ChosenBackup) -> dict[str, object]:
    rebuilt = found.rebuilt
    return {
        "group": manifest.group_id,
        "from": manifest.name,
        "index": manifest.index,
        "timestamp_ms": manifest.timestamp_ms,
        "known_index": manifest.index if rebuilt is None else max(rebuilt.known_index, manifest.index),
    }


def _about_group(group: int, manifest: Manifest, found: ChosenBackup) -> list[str]:
    """Returns lines about a further group."""
    when = time_text(manifest.timestamp_ms, exact=True)
    lines = [f"group {group} continues from index {manifest.index} ({manifest.name}), log time {when}"]
    return lines + ([] if found.rebuilt is None else [f"  {line}" for line in _about(found.rebuilt, manifest)])


def _users(revived: Revived, tokens: int, copy: str) -> list[str]:
    """Returns lines about the users of the new cluster; nothing if there are none. `copy`: the backup from which the
    users were taken; "" if it is the restored backup itself."""
    if not revived.users:
        return []
    when = f"users and rules are those of {copy}" if copy else "it brings back users as they were then"
    lines = [f"auth.mode is {revived.mode}; {when}, so look at them before clients connect:"]
    for user in revived.users[:USERS_SHOWN]:
        what = "Super" if user.is_super else f"Normal, {counted(len(user.rules), 'rule')}"
        lines.append(f"  {user.name}: {what}{'' if user.enabled else ', disabled'}")
    if len(revived.users) > USERS_SHOWN:
        lines.append(f"  and {len(revived.users) - USERS_SHOWN} more")
    lines.append(f"tokens that are taken away: {tokens}")
    lines.append(
        f"secrets need the key {', '.join(revived.keys)}: copy the users' key file of the old cluster, and name it as "
        "auth.key_file in each raftmq.toml"
    )
    return lines


def _later(later: list[str], newest: str, *, is_taken: bool) -> list[str]:
    """Returns lines about the users and rules in `later`, which were changed after the restored point. `newest`: the
    backup up to which changes are known; "" if there is none. `is_taken`: they are restored as `newest` has them."""
    if not later:
        return [f"no user or rule was changed up to {newest}"] if newest else []
    lines = [f"of these were changed up to {newest}" + (", and are as they were there:" if is_taken else ":")]
    lines += [f"  {each}" for each in later[:USERS_SHOWN]]
    if len(later) > USERS_SHOWN:
        lines.append(f"  and {len(later) - USERS_SHOWN} more")
    return (
        lines if is_taken else [*lines, "to take users and rules from a later backup: restore with --acl-from DIR/NAME"]
    )


def _about(rebuilt: Rebuilt, manifest: Manifest) -> list[str]:
    """Returns lines about the content of the restored cluster, and about data that is known to be missing."""
    last = time_text(manifest.timestamp_ms, exact=True)
    lines = [f"it began with {rebuilt.began}; its last entry has log time {last}"]
    missing = rebuilt.known_index - manifest.index
    if missing > 0:
        lines.append(
            f"not in it: {missing} or more entries, from index {manifest.index + 1} on; the cluster had applied "
            f"{rebuilt.known_index} when it last wrote to the store"
        )
    else:
        lines.append(f"not in it: what the cluster may have written after index {manifest.index}")
    return lines
