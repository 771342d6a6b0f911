"""`raftmq up`: makes and starts a cluster on this machine, and stays with it or leaves it running."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.commands.shared_options import (
    SIGNALS,
    console,
    counted,
    data_dir,
    data_option,
    ended_like_ctrl_c,
    json_option,
    show,
    told_of,
)
from raftmq.commands.value_types import StoreType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.config.local_layout import NodeName
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.process import Started
    from raftmq.local.registry_processes import RegistryView
    from raftmq.local.status import GroupStatus

_WATCH_S = 0.3


@click.command()
@click.option("--nodes", type=int, help="Number of nodes of a new cluster (default: 3).")
@click.option(
    "--groups", type=int, metavar="N", help="Number of groups of brokers, each with a log and a leader (default: 1)."
)
@data_option
@click.option(
    "--base-port", type=int, metavar="P", help="Use consecutive ports from P instead of RocketMQ's usual ones."
)
@click.option("--detach", is_flag=True, help="Return when the cluster is ready, and leave it running.")
@click.option(
    "--tier",
    metavar="URL",
    type=StoreType(paths=True),
    help="Upload closed segments of the log to this object store, or to a directory.",
)
@click.option("--tls", is_flag=True, help="Make a CA and certificates, and have the nodes take TLS alone.")
@click.option("--auth", is_flag=True, help="Make a first user, and let no request pass that no rule allows.")
@click.option("--failpoints", is_flag=True, help="Let tests inject faults over HTTP.")
@json_option
def up(
    nodes: int | None,
    groups: int | None,
    data: str | None,
    base_port: int | None,
    detach: bool,
    tier: str | None,
    tls: bool,
    auth: bool,
    failpoints: bool,
    as_json: bool,
) -> None:
    """Start a cluster on this machine.

    The first run creates the data directories; later runs start the nodes that are not running. The command keeps
    running until Ctrl-C and then stops the nodes. With --detach it returns when the cluster is ready.
    """
    from raftmq.local.cluster import LocalCluster

    with ended_like_ctrl_c():
        cluster = LocalCluster(data_dir(data))
        where = "" if data is None else f" --data {shlex.quote(data)}"
        began = time.monotonic()
        with console(stderr=True).status("starting") as spinner:
            view = cluster.up(
                nodes,
                base_port,
                groups=groups,
                tier=tier,
                tls=tls,
                auth=auth,
                failpoints=failpoints,
                registry=True,
                on_stage=spinner.update,
            )
        _stay(cluster, view, time.monotonic() - began, where, detach=detach, as_json=as_json)


def _stay(cluster: LocalCluster, view: GroupStatus, ready_s: float, where: str, *, detach: bool, as_json: bool) -> None:
    try:
        _tell(cluster, view, ready_s, where, detach=detach, as_json=as_json)
        if not detach:
            _watch(cluster)
    except BaseException as error:
        if detach:
            raise
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them running
        stopped = cluster.down()
        console(stderr=True).print(f"stopped {told_of(stopped)}; the data stays in {cluster.data}")
        if not isinstance(error, KeyboardInterrupt):
            raise


def _tell(cluster: LocalCluster, view: GroupStatus, ready_s: float, where: str, *, detach: bool, as_json: bool) -> None:
    """Prints that the cluster is ready. `where`: the option that leads other commands to this cluster, if one is
    needed."""
    from cluster.config.local_layout import groups_of
    from raftmq.client.discovery import LOCAL_CA, LOCAL_USER
    from raftmq.local import registry_processes
    from raftmq.local.local_users import has_users
    from raftmq.local.lost_disks import dead_group, dead_groups, lost_disk, lost_nodes
    from raftmq.local.status import json_of
    from raftmq.local.tls.local_tls import speaks_tls

    registry = registry_processes.view_registry(cluster.registry)
    answering = [each.record for each in registry if each.running]
    servers = registry_processes.servers_of(answering) or cluster.servers
    places = {"servers": servers, "admin_url": cluster.admin_url, "data": str(cluster.data)}
    views = cluster.views() if len(groups_of(cluster.nodes)) > 1 else [view]
    up = sum(node.running for each in views for node in each.nodes)
    leaders = ", ".join(f"node {each.leader_name} leads (term {each.term})" for each in views if each.term is not None)
    lost = [(node, lost_disk(node)) for node in lost_nodes(cluster.nodes)]
    dead = [(group, dead_group(group, cluster.of_group(group))) for group in dead_groups(cluster.nodes)]
    show(
        as_json,
        {
            **json_of(views),
            **places,
            "lost": [node.name for node, _ in lost],
            **({"lost_groups": [group for group, _ in dead]} if dead else {}),
            **({"registry": [each.to_json() for each in registry]} if registry else {}),
        },
        f"[green]ready[/] in {ready_s:.1f} s: {counted(up, 'node')}, {leaders}",
        *(f"node {node.name}       [yellow]lost, not started: {error.what}[/]; {error.fix}" for node, error in lost),
        *(f"group {group}      [yellow]{error.what}: {error.why}[/]; {error.fix}" for group, error in dead),
        f"data         {cluster.data}",
        f"name server  [bold]{servers}[/]",
        *([f"nodes        {cluster.servers}"] if answering else []),
        *_registry_lines(cluster, registry),
        f"dashboard    [bold]{cluster.admin_url}/[/]",
        *([f"TLS          clients from elsewhere need {cluster.data / LOCAL_CA}"] if speaks_tls(cluster.data) else []),
        *([f"user         name and secret: {cluster.data / LOCAL_USER}"] if has_users(cluster.data) else []),
        *hints(program(), where, view.leader, detach=detach),
        markup=True,
    )


def _registry_lines(cluster: LocalCluster, registry: Sequence[RegistryView]) -> list[str]:
    """Returns a line for each problem with the registry, which every cluster of several groups should have."""
    from cluster.config.local_layout import groups_of, node_object
    from raftmq.local.registry_processes import fault_of, why_none

    if len(groups_of(cluster.nodes)) > 1 and (why := why_none(cluster.data)):
        return [f"registry     [yellow]none: {why}[/]"]
    lines = []
    for each in registry:
        record = each.record
        fault = None if each.running else fault_of(record)
        if each.answer:
            why, fix = (fault.why, fault.fix) if fault is not None else (each.answer, f"raftmq logs {record.name}")
            lines.append(f"registry     [yellow]{node_object(*record.key)}: {why.rstrip('.')}[/]; {fix}")
    return lines


def hints(raftmq: str, where: str, leader: int | None, *, detach: bool) -> list[str]:
    """Returns the commands to type next, in a form that works in the user's shell: `raftmq` is the program's name or
    path, `where` the option that names the cluster."""
    from rich.markup import escape

    lines = [
        f"try          echo hello | {raftmq} produce greetings{where}",
        f"             {raftmq} consume greetings{where}",
        f"             {raftmq} kill {leader}{where} && {raftmq} status{where}",
        f"stop         {raftmq} down{where}" if detach else "stop         Ctrl-C",
    ]
    return [escape(line) for line in lines]


def program(argv0: str | None = None) -> str:
    """Returns `raftmq` if the shell finds the running program under that name, else the program's path. `argv0`: how it
    was called, if not as this process."""
    own = Path(argv0 or sys.argv[0])
    if own.name != "raftmq":
        return f"{shlex.quote(sys.executable)} -m raftmq"
    found = shutil.which("raftmq")
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return "raftmq"
    return shlex.quote(str(own))


def _watch(cluster: LocalCluster) -> None:
    """Waits until another command has stopped all nodes. Reports once each process that ends by itself."""
    from cluster.config.local_layout import node_object, read_cluster
    from raftmq.local.lost_disks import lost_nodes
    from raftmq.local.process import is_running

    out = console(stderr=True)
    reported: set[tuple[NodeName, int | None]] = set()
    while True:
        found = read_cluster(cluster.data)
        if all(node.pid is None for node in found.nodes):
            out.print("another command has stopped all nodes")
            return
        ended = [each for each in found.processes if each.pid is not None and not is_running(each)]
        for each in _still_recorded(cluster, ended):
            if (each.name, each.pid) not in reported:
                reported.add((each.name, each.pid))
                verb = "node replace" if each in lost_nodes(found.nodes) else "restart"
                who = node_object(*each.key)
                out.print(f"{who} has ended: raftmq logs {each.name}, then raftmq {verb} {each.name}")
        time.sleep(_WATCH_S)


def _still_recorded(cluster: LocalCluster, ended: list[Started]) -> list[Started]:
    """Returns the processes among `ended` that no other command is stopping right now. Such a command holds the lock,
    and then records that they have ended."""
    from cluster.config.local_layout import locked, read_cluster
    from raftmq_wire.errors import LocalError

    if not ended:
        return []
    try:
        with locked(cluster.data):
            return [each for each in ended if each in read_cluster(cluster.data).processes]
    except LocalError:
        return []
