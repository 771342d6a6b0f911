"""`raftmq serve` runs a node under other supervision (systemd, compose); `raftmq init` makes its data directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftlog.types import FIRST_GROUP
from raftmq.commands.point_in_time import PointInTime
from raftmq.commands.shared_options import json_option, show
from raftmq.commands.value_types import ApiType
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.local.init import Created

_CONFIG = LocalPath(dir_okay=False, readable=False, path_type=Path)
"""The type of a configuration file's path. It accepts a file that cannot be read: `load` says why, and what to type."""


@click.command()
@click.option("--config", "config", type=_CONFIG, required=True, metavar="FILE", help="The node's raftmq.toml.")
def serve(config: Path) -> int:
    """Run one node in the foreground until SIGTERM or Ctrl-C."""
    from cluster.node.__main__ import main as run_node
    from raftmq.local.single_node_init import check_made

    check_made(config, os.environ)
    return run_node(["--config", str(config)])


@click.command()
@click.option(
    "--config",
    "configs",
    type=_CONFIG,
    required=True,
    multiple=True,
    metavar="FILE",
    help="A member's raftmq.toml; repeat for every member.",
)
@click.option(
    "--leave-lost",
    is_flag=True,
    help="Succeed when some directories were lost: they stay as they are, and their nodes refuse to start.",
)
@click.option("--first", is_flag=True, help="Make one node on this machine, the first of a new cluster.")
@click.option(
    "--join",
    "via",
    metavar="HOST:PORT",
    type=ApiType(),
    help="Make one node here; HTTP API of the first one, which runs.",
)
@click.option(
    "--secret", type=_CONFIG, metavar="FILE", help="With --join: a copy of the first node's SECRET (default: in place)."
)
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, 3600), default=0, metavar="S", help="With --join: ask so long."
)
@click.option(
    "--tls",
    "tls_dir",
    type=LocalPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Have the nodes take TLS alone: make a CA in DIR if it has none, issue the nodes' certificates there.",
)
@click.option(
    "--until",
    "until_ms",
    type=PointInTime(),
    metavar="TIME",
    help="Make a new cluster only until TIME (UTC), and keep no mark of it beside the secret or the configuration.",
)
@click.option("--insecure", is_flag=True, help="Let other machines reach a new cluster that has no user.")
@json_option
def init(
    configs: tuple[Path, ...],
    leave_lost: bool,
    first: bool,
    via: str | None,
    secret: Path | None,
    wait_s: float,
    until_ms: int | None,
    tls_dir: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Create the data directories of a new cluster, all of them or none.

    Give one --config for every member. If all data directories already contain the same cluster, the command does
    nothing, so it can run before every start. If only some do, it refuses: an empty directory must not replace a
    member's lost data.

    On machines of their own: --first on one, then --join on each of the others, with one --config. Each node is made
    once; an emptied directory is refused, by the node that made the cluster.

    A cluster is made once. A mark beside its secret, or with --first beside the configuration, remembers that; where no
    file can be kept, --until allows the making for a short time.

    A new cluster whose ports other machines may reach needs a first user (auth.key_file and auth.first_user_file),
    unless --insecure is given.

    With --tls the paths of the certificates are written into each raftmq.toml. Keep DIR/ca.key away from the nodes
    afterwards; a machine that makes its own node needs the CA of the others in DIR, and asks the first one by it.
    """
    from raftmq.local.init import create_data_dirs, refuse_open

    if not (insecure or via is not None):
        refuse_open(configs, os.environ)
    if first or via is not None:
        mixed = (first and via is not None) or leave_lost
        _init_one(configs, via, secret, wait_s, until_ms, tls_dir, as_json, mixed=mixed)
        return
    if secret is not None or wait_s:
        raise LocalError(
            "--secret and --wait belong to --join",
            "without --join the secret is made here, and nothing is waited for",
            f"raftmq init --join HOST:PORT --secret {secret or 'FILE'} --config {configs[0]}",
            ExitCode.USAGE,
        )
    made = create_data_dirs(list(configs), os.environ, leave_lost=leave_lost, until_ms=until_ms)
    certified = _certify(tls_dir, configs)
    _warn_root(configs, tls_dir)
    created = f"created {len(configs)} data directories for the new cluster {made.cluster_uuid}"
    there = f"nothing to do: all {len(configs)} directories contain the cluster {made.cluster_uuid}"
    answer = {"created": made.created, "cluster_uuid": str(made.cluster_uuid), "lost": list(made.lost), **certified}
    if made.lost:
        there = _left_lost(made, len(configs))
    show(as_json, answer, created if made.created else there)


def _left_lost(made: Created, count: int) -> str:
    """Returns the message about lost directories, which are left as they are, with the command to type. `count`: the
    number of all directories."""
    nodes = ", ".join(map(str, made.lost))
    one = len(made.lost) == 1
    told = (
        f"the {'directory' if one else 'directories'} of node {nodes} {'was' if one else 'were'} lost, the others "
        f"contain the cluster {made.cluster_uuid}; nothing was changed, because an empty node must not vote in place "
        "of the old one\n"
    )
    if 2 * len(made.lost) >= count:
        return told + "too few nodes are left to elect a leader: put a directory back, or see raftmq runbook no_quorum"
    return told + f"replace the node while the others run: raftmq node replace {made.lost[0]}"


def _warn_root(configs: tuple[Path, ...], tls_dir: Path | None) -> None:
    """If root made a node that another user is to run, prints the command that hands its files over."""
    from cluster.config.loading import load
    from raftmq.local.access_files import hand_over

    for path in configs:
        if command := hand_over(load(path, os.environ), tls_dir):
            told = "root typed this, and the folder of the data directory belongs to another user: the node runs as"
            click.echo(f"{told} that one only after {command}", err=True)


def _certify(folder: Path | None, configs: tuple[Path, ...]) -> dict[str, list[str]]:
    """Configures TLS for the nodes, if a folder is named. Returns the certificates that were made."""
    from cluster.config.loading import load
    from raftmq.local.init import is_without_identity
    from raftmq.local.tls.local_tls import certify_files

    if folder is None:
        return {}
    there = [path for path in configs if not is_without_identity(Path(load(path, os.environ).node.data_dir))]
    return {"certificates": [str(path) for path in certify_files(folder, there, os.environ)]}


def _init_one(
    configs: tuple[Path, ...],
    via: str | None,
    secret: Path | None,
    wait_s: float,
    until_ms: int | None,
    tls_dir: Path | None,
    as_json: bool,
    *,
    mixed: bool,
) -> None:
    """Makes one node: the first of a cluster, or another one with the help of the first at `via`."""
    from cluster.config.loading import load
    from raftmq.local.http.https import forget_tls
    from raftmq.local.single_node_init import create_first, join, next_steps, steps_after_join, use_ca

    forget_tls()
    if mixed or len(configs) != 1:
        raise LocalError(
            "--first and --join make one node each",
            "one is for the first machine of a cluster, the other for the rest; each takes one --config",
            f"raftmq init {'--first' if via is None else f'--join {via}'} --config {configs[0]}",
            ExitCode.USAGE,
        )
    (config,) = configs
    if via is None:
        made = create_first(config, os.environ, until_ms)
    else:
        if tls_dir is not None:
            use_ca(config, tls_dir, via, os.environ)
        made = join(config, via, secret, wait_s, os.environ)
    certified = _certify(tls_dir, configs)
    _warn_root(configs, tls_dir)
    answer = {"created": made.created, "cluster_uuid": str(made.cluster_uuid), "lost": [], **certified}
    if not made.created:
        show(as_json, answer, f"nothing to do: the directory holds this node of the cluster {made.cluster_uuid}")
        return
    loaded = load(config, os.environ)
    if via is None:
        steps = next_steps(loaded, config, tls_dir)
        group = loaded.cluster.group
        what = "the new cluster" if group == FIRST_GROUP else f"group {group} of the cluster"
        show(as_json, answer, f"created the first node of {what} {made.cluster_uuid}", *steps)
        return
    told = [f"created a node of the cluster {made.cluster_uuid}; start it:"]
    show(as_json, answer, *told, *(f"    {step}" for step in steps_after_join(loaded, config, via, tls_dir)))
