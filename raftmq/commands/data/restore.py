"""`raftmq restore`: makes a new cluster from a backup, or from the tier of a lost cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.common import console, json_option, show
from raftmq.commands.point_in_time import PointInTime

if TYPE_CHECKING:
    from cluster.backup.from_tier import Rebuilt
    from cluster.backup.manifest import Manifest
    from cluster.backup.revived import Revived


USERS_SHOWN = 50


@click.command()
@click.option("--from", "source", metavar="DIR/NAME|URL/NAME", help="The backup.")
@click.option("--from-tier", "tier", metavar="URL", help="The tier of the lost cluster (tier.url).")
@click.option("--cluster", metavar="ID", help="The id of the lost cluster, if several have their tier there.")
@click.option("--to-index", type=click.IntRange(0), metavar="N", help="The last log entry that is restored.")
@click.option("--to-time", type=PointInTime(), metavar="T", help="Nothing with a later log time is restored (UTC).")
@click.option(
    "--into", required=True, metavar="NEWDIR", type=click.Path(path_type=Path), help="A new or empty directory."
)
@click.option("--nodes", default=3, show_default=True, type=int, help="Number of nodes of the new cluster.")
@click.option(
    "--base-port", type=int, metavar="P", help="Use consecutive ports from P instead of RocketMQ's usual ones."
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
    as_json: bool,
) -> None:
    """Create a new cluster from a backup or a tier, in the layout of `raftmq up`.

    The new cluster has its own uuid; its topics, groups, offsets and messages are those of one index of the log: of the
    backup, of --to-index or --to-time, or of the last entry in the tier. The old cluster is not changed and may still
    be running, on other ports.
    """
    from cluster.backup.replay import Target
    from cluster.backup.restore import Source, found_source
    from cluster.backup.restore import restore as make
    from cluster.config.node_files import set_tier

    if source is None and tier is None:
        raise click.UsageError("say what to restore: --from BACKUP, --from-tier URL, or both")
    if to_index is not None and to_time is not None:
        raise click.UsageError("--to-index and --to-time exclude each other")
    now_ms = time.time_ns() // 1_000_000
    wanted = Source(source, tier, cluster, Target(to_index, to_time))
    with (
        console(stderr=True).status("starting") as spinner,
        found_source(wanted, into, now_ms, spinner.update) as found,
    ):
        made = make(
            found.path,
            into.absolute(),
            count=nodes,
            base_port=base_port,
            now_ms=now_ms,
            on_stage=spinner.update,
        )
    if tier is not None:
        set_tier(made.nodes, tier)
    manifest = made.manifest
    told = {"data": str(into.absolute()), "nodes": nodes, "cluster_uuid": str(made.cluster_uuid)}
    rebuilt = found.rebuilt
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
                {"name": name, "super": is_super, "enabled": enabled, "rules": rules}
                for name, is_super, enabled, rules in made.revived.users
            ],
            "auth_mode": made.revived.mode,
            "keys": list(made.revived.keys),
            "tokens_revoked": len(made.revived.tokens),
        },
        f"created the new cluster {made.cluster_uuid} with {nodes} nodes in {into}",
        f"it continues cluster {manifest.cluster_uuid} from index {manifest.index} ({manifest.name})",
        *([] if rebuilt is None else _about(rebuilt, manifest)),
        *_users(made.revived),
        f"start it: raftmq up --data {into}",
    )


def _users(revived: Revived) -> list[str]:
    """Returns lines about the users that the restore brings back; nothing if there are none."""
    if not revived.users:
        return []
    lines = [
        f"auth.mode is {revived.mode}; it brings back users as they were then, so look at them before clients connect:"
    ]
    for name, is_super, enabled, rules in revived.users[:USERS_SHOWN]:
        what = "Super" if is_super else f"Normal, {rules} rules"
        lines.append(f"  {name}: {what}{'' if enabled else ', disabled'}")
    if len(revived.users) > USERS_SHOWN:
        lines.append(f"  and {len(revived.users) - USERS_SHOWN} more")
    lines.append(f"all {len(revived.tokens)} tokens are taken away")
    lines.append(
        f"secrets need the key {', '.join(revived.keys)}: copy the users' key file of the old cluster, and name it as "
        "auth.key_file in each raftmq.toml"
    )
    return lines


def _about(rebuilt: Rebuilt, manifest: Manifest) -> list[str]:
    """Returns lines about the content of the restored cluster, and about data that is known to be missing."""
    last = datetime.fromtimestamp(manifest.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    lines = [f"it began with {rebuilt.began}; its last entry has log time {last.replace('+00:00', 'Z')}"]
    missing = rebuilt.known_index - manifest.index
    if missing > 0:
        lines.append(
            f"not in it: {missing} entries or more, from index {manifest.index + 1} on; the cluster had applied "
            f"{rebuilt.known_index} when it last wrote to the store"
        )
    else:
        lines.append(f"not in it: what the cluster may have written after index {manifest.index}")
    return lines
