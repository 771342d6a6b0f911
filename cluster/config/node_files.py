"""The raftmq.toml files of a local cluster: written once by `raftmq up`, the user's to edit afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.source import toml_value
from raftmq_wire.errors import ExitCode, LocalError

HOST = "127.0.0.1"
NODES_MAX = 9
"""More voters only make every write slower; other machines join through their own configuration."""


def plan_nodes(data: Path, count: int, base_port: int | None) -> list[NodeRecord]:
    """Nodes 1..count with RocketMQ's usual ports, or with 4 x count ports in a row from `base_port`."""
    if not 1 <= count <= NODES_MAX:
        raise LocalError(
            f"a local cluster of {count} nodes is not possible",
            f"it can have 1 to {NODES_MAX} nodes; 3 survive the loss of one, 5 the loss of two",
            "raftmq up --nodes 3",
            ExitCode.USAGE,
        )
    if base_port is not None and not 1024 <= base_port <= 65536 - 4 * count:
        raise LocalError(
            f"--base-port {base_port} leaves no room for the ports",
            f"{count} nodes need {4 * count} consecutive ports between 1024 and 65535",
            "raftmq up --base-port 20000",
            ExitCode.USAGE,
        )
    nodes = []
    for i in range(count):
        if base_port is None:
            namesrv, broker, peer, admin = 9876 + i, 10911 + 10 * i, 10912 + 10 * i, 9644 + i
        else:
            namesrv, broker, peer, admin = (base_port + step * count + i for step in range(4))
        log = str(data / f"n{i + 1}" / "node.log")
        nodes.append(NodeRecord(i + 1, None, broker, namesrv, peer, admin, log))
    return nodes


def plan_moved(nodes: Sequence[NodeRecord], base_port: int) -> list[NodeRecord]:
    """Returns the same nodes with 4 x count ports in a row from `base_port`."""
    planned = plan_nodes(nodes[0].home.parent, len(nodes), base_port)
    return [
        replace(ports, id=node.id, log=node.log, replaces=node.replaces)
        for node, ports in zip(nodes, planned, strict=True)
    ]


def write_configs(nodes: Sequence[NodeRecord], *, failpoints: bool = False) -> None:
    """Makes each node's folder and its raftmq.toml; only what differs from the defaults stands in it."""
    for node in nodes:
        write_config(node, nodes, failpoints=failpoints)


def write_config(node: NodeRecord, nodes: Sequence[NodeRecord], *, failpoints: bool = False) -> None:
    """One node's folder and raftmq.toml; `nodes` are all members, this one too."""
    node.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    node.config_path.write_text(_toml(node, nodes, failpoints), encoding="utf-8")


OWN_SECTIONS = frozenset({"node", "peer", "admin", "listeners", "peers"})


def write_config_like(node: NodeRecord, nodes: Sequence[NodeRecord], like: Path) -> None:
    """Makes the folder and the file of a node that joins. The file takes over what the file `like` of another node
    says, except the sections of OWN_SECTIONS."""
    from cluster.config.toml_edits import like_another

    write_config(node, nodes)
    own = node.config_path.read_text(encoding="utf-8")
    text = like_another(own, like.read_text(encoding="utf-8"), OWN_SECTIONS)
    node.config_path.write_text(text, encoding="utf-8")


def plan_node(data: Path, node_id: int, known: Sequence[NodeRecord], is_free: Callable[[int], bool]) -> NodeRecord:
    """One more node: RocketMQ's usual ports for its number if the others have theirs, else four in a row above all."""
    usual = _record(
        data, node_id, 9876 + node_id - 1, 10911 + 10 * (node_id - 1), 10912 + 10 * (node_id - 1), 9644 + node_id - 1
    )
    taken = {port for node in known for port in node.ports.values()}
    is_usual = all(node.namesrv_port == 9876 + node.id - 1 for node in known)
    if is_usual and all(is_free(port) and port not in taken for port in usual.ports.values()):
        return usual
    first = max(taken, default=20000) + 1
    for base in range(first, min(first + 200, 65532)):
        ports = range(base, base + 4)
        if all(is_free(port) for port in ports):
            return _record(data, node_id, *ports)
    raise LocalError(
        f"no four consecutive free ports were found for node {node_id}",
        f"200 ranges from {first} upwards were tried",
        "raftmq down && raftmq up --base-port P    (with a P of your choice; then raftmq node add)",
        ExitCode.REFUSED,
    )


