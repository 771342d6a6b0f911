"""`raftmq node`: lists the members, adds, promotes, removes and replaces nodes, and moves leadership."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.config.local_layout import NodeName, key_of, name_of, read_cluster
from cluster.runtime.byte_sizes import size_of
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq.commands.aimed import aimed_here
from raftmq.commands.command_group import command_group
from raftmq.commands.name_completion import complete_nodes
from raftmq.commands.nodes.node_plan import ask_before, confirmed, show_plan
from raftmq.commands.shared_options import (
    author,
    cluster_options,
    console,
    data_dir,
    data_option,
    grace_option,
    json_option,
    print_json,
    print_table,
    show,
    show_problems,
)
from raftmq.commands.value_types import AddressType, ApiType, ListenerType, NodeNameType
from raftmq.local import stop_check
from raftmq.local.http.admin_http import ADMIN_VARIABLE, AdminApi, F, admin_addresses, drain_node
from raftmq.local.http.all_groups import all_groups, in_one, told_by_each
from raftmq.local.http.asked_nodes import no_group, no_node, not_among_given
from raftmq.local.settled_changes import when_settled
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.local.membership import Joined, LocalMembers

LOOK = "raftmq node list"
NODE = click.argument("node", type=NodeNameType(click.IntRange(1, 65535)), shell_complete=complete_nodes)
GROUP = click.option(
    "--in-group",
    "group",
    type=click.IntRange(1, GROUPS_MAX),
    default=FIRST_GROUP,
    hidden=True,
    help="The group of a local cluster.",
)


def new_node_options(command: F) -> F:
    """Adds --config, --via and --secret, for a new node on its own machine."""
    config = click.option(
        "--config",
        type=LocalPath(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The new node's raftmq.toml, on its own machine; with --via.",
    )
    via = click.option(
        "--via",
        metavar="URL",
        type=ApiType(),
        help="HTTP API of a member, such as http://10.0.0.1:9644; with --config.",
    )
    secret = click.option(
        "--secret",
        type=LocalPath(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A copy of a member's SECRET file; with --config.",
    )
    return config(via(secret(command)))


@command_group()
def node() -> None:
    """Add, promote, replace and remove nodes; move leadership."""


@node.command("list")
@click.option("--in-group", "group", type=click.IntRange(1, GROUPS_MAX), hidden=True, help="One group (default: all).")
@cluster_options
def list_nodes(group: int | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """List the members: addresses, how far each lags behind the leader, and how long its disk takes for a sync."""
    groups = all_groups(admin, data) if group is None else {group: _of_group(group, admin, data)}
    views, silent = told_by_each(groups, _from_leader)
    if as_json:
        print_json({"schema": 1, **(in_one(views) if group is None else views[group])})
    for each, view in views.items() if not as_json else ():
        _show_members(view, each)
    show_problems(silent)


def _show_members(view: dict[str, Any], group: int) -> None:
    out = console()
    out.print(_headline(view, group))
    print_table(
        ["node", "role", "state", "lag", "bytes", "age", "sync", "match", "peers", "admin"],
        [_row(view, member, group) for member in view["members"]],
    )
    if view["removed"]:
        out.print("removed: " + ", ".join(str(name_of(group, member["id"])) for member in view["removed"]))


def _from_leader(api: AdminApi) -> dict[str, Any]:
    try:
        return api.get("/v1/members")
    except LocalError as error:
        if error.exit_code is not ExitCode.REFUSED:
            raise
        return api.local("/v1/members")  # without a leader, show what some node knows


def _headline(view: dict[str, Any], group: int) -> str:
    voters = sum(member["role"] == "voter" for member in view["members"])
    leader = f"node {name_of(group, view['leader'])} leads" if view["leader"] else "no leader"
    text = f"{leader} (term {view['term']}); {voters} voters, {view['quorum']} are a majority"
    if view["removed_since"] is not None:
        own = name_of(group, view["node"])
        text += f"; node {own}, which gave this answer, was removed at entry {view['removed_since']}"
    if not view["committed"]:
        text += f"; a change is in progress: {view['detail'] or view['reason']} (entry {view['index']})"
    elif view["index"]:
        text += f"; last change: {view['detail'] or view['reason']} (entry {view['index']}, committed)"
    return text


def _row(view: dict[str, Any], member: dict[str, Any], group: int) -> list[object]:
    place = f"{member['host']}:{member['port']}" if member["host"] else "unknown"
    role = "leader" if member["leader"] else member["role"] + (" (stays)" if member["manual"] else "")
    return [
        str(name_of(group, member["id"])),
        role,
        _state(view, member),
        member["lag_entries"],
        _known(member, "lag_bytes", size_of),
        _known(member, "lag_ms", lambda age_ms: f"{age_ms / 1000:.1f} s"),
        _known(member, "sync_ms", lambda sync_ms: f"{sync_ms:.1f} ms"),
        member["match_index"],
        place,
        member["admin"] or "-",
    ]


def _known(member: dict[str, Any], name: str, text: Callable[[Any], str]) -> str | None:
    """Returns the text of a value; None if it is unknown, or the node is of a release that does not report it."""
    value = member.get(name)
    return None if value is None else text(value)


def _state(view: dict[str, Any], member: dict[str, Any]) -> str:
    if member.get("maintenance"):
        return "maintenance"
    if member["id"] == view["node"]:
        return "drained" if view["drained"] else "ok"
    if member["live"] is None:
        return "connected" if member["connected"] else "not connected"
    if not member["live"]:
        return "silent"
    if member["state"] == "SNAPSHOT":
        return "fetches a snapshot"
    if not member["fit"]:
        return "not fit to lead"
    if member["role"] == "learner" and not member["caught_up"]:
        return "catches up"
    return "ok"


@node.command()
@click.option(
    "--id", "node_id", type=click.IntRange(1, 65535), metavar="N", help="The node's id (default: the next free one)."
)
@click.option("--learner", is_flag=True, help="Keep it a learner until raftmq node promote.")
@GROUP
@new_node_options
@data_option
@json_option
def add(
    node_id: int | None,
    learner: bool,
    group: int,
    config: Path | None,
    via: str | None,
    secret: Path | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Add a node with an empty disk. It receives the log and becomes a voter when it has caught up.

    In a local cluster this creates the node's configuration and directory, starts it, and waits. On another machine,
    give --config, --via and --secret: this creates the directory and adds the node. Then start it there with raftmq
    serve.
    """
    _check_together(config, via, "raftmq node add")
    if config is not None and via is not None:
        _add_elsewhere(config, via, node_id, secret, learner=learner, as_json=as_json)
        return
    with _working(data, group) as members:
        joined = members.add(node_id=node_id, learner=learner)
    show(as_json, _joined(joined), _joined_text(joined), markup=True)


