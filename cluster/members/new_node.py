"""Prepares a new node on a machine of its own, for `raftmq node add --config FILE --via URL`.

FILE contains what only that machine knows: node.id, node.data_dir, ports, and the addresses at which other nodes reach
it. The command adds the other members to the file, as the cluster reports them, and creates the data directory. Both
may exist already from an interrupted attempt.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cluster.config.config import Config
from cluster.config.cross_key_rules import ANY_ADDRESS
from cluster.config.loading import load
from cluster.config.local_layout import node_object, replace_file
from cluster.config.node_sections import PeerNode
from cluster.config.source import toml_value
from cluster.members.joining import add_request, check_directory, make_directory, peer_tables
from cluster.peer.secret import path_of
from cluster.peer.secret_files import has, take
from raftlog.storage.files.fs import OsFileSystem
from raftmq_wire.errors import ExitCode, LocalError


class Prepared(NamedTuple):
    """The new node's directory, and the request that adds the node to the cluster."""

    directory: Path
    request: dict[str, Any]
    """The body of `POST /v1/members`."""
    notes: list[str]
    """Sentences for people about the steps that were done."""


def prepare(
    file: Path,
    join: dict[str, Any],
    node_id: int | None,
    secret: Path | None = None,
    replaces: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Prepared:
    """Completes the configuration file and makes the directory. `secret` is the file with the cluster's secret, brought
    from another node. `replaces` is the node in whose place this one comes, often at its addresses; it is not written
    into the file, and neither is another member that had this node's address before. `env`: the environment that the
    node will have.

    Raises ConfigError or LocalError. The file, the directory and the addresses are checked before anything is changed.
    If a later step fails, the steps before it stay done, and the command can be repeated.
    """
    config = load(file, env)
    _check(file, config, join, node_id)
    own, directory, fs = config.peer_of(config.node.id), Path(config.node.data_dir), OsFileSystem()
    gone = [peer["id"] for peer in join["peers"] if (peer["host"], peer["port"]) == (own.host, own.port)]
    join = {
        **join,
        "peers": [peer for peer in join["peers"] if peer["id"] == own.id or peer["id"] not in (replaces, *gone)],
    }
    check_directory(fs, directory, own.id, join)
    _check_secret(file, config, join, secret)
    _check_reachable(file, own, join)
    notes = []
    if _complete(file, config, own, join, env):
        config = load(file, env)
        notes.append(f"the other members are written into {file}")
    fresh = not directory.exists()
    identity = make_directory(fs, directory, config.node.id, join, time.time_ns() // 1_000_000)
    about = node_object(config.cluster.group, config.node.id)
    notes.append(f"{directory} is {'made' if fresh else 'there'}: {about} of cluster {join['cluster_id']}")
    if secret is not None and take(secret, config, join["secret_key"], join["cluster_id"]):
        notes.append(f"{path_of(config)} holds the secret; {secret} may be removed")
    return Prepared(directory, add_request(config, identity, auto_promote=True), notes)


def _check(file: Path, config: Config, join: dict[str, Any], node_id: int | None) -> None:
    if node_id not in (None, config.node.id):
        raise LocalError(
            f"{file} is of {node_object(config.cluster.group, config.node.id)}, not {node_id}",
            "a node's id is in its configuration",
            f"write id = {node_id} under [node] in {file}, or leave --id out",
            ExitCode.USAGE,
        )
    for key, mine, theirs in (
        ("cluster.name", config.cluster.name, join["cluster"]),
        ("cluster.broker_name", config.cluster.broker_name, join["broker"]),
        ("cluster.id", config.cluster.id or join["cluster_id"], join["cluster_id"]),
        ("cluster.group", config.cluster.group, join["group"]),
    ):
        if mine != theirs:
            raise LocalError(
                f"{file} is of another cluster: {key} is {mine}",
                f"the cluster that answers says {theirs}",
                f"write {key.removeprefix('cluster.')} = {toml_value(theirs)} under [cluster] in {file}, "
                "or use another --via",
                ExitCode.REFUSED,
            )


def _check_secret(file: Path, config: Config, join: dict[str, Any], secret: Path | None) -> None:
    wanted = join.get("secret_key", "")
    if not wanted or secret is not None or has(config, wanted):
        return
    raise LocalError(
        "the new node needs the secret of the cluster",
        "the nodes accept only peers that prove it, and it is not available over HTTP",
        f"scp NODE:DATA/SECRET ./SECRET && raftmq node add --config {file} --via URL --secret ./SECRET",
        ExitCode.USAGE,
    )


def _check_reachable(file: Path, own: PeerNode, join: dict[str, Any]) -> None:
    """Raises LocalError if the file gives an address of its own node that the other machines cannot dial."""
    everywhere = own.host in ANY_ADDRESS
    only_here = _is_loopback(own.host) and not all(_is_loopback(peer["host"]) for peer in join["peers"])
    if everywhere or only_here:
        raise LocalError(
            f"the others cannot reach {node_object(join['group'], own.id)} at {own.host}",
            "it is the address of every machine's own" if only_here else "it stands for all addresses of this machine",
            f'add to {file}: [[peers]] id = {own.id}, host = "NAME_OR_IP", port = {own.port}, and admin and listeners',
            ExitCode.USAGE,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _complete(file: Path, config: Config, own: PeerNode, join: dict[str, Any], env: Mapping[str, str] | None) -> bool:
    """Appends the missing [[peers]] tables; returns True if any were missing. The new text replaces the file only if it
    loads."""
    text = file.read_text(encoding="utf-8")
    in_file = "[[peers]]" in text
    own_table = {"id": own.id, "host": own.host, "port": own.port, "admin": own.admin, "listeners": dict(own.listeners)}
    missing = peer_tables([*([] if in_file else [own_table]), *join["peers"]], config.peers if in_file else ())
    if not missing:
        return False
    text = f"{text.rstrip()}\n\n# The members, as the cluster reported them.\n{missing}"
    replace_file(file, text.encode(), check=lambda fresh: load(fresh, env))
    return True