def _record(data: Path, node_id: int, namesrv: int, broker: int, peer: int, admin: int) -> NodeRecord:
    log = str(data / f"n{node_id}" / "node.log")
    return NodeRecord(node_id, None, broker, namesrv, peer, admin, log)


def _toml(node: NodeRecord, nodes: Sequence[NodeRecord], failpoints: bool) -> str:
    lines = [
        f"# Node {node.id} of a local cluster, written by `raftmq up`. Every key: docs/configuration.md",
        "[node]",
        f"id = {node.id}",
        'data_dir = "data"',
        "",
        "[backup]",
        f"roots = {toml_value(str(node.home.parent.parent))}",
        "",
        "[peer]",
        f"port = {node.peer_port}",
        "",
        "[admin]",
        f"port = {node.admin_port}",
        "",
        "[[listeners]]",
        'name = "broker"',
        f"port = {node.broker_port}",
        "",
        "# The port that clients use as the name server: it directs them to the broker ports.",
        "[[listeners]]",
        'name = "namesrv"',
        f"port = {node.namesrv_port}",
    ]
    for each in nodes:
        broker = f"{HOST}:{each.broker_port}"
        lines += [
            "",
            "[[peers]]",
            f"id = {each.id}",
            f"port = {each.peer_port}",
            f'admin = "{HOST}:{each.admin_port}"',
            f'listeners = {{broker = "{broker}", namesrv = "{broker}"}}',
        ]
    if failpoints:
        lines += ["", "[failpoints]", "enabled = true"]
    return "\n".join(lines) + "\n"


def move_ports(nodes: Sequence[NodeRecord], *, failpoints: bool = False) -> None:
    """Changes existing raftmq.toml files for other ports; every other setting, and every comment, stays."""
    from cluster.config.toml_edits import moved

    for node in nodes:
        text = node.config_path.read_text(encoding="utf-8")
        fresh = node.config_path.with_suffix(".toml.new")
        fresh.write_text(moved(text, node, nodes, failpoints=failpoints), encoding="utf-8")
        load(fresh)
        fresh.replace(node.config_path)


def set_tier(nodes: Sequence[NodeRecord], url: str) -> None:
    """Has every node upload to that store. Raises LocalError, having changed nothing, if it cannot be one."""
    from cluster.config.toml_edits import with_tier

    for node in nodes:
        fresh = node.config_path.with_suffix(".toml.new")
        fresh.write_text(with_tier(node.config_path.read_text(encoding="utf-8"), url), encoding="utf-8")
        load(fresh)
        fresh.replace(node.config_path)


def set_tls(node: NodeRecord, folder: Path) -> None:
    """Has the node take TLS alone on all its ports, with its certificate in that folder. What its file says of the mode
    already stays."""
    from cluster.config.toml_edits import with_tls

    fresh = node.config_path.with_suffix(".toml.new")
    own, ca = (folder / f"node-{node.id}"), folder / "ca.crt"
    files = {"cert_file": own.with_suffix(".crt"), "key_file": own.with_suffix(".key"), "ca_file": ca}
    relative = {key: os.path.relpath(path, node.home) for key, path in files.items()}
    fresh.write_text(with_tls(node.config_path.read_text(encoding="utf-8"), relative), encoding="utf-8")
    load(fresh)
    fresh.replace(node.config_path)


def read_nodes(data: Path) -> list[NodeRecord]:
    """The nodes of an existing data directory as their raftmq.toml files describe them; none if there are none."""
    nodes = []
    for path in sorted(data.glob("n*/raftmq.toml")):
        config = load(path)
        ports = {listener.name: listener.port for listener in config.listeners}
        if missing := {"broker", "namesrv"} - ports.keys():
            raise LocalError(
                f"{path} has no listener called {missing.pop()}",
                "clients of a local cluster use the listeners `broker` and `namesrv`",
                f"add a [[listeners]] table with that name to {path}",
                ExitCode.REFUSED,
            )
        log = str(path.parent / "node.log")
        nodes.append(
            NodeRecord(
                config.node.id, None, ports["broker"], ports["namesrv"], config.peer.port, config.admin.port, log
            )
        )
    return sorted(nodes, key=lambda node: node.id)