def _check_together(config: Path | None, via: str | None, command: str) -> None:
    if (config is None) != (via is None):
        raise LocalError(
            "--config and --via belong together",
            "one names the new node's file, the other a member of the cluster",
            f"{command} --config n4.toml --via http://10.0.0.1:9644",
            ExitCode.USAGE,
        )


def _add_elsewhere(
    config: Path, via: str, node_id: int | None, secret: Path | None, *, learner: bool, as_json: bool
) -> None:
    from cluster.config.loading import load
    from cluster.members.new_node import prepare
    from raftmq.local.http.https import chosen_tls
    from raftmq.local.tls.node_certificates import steps_before_start

    api = AdminApi(admin_addresses(via), LOOK)
    try:
        join = api.get("/v1/members/join")
    except LocalError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        fix = f"raftmq node add --config {config} --via http://HOST:PORT    (the [admin] address of a running node)"
        raise LocalError(error.what, error.why, fix, ExitCode.UNREACHABLE) from None
    prepared = prepare(config, join, node_id, secret, env=os.environ)
    body = {**prepared.request, "auto_promote": not learner}
    added = when_settled(lambda: api.post("/v1/members", body), _tell)
    answer = {
        "node": added["id"],
        "role": added["role"],
        "index": added["index"],
        "config": str(config),
        "data_dir": str(prepared.directory),
    }
    certify = steps_before_start(load(config, os.environ), config, over_tls=chosen_tls() is not None)
    show(
        as_json,
        answer,
        *prepared.notes,
        f"[green]node {added['id']} is a {added['role']}[/] (entry {added['index']}); its log is still empty",
        *(f"certify it   {step}" for step in certify),
        f"start it     raftmq serve --config {config}",
        f"watch it     raftmq node list --admin {via}",
        *([f"let it vote  raftmq node promote {added['id']} --admin {via}"] if learner else []),
        markup=True,
    )


@node.command()
@NODE
@cluster_options
def promote(node: NodeName, data: str | None, admin: str | None, as_json: bool) -> None:
    """Make a learner a voter once it has caught up; for nodes added with --learner."""
    own, addresses = _there(node, admin, data)
    api = AdminApi(addresses, LOOK)
    changed = when_settled(lambda: api.post(f"/v1/members/{own}/promote", {}), _tell)
    _show_changed(node, changed, as_json)


