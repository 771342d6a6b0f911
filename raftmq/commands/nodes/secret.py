"""`raftmq secret`: the secret that nodes prove to each other; creates one for a running cluster, changes it, and shows
its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.config.local_layout import groups_of, key_of, name_of, read_cluster
from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import (
    cluster_options,
    data_dir,
    data_option,
    json_option,
    print_json,
    print_table,
    show,
)
from raftmq.local.http.admin_http import AdminApi, GivenAddresses, admin_addresses, node_addresses
from raftmq.local.http.asked_nodes import each_node
from raftmq.local.http.credentials import addresses_of
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.config.config import Config

IN_FORCE_S = 60.0
POLL_S = 0.2
_OLDER = {"state": "none", "key": "", "waiting_for": []}
"""The secret's state that is shown for a node of a release without secrets."""
_FILE = click.option(
    "--file",
    "file",
    type=LocalPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Only write FILE; copy it to each machine yourself.",
)


@command_group()
def secret() -> None:
    """Create, change and show the secret that nodes prove to each other."""


@secret.command()
@_FILE
@data_option
@json_option
def create(file: Path | None, data: str | None, as_json: bool) -> None:
    """Create a secret for a running cluster that has none.

    In a local cluster every node gets the secret and starts to prove it. Once all nodes have proven it, nodes without
    it are refused. With --file, copy FILE to each node as SECRET in its node.data_dir (mode 0600), then: raftmq reload.
    """
    from cluster.peer.secret_files import new_key, read_keys, write_keys

    key = new_key()
    if file is not None:
        if file.exists():
            raise _there(file)
        write_keys(file, (key,), "(see IDENTITY)")
        _tell_file(file, as_json)
        return
    configs, cluster = _local(data)
    having = [config for config in configs if _keys(config)]
    if len(having) == len(configs):
        raise LocalError(
            "this cluster already has a secret", "every node has the file", "raftmq secret rotate", ExitCode.REFUSED
        )
    keys = read_keys(_path(having[0])) if having else (key,)
    for config in configs:
        if config not in having:
            write_keys(_path(config), keys, cluster)
    _bring_into_force(data, as_json)


@secret.command()
@_FILE
@data_option
@json_option
def rotate(file: Path | None, data: str | None, as_json: bool) -> None:
    """Change the secret while the nodes are running.

    Nodes accept both the old and the new key until all nodes have proven the new one; then only the new one counts.
    With --file, a new key is added at the top of FILE: copy FILE to each node, then: raftmq reload.
    """
    from cluster.peer.secret_files import add_key, read_keys, write_keys

    if file is not None:
        keys = read_keys(file)
        if not keys:
            raise LocalError(
                f"there is no file {file}",
                "it should contain the current secret",
                f"raftmq secret create --file {file}",
                ExitCode.USAGE,
            )
        write_keys(file, add_key(keys[:1]), "(see IDENTITY)")
        _tell_file(file, as_json)
        return
    configs, cluster = _local(data)
    present = {_keys(config) for config in configs}
    if len(present) != 1 or not next(iter(present)):
        raise LocalError(
            "the nodes do not all have the same secret",
            "an earlier change is not finished, or there is no secret yet",
            "raftmq secret status, then raftmq secret create, or copy the file to the node",
            ExitCode.REFUSED,
        )
    keys = present.pop()
    _check_settled(data)
    fresh = add_key(keys[:1])
    for config in configs:
        write_keys(_path(config), fresh, cluster)
    _bring_into_force(data, as_json)


@secret.command()
@cluster_options
def status(data: str | None, admin: str | None, as_json: bool) -> int:
    """Show which secret each node has and which nodes it waits for.

    Exit code: 1 unless all nodes require the same secret.
    """
    views = _views(_groups(node_addresses(admin, data), data))
    settled = len({view["key"] for view in views}) == 1 and all(view["state"] == "required" for view in views)
    if as_json:
        print_json({"schema": 1, "settled": settled, "nodes": views})
    else:
        rows: list[list[object]] = [
            [str(v["node"]), v["state"], v["key"] or "-", ", ".join(map(str, v["waiting_for"])) or "-"] for v in views
        ]
        print_table(["node", "state", "secret called", "waits for node"], rows)
    return ExitCode.OK if settled else ExitCode.FAILED


