"""`raftmq rolling-restart`: restarts all nodes, one by one, without a failed send."""

from __future__ import annotations

import os
import shlex

import click

from cluster.config.local_layout import NodeName, groups_of, key_of, name_of, node_object
from raftlog.types import FIRST_GROUP
from raftmq.commands.shared_options import cluster_options, console, data_dir, grace_option, show
from raftmq.commands.value_types import NodeNameType
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import ADMIN_VARIABLE, AdminApi, admin_addresses
from raftmq.local.http.asked_nodes import no_group, no_node
from raftmq.local.http.credentials import address_of
from raftmq.local.retired_groups import retired
from raftmq.local.rolling_restart import Restart, Restarted, RollingRestart, by_command, restart_registry
from raftmq_wire.errors import ExitCode, LocalError

WAIT = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="For a node to be allowed to stop, and for it to be back.",
)


@click.command("rolling-restart")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Shell command that restarts one node elsewhere; RAFTMQ_NODE, RAFTMQ_HOST and RAFTMQ_NODE_ADMIN are set.",
)
@click.option(
    "--node",
    "chosen",
    type=NodeNameType(click.IntRange(1, 65535)),
    multiple=True,
    help="Only this node; may be repeated.",
)
@grace_option("Between a node's drain and its stop: after 35 s RocketMQ's clients have asked for routes and moved.")
@WAIT
@cluster_options
def rolling_restart(
    command: str | None,
    chosen: tuple[NodeName, ...],
    grace_s: float,
    wait_s: float,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Restart the nodes one by one, the leader last.

    Before each, the cluster is asked whether it can do without that node; after each, the command waits until the node
    serves clients again. It stops at the first problem and leaves the other nodes alone. The nodes of raftmq up, and
    then the processes of its registry, are restarted directly; for others give --admin and --exec.
    """
    is_elsewhere = bool(admin) or (data is None and bool(os.environ.get(ADMIN_VARIABLE)))
    if is_elsewhere != (command is not None):
        raise LocalError(
            "--admin and --exec belong together",
            "one names the cluster, the other restarts one of its nodes; the nodes of raftmq up need neither",
            f"raftmq rolling-restart --admin {admin or os.environ.get(ADMIN_VARIABLE) or 'HOST:9644'} --exec "
            f"{shlex.quote(command or 'ssh $RAFTMQ_HOST systemctl restart raftmq')}",
            ExitCode.USAGE,
        )
    groups = {FIRST_GROUP: _elsewhere(admin, data, command)} if command is not None else _local(data)
    known = {name_of(group, node): (group, node) for group, (addresses, _) in groups.items() for node in addresses}
    unknown = [node for node in chosen if node not in known]
    if unknown:
        group, _ = key_of(unknown[0])
        raise no_node(unknown[0], groups[group][0]) if group in groups else no_group(group, groups)
    wanted = [known[node] for node in chosen] or known.values()
    err = console(stderr=True)
    done: list[Restarted] = []
    with err.status("asking the cluster") as spinner:
        for group, (addresses, restart) in groups.items():  # one node at a time, across all groups
            rolling = RollingRestart(
                addresses, restart, wait_s=wait_s, grace_s=grace_s, tell=spinner.update, group=group
            )
            done += rolling.run(sorted(node for of, node in wanted if of == group))
        if command is None and not chosen:
            done += restart_registry(LocalCluster(data_dir(data)), spinner.update)
    lines = [f"{node_object(*key_of(each.node))} is back after {each.seconds:.1f} s" for each in done]
    show(as_json, {"restarted": [each._asdict() for each in done]}, *lines)


def _local(data: str | None) -> dict[int, tuple[dict[int, str], Restart]]:
    return local_groups(LocalCluster(data_dir(data)))


def local_groups(cluster: LocalCluster) -> dict[int, tuple[dict[int, str], Restart]]:
    """Returns, for each group of a local cluster that has not retired, its nodes with the addresses of their HTTP APIs,
    and a function that restarts one of them. Raises LocalError."""

    def restart_of(group: int) -> Restart:
        return lambda node: cluster.restart(name_of(group, node))

    groups = groups_of(cluster.nodes)
    gone = retired(cluster.data, groups[1:], cluster.first_nodes)
    return {
        group: ({node.id: address_of(node) for node in cluster.of_group(group)}, restart_of(group))
        for group in groups
        if group not in gone
    }


def _elsewhere(admin: str | None, data: str | None, command: str) -> tuple[dict[int, str], Restart]:
    members = AdminApi(admin_addresses(admin, data), "raftmq node list").local("/v1/members")["members"]
    without = [member["id"] for member in members if not member["admin"]]
    if without:
        raise LocalError(
            f"the HTTP address of node {without[0]} is not known",
            "each node is watched there while it restarts",
            f"write admin in the [[peers]] table of node {without[0]}",
            ExitCode.REFUSED,
        )
    addresses = {int(member["id"]): str(member["admin"]) for member in members}
    return addresses, by_command(command, addresses)