@node.command()
@NODE
@click.option(
    "--plan",
    "--dry-run",
    "plan",
    is_flag=True,
    help="Only show the voters before and after, and how many failures they survive.",
)
@click.option("--yes", is_flag=True, help="Do not ask, even if fewer than three voters remain.")
@cluster_options
def remove(node: NodeName, plan: bool, yes: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Remove a node from the cluster.

    The command shows the voters before and after, and asks at a terminal. The cluster refuses if it cannot do without
    the node now, or if the remaining nodes would have no majority. Without a terminal, --yes is needed if fewer than
    three voters would remain, because they survive no failure. In a local cluster the node is then stopped and its
    folder set aside. Elsewhere the node raises an alarm and serves no clients; stop it there.
    """
    _, addresses = _there(node, admin, data)
    if plan:
        show_plan(AdminApi(addresses, LOOK), node, as_json=as_json)
        return
    asked = not yes and ask_before(AdminApi(addresses, LOOK), addresses, node)
    confirmed(lambda meant: _remove(node, meant, data, admin, as_json), yes=yes or asked)


def _remove(node: NodeName, meant: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    own, addresses = _there(node, admin, data)
    if _is_elsewhere(admin, data):
        query = "?below_three=true" if meant else ""
        api = AdminApi(addresses, LOOK)
        changed = when_settled(lambda: api.delete(f"/v1/members/{own}{query}"), _tell)
        _show_changed(node, changed, as_json, f"node {node} no longer serves clients; stop it on its machine")
        return
    with _working(data, key_of(node)[0]) as members:
        folder = members.remove(own, below_three=meant)
    answer = {"node": node, "role": "removed", "folder": str(folder) if folder else None}
    told = f"[green]node {node} is removed[/]" + (f"; its data is in {folder}" if folder else "")
    show(as_json, answer, told, markup=True)


@node.command()
@NODE
@new_node_options
@data_option
@json_option
def replace(
    node: NodeName, config: Path | None, via: str | None, secret: Path | None, data: str | None, as_json: bool
) -> None:
    """Replace NODE, dead or alive, by a new node with an empty disk.

    The new node joins, catches up and becomes a voter; then NODE is removed. If interrupted, repeat the command to
    continue. Without options, in a local cluster. On a machine of its own, where the new node's FILE is: --config and
    --via; the command says when to start the node there, and waits for it.
    """
    _check_together(config, via, f"raftmq node replace {node}")
    if config is not None and via is not None:
        from raftmq.commands.stages import Lines
        from raftmq.local.node_replacement import replace_elsewhere

        voters = replace_elsewhere(key_of(node)[1], config, via, secret, Lines(_tell, time.monotonic))
        answer = {"replaced": node, "voters": voters, "config": str(config)}
        show(as_json, answer, f"[green]node {node} is replaced[/]: voters {_names(voters, node)}", markup=True)
        return
    group, own = key_of(node)
    with _working(data, group) as members:
        joined, folder = members.replace(own)
        voters = [member["id"] for member in members.members()["members"] if member["role"] == "voter"]
    show(
        as_json,
        {**_joined(joined), "voters": voters, "replaced": node, "folder": str(folder) if folder else None},
        f"[green]node {joined.record.name} has taken the place of node {node}[/]: voters {_names(voters, node)}",
        *([f"the data of node {node} is in {folder}; delete it when you no longer need it"] if folder else []),
        markup=True,
    )


@node.command()
@NODE
@click.argument("address", metavar="HOST:PORT", type=AddressType())
@click.option(
    "--http", metavar="HOST:PORT", type=AddressType(), help="The new address of its HTTP API (default: it stays)."
)
@click.option(
    "--listener",
    "listeners",
    metavar="NAME=HOST:PORT",
    type=ListenerType(),
    multiple=True,
    help="What one of its listeners advertises from now on; may be repeated (default: they stay).",
)
@click.option("--force", is_flag=True, help="Move it although nobody finds it there, because it is down.")
@cluster_options
def move(
    node: NodeName,
    address: str,
    http: str | None,
    listeners: tuple[str, ...],
    force: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Tell the cluster the new peer address of NODE.

    First start the node at its new address. The voters dial it, and a majority must find the same node there. With
    --force nothing is proven. A leader hands leadership over first. In a local cluster: raftmq up --base-port P.
    """
    _, addresses = _there(node, admin, data)
    api = AdminApi(addresses, LOOK)
    view = api.get("/v1/members")
    body = {**_moved(view, node, address, http, listeners), "force": force}
    changed = when_settled(lambda: api.post("/v1/members", body), _tell)
    lines = [f"[yellow]not found by[/] {line}" for line in changed["not_found_by"]]
    if changed["warning"]:
        lines.append(f"[yellow]warning[/] {changed['warning']}")
    told = f"[green]node {node} is at {address}[/]: found by {_names(changed['found_by'] or [], node) or 'none'}"
    if changed["found_by"] is None:
        told = f"[green]node {node} is at {address}[/]: nodes dial it where they did"
    show(as_json, changed, told, *lines, markup=True)


def _moved(
    view: dict[str, Any], node: NodeName, address: str, http: str | None, listeners: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the body of the request: what the cluster knows of the node, with the changed addresses."""
    from cluster.config.address import split_address

    own = key_of(node)[1]
    member = next((each for each in view["members"] if each["id"] == own), None)
    if member is None:
        raise no_node(node, [each["id"] for each in view["members"]])
    host, port = split_address(address)
    return {
        "id": own,
        "uuid": member["uuid"],
        "cluster_id": view["cluster_id"],
        "host": host,
        "port": port,
        "admin": member["admin"] if http is None else http,
        "listeners": {**member["listeners"], **dict(each.split("=", 1) for each in listeners)},
    }


@node.command()
@NODE
@click.option("--undo", is_flag=True, help="Allow the node to lead again, and send clients to it again.")
@grace_option("Wait so long before the command ends: after 35 s RocketMQ's clients have asked for routes and moved.")
@cluster_options
def drain(node: NodeName, undo: bool, grace_s: float, data: str | None, admin: str | None, as_json: bool) -> None:
    """Make NODE hand over leadership and send clients elsewhere until its next start, before maintenance."""
    _, addresses = _there(node, admin, data)
    view = drain_node(node, addresses, undo=undo)
    if undo:
        show(as_json, view, f"node {node} may lead again")
        return
    time.sleep(grace_s)
    may = stop_check.ask(addresses, node)
    warning = [f"do not stop it yet: {reason}" for reason in may["reasons"]] if may is not None else []
    drained = f"node {node} is drained: node {_leader(view, node)} leads; undo: raftmq node drain {node} --undo"
    show(as_json, {**view, "can_stop": may}, drained, *warning)


@node.command("can-stop")
@click.argument(
    "nodes",
    metavar="NODE...",
    nargs=-1,
    required=True,
    type=NodeNameType(click.IntRange(1, 65535)),
    shell_complete=complete_nodes,
)
@cluster_options
def can_stop(nodes: tuple[NodeName, ...], data: str | None, admin: str | None, as_json: bool) -> int:
    """Ask the cluster whether writes go on while NODE is stopped. Exits with 0 if they do, 5 if not.

    With several groups of brokers, name all nodes of the machine that is to stop: one of each group.
    """
    groups = [key_of(node)[0] for node in nodes]
    if len({*groups}) < len(groups):
        raise LocalError(
            "two nodes of one group cannot be asked for together",
            "each is judged as if the other stayed",
            f"raftmq node can-stop {nodes[0]}    (one by one; or one of each group)",
            ExitCode.USAGE,
        )
    answers = {node: _asked_to_stop(node, admin, data) for node in nodes}
    lines: list[str] = []
    for node, answer in answers.items():
        if answer["allowed"]:
            lines.append(f"node {node} may be stopped: writes go on")
            continue
        lines += [f"do not stop node {node} now: {reason}" for reason in answer["reasons"]]
        lines.append(f"type: {aimed_here(answer['do_now'], key_of(node)[0])}")
    allowed = all(answer["allowed"] for answer in answers.values())
    several = {"allowed": allowed, "nodes": [{**answer, "name": node} for node, answer in answers.items()]}
    show(as_json, several if len(nodes) > 1 else answers[nodes[0]], *lines)
    return ExitCode.OK if allowed else ExitCode.REFUSED


def _asked_to_stop(node: NodeName, admin: str | None, data: str | None) -> dict[str, Any]:
    """Returns the answer of the leader of the node's group whether the node may be stopped. Raises LocalError if no
    leader answers."""
    answer = stop_check.ask(_there(node, admin, data)[1], node)
    if answer is None:
        raise LocalError(
            "no leader answers",
            "without a leader nothing is written, and nobody can say what a stop would end",
            "raftmq status",
            ExitCode.REFUSED,
        )
    return answer


@node.command()
@click.argument("state", type=click.Choice(["on", "off"]))
@NODE
@click.option("--reason", default="", help="What is done to it; shown to everybody.")
@click.option("--dry-run", is_flag=True, help="Only ask whether it could begin.")
@cluster_options
def maintenance(
    state: str, node: NodeName, reason: str, dry_run: bool, data: str | None, admin: str | None, as_json: bool
) -> None:
    """Say that NODE is being worked on: it leads nothing, and what is found about it is expected.

    It lasts until it is switched off, also across restarts of the node and of the cluster.
    """
    body = {"maintenance": state == "on", "author": author(), "reason": reason, "dry_run": dry_run}
    own, addresses = _there(node, admin, data)
    view = AdminApi(addresses, LOOK).post(f"/v1/members/{own}/maintenance", body)
    if dry_run:
        now = "is in maintenance" if view["maintenance"] else "is not in maintenance"
        told = f"nothing was changed: node {node} {now}, and this would be allowed"
    elif view["maintenance"]:
        told = (
            f"node {node} is in maintenance, node {_leader(view, node)} leads; end: raftmq node maintenance off {node}"
        )
    else:
        told = f"node {node} is not in maintenance; it may lead again"
    show(as_json, view, told)


@node.command()
@NODE
@cluster_options
def transfer(node: NodeName, data: str | None, admin: str | None, as_json: bool) -> None:
    """Transfer leadership to NODE; its log must be nearly complete."""
    own, addresses = _there(node, admin, data)
    view = AdminApi(addresses, LOOK).post("/v1/leader/transfer", {"to": own})
    show(as_json, view, f"node {_leader(view, node)} leads (term {view['term']})")


def _there(node: NodeName, admin: str | None, data: str | None) -> tuple[int, list[str]]:
    """Returns the id of a node in its group, and the addresses of the group's HTTP APIs. Raises LocalError."""
    group, own = key_of(node)
    return own, _of_group(group, admin, data)


def _of_group(group: int, admin: str | None, data: str | None) -> list[str]:
    """Returns the addresses of the HTTP APIs of one group. Raises LocalError if there is no such group, or if `admin`
    gives addresses and `group` is not the first: given addresses belong to one group."""
    if group == FIRST_GROUP:
        return admin_addresses(admin, data)
    if _is_elsewhere(admin, data):
        raise not_among_given(group)
    addresses = admin_addresses(admin, data, group)
    if not addresses:
        raise no_group(group, read_cluster(data_dir(data)).groups)
    return addresses


def _leader(view: dict[str, Any], node: NodeName) -> NodeName | None:
    """Returns the name of the leader of a node's group, from an answer that has the leader's id."""
    return view["leader"] if view["leader"] is None else name_of(key_of(node)[0], view["leader"])


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _is_elsewhere(admin: str | None, data: str | None) -> bool:
    import os

    return bool(admin) or (data is None and bool(os.environ.get(ADMIN_VARIABLE)))


@contextmanager
def _working(data: str | None, group: int) -> Iterator[LocalMembers]:
    """Yields the members of a group of the local cluster, and shows the present stage on stderr; on Ctrl-C prints what
    the cluster continues to do by itself."""
    from raftmq.commands.stages import stages
    from raftmq.local.cluster import LocalCluster
    from raftmq.local.membership import LocalMembers

    err = console(stderr=True)
    try:
        with stages(err, "asking the cluster") as tell:
            yield LocalMembers(LocalCluster(data_dir(data)), tell, group)
    except KeyboardInterrupt:
        err.print("the change continues in the cluster; see: raftmq node list")
        raise


def _joined(joined: Joined) -> dict[str, object]:
    record = joined.record
    return {
        "node": record.name,
        "role": joined.role,
        "index": joined.entry,
        "voters": joined.voters,
        "pid": record.pid,
        "broker_port": record.broker_port,
        "namesrv_port": record.namesrv_port,
        "admin_port": record.admin_port,
    }


def _joined_text(joined: Joined) -> str:
    record = joined.record
    role = "votes" if joined.role == "voter" else "is a learner that has caught up"
    where = f"name server 127.0.0.1:{record.namesrv_port}, admin 127.0.0.1:{record.admin_port}"
    return f"[green]node {record.name} {role}[/]: voters {_names(joined.voters, record.name)}; {where}"


def _show_changed(node: NodeName, changed: dict[str, Any], as_json: bool, *more: str) -> None:
    role = {"voter": "votes", "learner": "is a learner", "removed": "is removed"}[changed["role"]]
    told = f"[green]node {node} {role}[/]: voters {_names(changed['voters'], node)}"
    show(as_json, changed, told, *more, markup=True)


def _names(nodes: list[int], like: NodeName) -> str:
    """Returns the names of the nodes with these ids, in the group of the node `like`, as one text."""
    return ", ".join(str(name_of(key_of(like)[0], each)) for each in nodes)