def _groups(addresses: list[str], data: str | None) -> dict[int, list[str]]:
    """Returns the addresses that are asked, group -> addresses: those that the user gave, which belong to one group, or
    else those of all groups of the local cluster."""
    if isinstance(addresses, GivenAddresses):
        return {FIRST_GROUP: addresses}
    cluster = read_cluster(data_dir(data))
    return {group: addresses_of(cluster.of_group(group)) for group in groups_of(cluster.nodes)}


def _views(groups: Mapping[int, list[str]]) -> list[dict[str, Any]]:
    told = []
    for group, answers in _answers(groups).items():
        for _, view in answers:
            secret = view.get("secret", _OLDER)
            waiting = [name_of(group, each) for each in secret["waiting_for"]]
            told.append({"node": name_of(group, view["node"]), **secret, "waiting_for": waiting})
    return told


def _answers(groups: Mapping[int, list[str]]) -> dict[int, list[tuple[AdminApi, dict[str, Any]]]]:
    """Returns the answers to `GET /v1/status`: group -> (API, answer) of each node that answers. A group that does not
    answer is left out. Raises LocalError if none answers, or a node refuses."""
    found = {}
    silent = None
    for group, addresses in groups.items():
        try:
            found[group] = list(each_node(addresses, "/v1/status"))
        except LocalError as error:
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            silent = silent or error
    if silent is not None and not found:
        raise silent
    return found


def _local(data: str | None) -> tuple[list[Config], str]:
    """Returns the configurations of a local cluster's nodes, and the cluster's uuid."""
    from cluster.config.loading import load
    from raftmq.local.init import check_data_dirs

    nodes = read_cluster(data_dir(data)).nodes
    cluster = str(check_data_dirs(nodes))
    return [load(node.config_path) for node in nodes], cluster


def _path(config: Config) -> Path:
    from cluster.peer.secret import path_of

    return path_of(config)


def _keys(config: Config) -> tuple[bytes, ...]:
    from cluster.peer.secret_files import read_keys

    return read_keys(_path(config))


def _there(file: Path) -> LocalError:
    return LocalError(
        f"{file} already exists", "it may contain a secret that nodes use", "choose another --file", ExitCode.REFUSED
    )


def _check_settled(data: str | None) -> None:
    waiting = [view for view in _views(_groups(admin_addresses(None, data), data)) if view["state"] != "required"]
    if waiting:
        raise LocalError(
            f"node {waiting[0]['node']} is in the middle of a change",
            f"its secret is {waiting[0]['state']}",
            "raftmq secret status    (wait until all nodes show: required)",
            ExitCode.REFUSED,
        )


def _bring_into_force(data: str | None, as_json: bool) -> None:
    """Makes the running nodes read the secret's file, and waits until all of them require the secret. They do so only
    once every node has proven it. A stopped node reads the file when it starts."""
    groups = _groups(admin_addresses(None, data), data)
    reached = [api for api, _ in _running(groups)]
    for api in reached:
        api.post("/v1/config/reload", {})
    views = _wait(lambda: _views(groups), bool(reached))
    waiting = sorted({node for view in views for node in view["waiting_for"]}, key=key_of)
    if not views:
        lines = ["the secret is in place; the nodes read it when they start"]
    elif waiting:
        lines = [f"[yellow]nodes {waiting} have not proven it yet[/]: it is required only once they have"]
        lines.append("look         raftmq secret status")
    else:
        lines = [f"[green]nodes without the secret {views[0]['key']} are now refused[/]"]
    show(as_json, {"nodes": views}, *lines, markup=True)


def _running(groups: Mapping[int, list[str]]) -> list[tuple[AdminApi, dict[str, Any]]]:
    try:
        return [each for answers in _answers(groups).values() for each in answers]
    except LocalError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        return []


def _wait(look: Callable[[], list[dict[str, Any]]], running: bool) -> list[dict[str, Any]]:
    deadline = time.monotonic() + IN_FORCE_S
    while running:
        views = look()
        if all(view["state"] == "required" for view in views) or time.monotonic() >= deadline:
            return views
        time.sleep(POLL_S)
    return []


def _tell_file(file: Path, as_json: bool) -> None:
    show(
        as_json,
        {"file": str(file)},
        f"[green]{file} contains the secret[/]; only you can read it",
        "copy it      to SECRET in each node's node.data_dir, or to its peer.secret_file, with mode 0600",
        "then         raftmq reload --admin HOST:PORT,…    (every node; or SIGHUP)",
        "look         raftmq secret status --admin HOST:PORT,…",
        markup=True,
    )
